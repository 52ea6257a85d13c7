import { expect, test } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createPlanCache } from './plan-cache.ts';
import { compileStoredConfig } from './read-config.ts';

const config = (index: number) => ({ virtual_key: `key-${index}`, override_params: { note: 'x'.repeat(1_000) } });

test('plans are charged to the memory budget, take up an eighth of it at most, and the least recently used ones go', () => {
  const memory = createMemoryBudget(400_000);
  const plans = createPlanCache(memory);
  for (let index = 0; index < 100; index += 1) {
    plans.keep(`config ${index}`, JSON.stringify(config(index)), compileStoredConfig(config(index)));
    // A plan that is in constant use stays.
    expect(plans.find('config 0')).toBeDefined();
  }
  const { heldBytes } = memory.stats();
  expect(heldBytes).toBeGreaterThan(25_000);
  expect(heldBytes).toBeLessThanOrEqual(50_000);
  expect(plans.find('config 99')).toBeDefined();
  expect(plans.find('config 1')).toBeUndefined();
});

test('a plan that is larger than the cache is not kept, and a config that cannot be read is', () => {
  const plans = createPlanCache(createMemoryBudget(80_000));
  plans.keep('large', JSON.stringify({ virtual_key: 'x', override_params: { note: 'x'.repeat(20_000) } }), null);
  plans.keep('unreadable', '{}', null);
  expect(plans.find('large')).toBeUndefined();
  expect(plans.find('unreadable')).toBeNull();
});

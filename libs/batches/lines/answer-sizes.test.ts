import { expect, test } from 'vitest';
import { createAnswerSizes } from './answer-sizes.ts';

const batch = { workspace_id: 'ws_1', endpoint: '/v1/embeddings', model: 'm', id: 'batch_1' } as const;

test('the next answer is expected to be as large as the largest recent one', () => {
  const sizes = createAnswerSizes();
  expect(sizes.expected(batch)).toBe(16_384);
  sizes.learn(batch, 1_000);
  expect(sizes.expected(batch)).toBe(1_000);
  sizes.learn(batch, 8_000_000);
  expect(sizes.expected(batch)).toBe(8_000_000);
  for (let index = 0; index < 32; index += 1) sizes.learn(batch, 1_000);
  expect(sizes.expected(batch)).toBeLessThan(3_000_000);
  expect(sizes.expected(batch)).toBeGreaterThan(1_000);
});

test('batches of one workspace and model share what they learned, and others do not', () => {
  const sizes = createAnswerSizes();
  sizes.learn(batch, 5_000_000);
  expect(sizes.expected({ ...batch, id: 'batch_2' })).toBe(5_000_000);
  expect(sizes.expected({ ...batch, workspace_id: 'ws_2' })).toBe(16_384);
  sizes.learn({ ...batch, model: null }, 6_000_000);
  expect(sizes.expected({ ...batch, model: null, id: 'batch_2' })).toBe(16_384);
});

test('only a limited number of kinds is remembered', () => {
  const sizes = createAnswerSizes();
  for (let index = 0; index <= 1_000; index += 1) sizes.learn({ ...batch, workspace_id: `ws_${index}` }, 1);
  expect(sizes.expected({ ...batch, workspace_id: 'ws_0' })).toBe(16_384);
  expect(sizes.expected({ ...batch, workspace_id: 'ws_1' })).toBe(1);
});

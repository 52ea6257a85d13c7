import { expect, test } from 'vitest';
import { createAttemptCounter } from '../answer-call.ts';
import { describeFaults, parseFaultName } from './faults.ts';
import { hashText } from '../model/hash.ts';

test('every fault of the description is understood by its name', () => {
  const { faults } = describeFaults();
  expect(faults.length).toBeGreaterThan(30);
  for (const { name } of faults) {
    const example = name.replace('NNN', '503').replace(/\bN$/, '2');
    expect({ example, fault: parseFaultName(example) }).toMatchObject({
      fault: { effect: { type: expect.any(String) } },
    });
  }
});

test('occasions are read from the name', () => {
  expect(parseFaultName('sim-fault-hang')).toEqual({ effect: { type: 'hang' }, occasion: { type: 'always' } });
  expect(parseFaultName('sim-fault-reset-then-ok-3')).toEqual({
    effect: { type: 'reset' },
    occasion: { type: 'first', attempts: 3 },
  });
  expect(parseFaultName('sim-fault-5xx-burst')).toMatchObject({ occasion: { type: 'first', attempts: 4 } });
  expect(parseFaultName('sim-flaky-10')).toMatchObject({
    effect: { statuses: [500] },
    occasion: { type: 'flaky', percent: 10 },
  });
  expect(parseFaultName('sim-storm-95')).toMatchObject({
    effect: { statuses: [429] },
    occasion: { type: 'storm', percent: 95 },
  });
  expect(parseFaultName('sim-flaky-10-cut')).toMatchObject({ effect: { type: 'cut' } });
  expect(parseFaultName('sim-fault-slow-drip-20ms')).toMatchObject({ effect: { intervalMs: 20 } });
});

test('a misspelt fault is unknown, an ordinary model has none', () => {
  for (const name of [
    'sim-fault-',
    'sim-fault-429x',
    'sim-fault-300',
    'sim-flaky-',
    'sim-flaky-101',
    'sim-storm-5-no',
  ]) {
    expect([name, parseFaultName(name)]).toEqual([name, 'unknown']);
  }
  for (const name of ['gpt-4o', 'sim-text', 'sim-faultless', ''])
    expect([name, parseFaultName(name)]).toEqual([name, undefined]);
});

test('a flaky prompt fails once and then succeeds, and about so many per cent do', () => {
  const counter = createAttemptCounter({ promptsMax: 10_000 });
  const occasion = { type: 'flaky', percent: 10 } as const;
  let failed = 0;
  for (let index = 0; index < 2_000; index++) {
    const prompt = hashText(`prompt ${index}`);
    if (counter.strike(occasion, prompt) !== undefined) failed++;
    expect(counter.strike(occasion, prompt)).toBeUndefined();
  }
  expect(failed).toBeGreaterThan(140);
  expect(failed).toBeLessThan(260);
});

test('a storm strikes retries too, but every prompt gets through in the end', () => {
  const counter = createAttemptCounter({ promptsMax: 10_000 });
  const calls = Array.from({ length: 200 }, (_, index) => {
    for (let call = 1; ; call++) {
      if (counter.strike({ type: 'storm', percent: 90 }, hashText(`prompt ${index}`)) === undefined) return call;
    }
  });
  expect(calls.reduce((sum, call) => sum + call, 0) / calls.length).toBeGreaterThan(6);
});

test('of too many prompts the oldest is forgotten', () => {
  const counter = createAttemptCounter({ promptsMax: 2 });
  const once = { type: 'first', attempts: 1 } as const;
  expect([1, 2, 1, 3, 1, 2].map((prompt) => counter.strike(once, prompt))).toEqual([1, 1, undefined, 1, undefined, 1]);
});

import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Wait } from '#libs/calls/call.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { createLineWaits, type LineWaits } from './line-waits.ts';

let waits: LineWaits;
let entries: Record<string, unknown>[];

beforeEach(() => {
  vi.useFakeTimers({ now: 0 });
  const test = createTestLogger();
  entries = test.lines;
  waits = createLineWaits({ logger: test.logger, now: Date.now });
  void waits.start?.();
});
afterEach(() => {
  void waits.stop?.();
  vi.useRealTimers();
});

const limited: Wait = { reason: 'rate_limited', label: 'openai', model: 'gpt', untilMs: 90_000 };
const logged = (): unknown[] => entries.map(({ msg }) => msg);

test('what each batch waits for can be asked for: most lines first, with the first end, until the wait is over', () => {
  const ends = [
    waits.begin('batch_1', {
      reason: 'budget_used_up',
      label: 'other',
      model: null,
      untilMs: null,
      budget: 'It is used up.',
    }),
    waits.begin('batch_1', limited),
  ];
  vi.setSystemTime(1_000);
  ends.push(waits.begin('batch_1', { ...limited, untilMs: 95_000.4 }));
  const ofTarget = {
    reason: 'rate_limited',
    label: 'openai',
    model: 'gpt',
    budget: null,
    lines: 2,
    since_ms: 0,
    until_ms: 90_000,
  };
  const ofBudget = {
    reason: 'budget_used_up',
    label: 'other',
    model: null,
    budget: 'It is used up.',
    lines: 1,
    since_ms: 0,
    until_ms: null,
  };
  expect(waits.byBatch()).toEqual([{ batchId: 'batch_1', waits: [ofTarget, ofBudget] }]);
  for (const end of ends) end();
  expect(waits.byBatch()).toEqual([]);
});

test('waiting lines are counted by reason', () => {
  const end = waits.begin('batch_1', limited);
  waits.begin('batch_1', { ...limited, reason: 'retry' });
  expect(waits.counts()).toEqual({
    rate_limited: 1,
    budget_used_up: 0,
    circuit_open: 0,
    provider_busy: 0,
    secret_unavailable: 0,
    retry: 1,
    gateway: 0,
  });
  end();
  expect(waits.counts()).toMatchObject({ rate_limited: 0, retry: 1 });
});

test('a batch whose lines wait is logged once a minute, with what most of them wait for', async () => {
  for (let n = 0; n < 3; n += 1) waits.begin('batch_1', limited);
  waits.begin('batch_1', { ...limited, label: 'other' });
  waits.begin('batch_2', { reason: 'gateway', label: null, model: null, untilMs: null });
  await vi.advanceTimersByTimeAsync(4_000);
  expect(logged()).toEqual([]);
  await vi.advanceTimersByTimeAsync(2_000);
  const both = [
    'batch is waiting: 4 lines are waiting, 3 of them for openai, model gpt (rate_limited until 1970-01-01T00:01:30.000Z)',
    'batch is waiting: 1 lines are waiting, 1 of them for the database (gateway)',
  ];
  expect(logged()).toEqual(both);
  await vi.advanceTimersByTimeAsync(58_000);
  expect(logged()).toEqual(both);
  await vi.advanceTimersByTimeAsync(3_000);
  expect(logged()).toHaveLength(4);
});

test('waits that end and begin again are not logged more often', async () => {
  for (let n = 0; n < 10; n += 1) {
    const end = waits.begin('batch_1', limited);
    await vi.advanceTimersByTimeAsync(5_500);
    end();
  }
  expect(logged()).toHaveLength(1);
});

import { setImmediate } from 'node:timers/promises';
import { pino } from 'pino';
import { expect, onTestFinished, test } from 'vitest';
import { createMemoryCounters } from '#test/memory-counters.ts';
import { one, wholeAmount } from '#libs/kernel/amount.ts';
import type { LimitTerms } from './counter.ts';
import { counterId, type CounterName, type CounterStore } from './counter-store.ts';
import { Limits } from './limits.ts';

const terms: LimitTerms = { max: wholeAmount(1_000), reset: { every: 'week' }, alertAt: null };

function never(): never {
  throw new Error('the draw was refused');
}

const nameOf = (workspaceId: string, valueKey: string): CounterName => {
  const limitId = `policy_of_${workspaceId}`;
  return { id: counterId(limitId, valueKey), workspaceId, limitId, valueKey, kind: 'budget' };
};

async function pass(turns: number): Promise<void> {
  for (let turn = 0; turn < turns; turn += 1) await setImmediate();
}

const upTo = (most: number): number => Math.floor(Math.random() * most);

/** `turns`: how many turns of the event loop the database takes for an answer. */
function start({ turns = () => 0, ...options }: { countersMax?: number; turns?: () => number } = {}) {
  const { store: quick, renewed } = createMemoryCounters();
  const store: CounterStore = {
    async renew(renewals) {
      await pass(turns());
      return await quick.renew(renewals);
    },
  };
  const time = { ms: 0 };
  const limits = new Limits({
    store,
    clock: { now: Date.now },
    logger: pino({ level: 'silent' }),
    onAlertDue: () => {},
    monotonicMs: () => performance.now() + time.ms,
    ...options,
  });
  limits.start();
  onTestFinished(() => limits.stop());
  return { limits, renewed, time };
}

test('a workspace with a thousand new counters does not let the callers of others wait for all of them', async () => {
  const { limits, renewed } = start();
  const crowd = Array.from({ length: 1_000 }, (_value, index) =>
    Promise.resolve(limits.draw(limits.counter(nameOf('crowd', `value ${index}`), terms), one)),
  );
  const draw = await limits.draw(limits.counter(nameOf('other', '*'), terms), one);
  expect(draw).toHaveProperty('amount');
  expect(renewed[0]?.map(({ workspaceId }) => workspaceId)).toContain('other');
  expect(renewed[0]).toHaveLength(200);
  await Promise.all(crowd);
});

test('a caller who waits comes before the reports of thousands of counters of the same workspace', async () => {
  const { limits, renewed, time } = start();
  const crowd = Array.from({ length: 1_000 }, (_value, index) => limits.counter(nameOf('a', `value ${index}`), terms));
  for (const counter of crowd) limits.use(counter, one);
  time.ms += 1_000; // All of them have something to report.
  const asked = Promise.resolve(limits.draw(limits.counter(nameOf('a', 'late'), terms), one));
  expect(await asked).toHaveProperty('amount');
  expect(renewed[0]?.map(({ valueKey }) => valueKey)).toContain('late');
  expect(renewed[0]).toHaveLength(200);
});

test('no call is refused while enough is left, whatever other calls reserve, return or use beyond their estimate', async () => {
  const { limits } = start({ turns: () => upTo(5) });
  const much = { ...terms, max: wholeAmount(1_000_000_000) };
  const refused: unknown[] = [];
  const callRepeatedly = async (value: string): Promise<void> => {
    for (let call = 0; call < 10; call += 1) {
      await pass(upTo(5));
      const counter = limits.counter(nameOf('a', value), much);
      const amount = wholeAmount(1 + upTo(50));
      const draw = await limits.draw(counter, amount);
      await pass(upTo(5));
      if ('reason' in draw) refused.push({ amount, draw });
      else limits.settle(counter, draw, (amount * BigInt(upTo(40))) / 20n);
    }
  };
  // Leases are short at the beginning of a counter's use.
  for (let round = 0; round < 100; round += 1) {
    await Promise.all(Array.from({ length: 20 }, () => callRepeatedly(`value ${round}`)));
  }
  expect(refused).toEqual([]);
});

test('counters that nobody uses are forgotten, those in use are kept, and a late settle is still reported', async () => {
  const { limits, renewed, time } = start();
  const held = limits.counter(nameOf('a', 'held'), terms);
  const left = limits.counter(nameOf('a', 'left'), terms);
  const [heldDraw = never(), leftDraw = never()] = await Promise.all(
    [held, left].map(async (counter) => await limits.draw(counter, one)),
  );
  if ('reason' in heldDraw || 'reason' in leftDraw) return never();
  limits.settle(left, leftDraw, one);
  await expect.poll(() => limits.stats().counters, { timeout: 20_000 }).toBe(2);
  await expect
    .poll(
      () => {
        time.ms += 10_000; // A minute without a call, as far as the process can tell.
        return limits.stats().counters;
      },
      { timeout: 20_000, interval: 100 },
    )
    .toBe(1);
  const before = renewed.length;
  limits.settle(held, heldDraw, one);
  await expect
    .poll(() =>
      renewed
        .slice(before)
        .flat()
        .map(({ valueKey }) => valueKey),
    )
    .toContain('held');
});

test('beyond the most counters, the one that has been idle for longest is forgotten', async () => {
  const { limits } = start({ countersMax: 2 });
  for (const value of ['a', 'b', 'c', 'd']) limits.counter(nameOf('ws', value), terms);
  expect(limits.stats().counters).toBe(2);
});

import { expect, test } from 'vitest';
import { retryDuringOutage } from './retry-during-outage.ts';

const outage = () => Object.assign(new Error('the database system is starting up'), { code: '57P03' });

/** Fails `failures` times, then returns how often it ran. */
function failing(failures: number, error: () => Error = outage) {
  let runs = 0;
  return {
    runs: () => runs,
    work: async () => {
      runs += 1;
      if (runs <= failures) throw error();
      return runs;
    },
  };
}

test('work that fails because of an outage is repeated until the database answers', async () => {
  const logged: unknown[] = [];
  const { work } = failing(3);
  expect(await retryDuringOutage(work, { delayMs: 1, onRetry: (error) => logged.push(error) })).toBe(4);
  expect(logged).toHaveLength(3);
});

test('an error that is no outage is thrown at once', async () => {
  const { work, runs } = failing(1, () => new Error('a bug'));
  await expect(retryDuringOutage(work, { delayMs: 1 })).rejects.toThrow('a bug');
  expect(runs()).toBe(1);
});

test('the caller says which errors are outages', async () => {
  const { work } = failing(1, () => new Error('disk full'));
  const isOutage = (error: unknown) => error instanceof Error && error.message === 'disk full';
  expect(await retryDuringOutage(work, { delayMs: 1, isOutage })).toBe(2);
});

test('delays may grow with the failures, and end the retries', async () => {
  const { work, runs } = failing(9);
  const asked: number[] = [];
  const delayMs = (failures: number) => {
    asked.push(failures);
    return failures < 3 ? 1 : undefined;
  };
  await expect(retryDuringOutage(work, { delayMs })).rejects.toThrow('starting up');
  expect(asked).toEqual([1, 2, 3]);
  expect(runs()).toBe(3);
});

test('an abort ends the wait, and the work is tried one last time', async () => {
  const stop = new AbortController();
  const { work, runs } = failing(9);
  const options = { delayMs: 3_600_000, signal: stop.signal, onRetry: () => stop.abort() };
  await expect(retryDuringOutage(work, options)).rejects.toThrow('starting up');
  expect(runs()).toBe(2);
});

import { expect, test } from 'vitest';
import { sleep } from './sleep.ts';

test('a wait longer than the longest timer does not end at once', async () => {
  const controller = new AbortController();
  let isOver = false;
  const waiting = sleep(2 ** 31, controller.signal).then(() => {
    isOver = true;
  });
  await sleep(20);
  expect(isOver).toBe(false);
  controller.abort();
  await waiting;
});

test.each([0, 1])('a wait of %s ms ends', async (ms) => {
  await expect(sleep(ms)).resolves.toBeUndefined();
});

test('no wait ends early by a part of a millisecond', async () => {
  for (let wait = 0; wait < 200; wait += 1) {
    const begun = performance.now();
    await sleep(1);
    expect(performance.now() - begun).toBeGreaterThanOrEqual(1);
  }
});

import { expect, onTestFinished, test } from 'vitest';
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

test('a wait whose end has passed is over, without a warning of Node', async () => {
  const warnings: Error[] = [];
  const keep = (warning: Error): void => void warnings.push(warning);
  process.on('warning', keep);
  onTestFinished(() => void process.off('warning', keep));
  await sleep(-5_000.5);
  await sleep(1);
  expect(warnings).toEqual([]);
});

test('no wait ends early by a part of a millisecond', async () => {
  for (let wait = 0; wait < 200; wait += 1) {
    const begun = performance.now();
    await sleep(1);
    expect(performance.now() - begun).toBeGreaterThanOrEqual(1);
  }
});

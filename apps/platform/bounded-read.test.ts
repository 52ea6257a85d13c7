import { expect, test } from 'vitest';
import { createBoundedRead } from './bounded-read.ts';

function setUp(options: { waitMs?: number } = {}) {
  const at = { ms: 0 };
  const reads: PromiseWithResolvers<string>[] = [];
  const read = createBoundedRead(
    () => {
      const one = Promise.withResolvers<string>();
      reads.push(one);
      return one.promise;
    },
    { everyMs: 1_000, waitMs: options.waitMs ?? 60_000, monotonicMs: () => at.ms },
  );
  return { at, reads, read };
}

test('a thousand who ask cost one read, and a second later one more', async () => {
  const { at, reads, read } = setUp();
  const asked = Array.from({ length: 1_000 }, () => read());
  reads[0]?.resolve('first');
  expect(new Set((await Promise.all(asked)).map(({ value }) => value))).toEqual(new Set(['first']));
  at.ms = 999;
  expect(await read()).toEqual({ value: 'first', isCurrent: true });
  expect(reads).toHaveLength(1);
  at.ms = 1_000;
  const again = read();
  reads[1]?.resolve('second');
  expect(await again).toEqual({ value: 'second', isCurrent: true });
});

test('who asks while a read hangs gets the last value, told as such, and begins no other read', async () => {
  const { at, reads, read } = setUp({ waitMs: 20 });
  const first = read();
  reads[0]?.resolve('first');
  await first;
  at.ms = 5_000;
  expect(await read()).toEqual({ value: 'first', isCurrent: false });
  at.ms = 10_000;
  expect(await read()).toEqual({ value: 'first', isCurrent: false });
  expect(reads).toHaveLength(2);
  reads[1]?.resolve('late');
  await expect.poll(async () => (await read()).value).toBe('late');
});

test('a read that fails is not current, and is tried again when its time has come', async () => {
  const { at, reads, read } = setUp();
  const failing = read();
  reads[0]?.reject(new Error('no database'));
  expect(await failing).toEqual({ value: undefined, isCurrent: false });
  at.ms = 1_000;
  const again = read();
  reads[1]?.resolve('there');
  expect(await again).toEqual({ value: 'there', isCurrent: true });
});

import { getEventListeners } from 'node:events';
import { expect, test } from 'vitest';
import { untilAborted } from './until-aborted.ts';

const never = new Promise<string>(() => {});

test('work that ends first gives its result or its error, and leaves no listener', async () => {
  const { signal } = new AbortController();
  expect(await untilAborted(Promise.resolve('done'), signal, () => 'late')).toBe('done');
  await expect(untilAborted(Promise.reject(new Error('failed')), signal, () => 'late')).rejects.toThrow('failed');
  expect(getEventListeners(signal, 'abort')).toEqual([]);
});

test('an abort ends the wait for work that hangs', async () => {
  const stop = new AbortController();
  const waiting = untilAborted(never, stop.signal, () => 'late');
  stop.abort();
  expect(await waiting).toBe('late');
});

test('a signal that has aborted before ends the wait at once, also by an error', async () => {
  const refuse = () => {
    throw new Error('too late');
  };
  await expect(untilAborted(never, AbortSignal.abort(), refuse)).rejects.toThrow('too late');
});

test('an error after the abort is ignored', async () => {
  const { promise, reject } = Promise.withResolvers<string>();
  expect(await untilAborted(promise, AbortSignal.abort(), () => 'late')).toBe('late');
  reject(new Error('nobody handles this'));
  await new Promise((resolve) => void setImmediate(resolve));
});

import { expect, test, vi } from 'vitest';
import { CallAbort, toAbortSignal } from './call-signal.ts';

const reason = new Error('the client left');
const listen = () => ({ handleEvent: vi.fn<() => void>() });

test('an abort reaches every listener once, with the first reason', () => {
  const abort = new CallAbort();
  const [first, second] = [listen(), listen()];
  abort.addEventListener('abort', first);
  abort.addEventListener('abort', second);
  abort.abort(reason);
  abort.abort(new Error('later'));
  expect(first.handleEvent).toHaveBeenCalledOnce();
  expect(second.handleEvent).toHaveBeenCalledOnce();
  expect(abort).toMatchObject({ aborted: true, reason });
  expect(() => abort.throwIfAborted()).toThrow(reason);
});

test('a listener that was removed, or came after the abort, is not called', () => {
  const abort = new CallAbort();
  const [first, removed, last, late] = [listen(), listen(), listen(), listen()];
  for (const listener of [first, removed, last]) abort.addEventListener('abort', listener);
  abort.removeEventListener('abort', removed);
  abort.removeEventListener('abort', removed);
  abort.throwIfAborted();
  abort.abort(reason);
  abort.addEventListener('abort', late);
  expect(first.handleEvent).toHaveBeenCalledOnce();
  expect(last.handleEvent).toHaveBeenCalledOnce();
  expect(removed.handleEvent).not.toHaveBeenCalled();
  expect(late.handleEvent).not.toHaveBeenCalled();
});

test('its AbortSignal aborts with the same reason, whenever it is requested', () => {
  const abort = new CallAbort();
  const before = toAbortSignal(abort);
  const combined = AbortSignal.any([before, new AbortController().signal]);
  abort.abort(reason);
  expect(before).toMatchObject({ aborted: true, reason });
  expect(combined).toMatchObject({ aborted: true, reason });
  expect(toAbortSignal(abort)).toBe(before);

  const aborted = new CallAbort();
  aborted.abort(reason);
  expect(toAbortSignal(aborted)).toMatchObject({ aborted: true, reason });
});

test('an AbortSignal is its own AbortSignal', () => {
  const { signal } = new AbortController();
  expect(toAbortSignal(signal)).toBe(signal);
});

test('it follows a signal, which can already be aborted, until it stops following', () => {
  const [followed, ended] = [new AbortController(), new AbortController()];
  const abort = new CallAbort();
  abort.follow(ended.signal)();
  ended.abort();
  expect(abort.aborted).toBe(false);
  abort.follow(followed.signal);
  followed.abort(reason);
  expect(abort).toMatchObject({ aborted: true, reason });

  const late = new CallAbort();
  late.follow(followed.signal);
  expect(late).toMatchObject({ aborted: true, reason });
});

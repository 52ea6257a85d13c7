import { IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { watchUploadRate } from './watch-upload-rate.ts';

let request: IncomingMessage;
let errors: unknown[];

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  request = new IncomingMessage(new Socket());
  errors = [];
  watchUploadRate(request, { bytesPerSecondMin: 1_024, windowMs: 30_000 }, (error) => errors.push(error));
});
afterEach(() => {
  vi.useRealTimers();
});

const come = (sizeBytes: number): boolean => request.emit('data', Buffer.alloc(sizeBytes));
const tooSlow: unknown = expect.objectContaining({ kind: 'invalid_request', code: 'request_timeout' });

test('a body that comes a byte a second is reported once', () => {
  for (let second = 0; second < 90; second += 1) {
    come(1);
    vi.advanceTimersByTime(1_000);
  }
  expect(errors).toEqual([tooSlow]);
});

test('a body that comes in bursts is not, as long as each window has enough', () => {
  for (let window = 0; window < 10; window += 1) {
    come(30_720);
    vi.advanceTimersByTime(30_000);
  }
  expect(errors).toEqual([]);
  vi.advanceTimersByTime(30_000);
  expect(errors).toEqual([tooSlow]);
});

test('while whoever takes the bytes is the slow one, the client is not to blame', () => {
  request.pause();
  vi.advanceTimersByTime(90_000);
  expect(errors).toEqual([]);
  request.resume();
  vi.advanceTimersByTime(30_000);
  expect(errors).toEqual([tooSlow]);
});

test('nothing is reported of a body that has come to its end', () => {
  request.emit('end');
  vi.advanceTimersByTime(90_000);
  expect(errors).toEqual([]);
  expect(vi.getTimerCount()).toBe(0);
});

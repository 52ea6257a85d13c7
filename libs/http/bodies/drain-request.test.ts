import type { IncomingMessage, ServerResponse } from 'node:http';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { drainThenEnd } from './drain-request.ts';
import { exchange, serveForTest, testRoute } from '../http-test-kit.ts';

beforeEach(() => vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] }));
afterEach(() => vi.useRealTimers());

const mebibyte = 1_048_576;

/** Waits until only timers are pending. */
async function quiet(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

test('of a refused body a part is read at a time, so that who sends it at full speed costs others little', async () => {
  const headers = { 'content-length': String(3 * mebibyte) };
  const request = Object.assign(new PassThrough({ highWaterMark: 10 * mebibyte }), { headers, complete: false });
  const ended = vi.fn();
  const response = { write: vi.fn(), end: ended };
  let read = 0;
  request.on('data', ({ length }: Buffer) => (read += length));
  request.pause();
  for (let sent = 0; sent < 3 * mebibyte; sent += 65_536) request.write(Buffer.alloc(65_536));
  request.end();
  drainThenEnd(request as unknown as IncomingMessage, response as unknown as ServerResponse, Buffer.from('no'), {
    isSlow: false,
  });
  for (const mebibytes of [1, 2]) {
    await quiet();
    expect([read, request.isPaused()]).toEqual([mebibytes * mebibyte, true]);
    expect(ended).not.toHaveBeenCalled();
    vi.advanceTimersByTime(1_000);
  }
  await quiet();
  expect(read).toBe(3 * mebibyte);
  expect(ended).toHaveBeenCalledOnce();
});

test('a client that sends megabytes after it was refused gets its answer all the same', async () => {
  vi.useRealTimers();
  const route = testRoute({
    method: 'POST',
    path: '/v1/x',
    request: { body: 'json-bytes' },
    handler: (_request, response) => void response.json({}),
  });
  await using server = await serveForTest([route]);
  const body = 'x'.repeat(2_500_000);
  const head = 'POST /v1/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\nConnection: close\r\n';
  const answer = await exchange(server.port, `${head}Content-Length: ${body.length}\r\n\r\n${body}`);
  expect(answer).toMatch(/^HTTP\/1\.1 401 [^]*"code":"invalid_api_key"/);
});

import { randomInt } from 'node:crypto';
import { connect } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { eventually } from '#test/eventually.ts';
import type { Upstream, UpstreamScript } from '#test/upstream.ts';
import { startApiProcess } from './api-process.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';

// An error that nobody listens for ends the process, so these calls go to a process of their own.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let upstream: Upstream;
let baseUrl: string;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ upstream } = scripted);
});
afterAll(() => scripted.stop());

const oddAnswers: UpstreamScript[] = [
  (reply) => reply.reset(),
  (reply) => reply.cut(),
  (reply) => reply.json(500, { error: { message: 'x' } }),
  (reply) => reply.raw('HTTP/1.1 204 No Content\r\n\r\n'),
  (reply) => reply.raw('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'),
  (reply) => reply.raw('HTTP/1.1 304 Not Modified\r\n\r\n'),
  (reply) => reply.raw('HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n'),
  (reply) => reply.raw('HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}'),
  (reply) => reply.raw('HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{}and more than was said'),
  (reply) => reply.raw('HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n'),
  (reply) => reply.raw('not HTTP at all\r\n\r\n'),
  (reply) => reply.raw('HTTP/1.1 200 OK\r\nx-ratelimit-x: \x01\r\ncontent-length: 2\r\n\r\n{}'),
  (reply) => reply.raw('HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}'),
  async (reply) => {
    await reply.raw('HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n');
    await reply.raw(Buffer.alloc(50_000));
    reply.reset();
  },
  async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    for (let n = 0; n < 20; n += 1) {
      await reply.write(`data: {"n":${n}}\n\n`);
      await sleep(2);
    }
    reply.cut();
  },
  async (reply) => {
    reply.head(200, { 'content-type': 'audio/mpeg' });
    for (let n = 0; n < 100 && !reply.isClosed(); n += 1) await reply.write(Buffer.alloc(50_000));
    reply.end();
  },
];

const heads = [
  ['POST /v1/moderations', 'content-type: application/json', '{"model":"any","input":"Hi"}'],
  ['POST /v1/responses', 'content-type: application/json', '{"model":"any","input":"Hi","stream":true}'],
  ['POST /v1/audio/transcriptions', 'content-type: multipart/form-data; boundary=x', 'x'.repeat(200_000)],
  ['POST /v1/images/edits', 'content-type: multipart/form-data; boundary=x', 'x'.repeat(3_000_000)],
  ['POST /v1/images/edits', 'expect: 100-continue\r\ncontent-type: multipart/form-data; boundary=x', 'x'.repeat(9_000)],
  ['DELETE /v1/responses/resp_1', 'accept: */*', ''],
  ['HEAD /v1/responses/resp_1', 'accept: */*', ''],
  ['GET /v1/threads/t_1/messages?limit=2', 'accept: */*', ''],
  ['POST /v1/threads', 'content-type: application/json', ''],
] as const;

/** One client of its own: sends in some framing, perhaps less than it said, and leaves or resets at some moment. */
async function oddCall(number: number): Promise<void> {
  const { hostname, port } = new URL(baseUrl);
  const [line, header, body] = heads[number % heads.length] ?? heads[0];
  const socket = connect(Number(port), hostname);
  socket.on('error', () => {}); // a reset by either side is what this is about
  const closed = new Promise<void>((resolve) => socket.once('close', () => resolve()));
  if (number % 5 !== 0) socket.resume();
  const isChunked = number % 3 === 0;
  const framing =
    body === '' ? '' : isChunked ? 'transfer-encoding: chunked\r\n' : `content-length: ${body.length}\r\n`;
  const common = `host: x\r\nauthorization: Bearer ${scripted.platform.adminKey}\r\nx-gateway-virtual-key: scripted\r\n`;
  socket.write(`${line} HTTP/1.1\r\n${common}${framing}${header}\r\n\r\n`);
  const sent = number % 4 === 0 ? body.slice(0, body.length / 2) : body;
  if (isChunked && sent !== '')
    socket.write(`${sent.length.toString(16)}\r\n${sent}\r\n${sent === body ? '0\r\n\r\n' : ''}`);
  else socket.write(sent);
  await Promise.race([closed, sleep(randomInt(120))]);
  if (number % 2 === 0) socket.resetAndDestroy();
  else socket.destroy();
  await closed;
}

test('hundreds of relayed calls that break off anywhere leave the process alive and nothing open', async () => {
  baseUrl = await startApiProcess(scripted.platform);
  upstream.script((reply, request) => oddAnswers[randomInt(oddAnswers.length)]?.(reply, request));
  const numbers = Array.from({ length: 360 }, (_, index) => index);
  for (let from = 0; from < numbers.length; from += 24) {
    await Promise.all(numbers.slice(from, from + 24).map(oddCall));
  }
  upstream.script((reply) => reply.json(200, { id: 'modr-1', results: [] }));
  const process = { ...scripted.platform, baseUrl };
  for (let n = 0; n < 5; n += 1) {
    const response = await postJson(process, '/moderations', { model: '@scripted/m', input: 'Hi' });
    expect(response.status).toBe(200);
    await response.text();
  }
  const openCalls = async (): Promise<string> => {
    const metrics = await (await fetch(`${baseUrl.replace('/v1', '')}/metrics`)).text();
    return metrics
      .split('\n')
      .filter((row) => /^sluice_forwarding_open_calls|^sluice_provider_queue\{what="in_flight"/.test(row))
      .map((row) => row.split(' ').at(-1))
      .join();
  };
  await eventually(openCalls, (open) => open === '0,0', { timeoutMs: 10_000 });
}, 60_000);

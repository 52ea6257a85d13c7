import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, request as send, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { missingS3, startS3, type S3Server } from '#test/s3-server.ts';
import { createS3BlobStore } from './s3-blob-store.ts';

// Faults of the network and of the server, by a proxy in front of a real server.

type Fault = 'slow_down' | 'stall' | 'lose_answer' | 'wrong_etag' | 'cut_body' | null;

const missing = missingS3('moto');
let server: S3Server;
beforeAll(async () => {
  if (missing === null) server = await startS3('moto');
}, 60_000);
afterAll(() => server?.stop());

/** A store behind a proxy that `choose` gives the fault of each request. */
async function openFaulty(choose: (request: IncomingMessage) => Fault) {
  const proxy = createServer((request, response) => {
    // A client that gives up cuts its request off.
    relay(request, response, choose(request)).catch(() => response.destroy());
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  onTestFinished(() => {
    proxy.closeAllConnections();
    proxy.close();
  });
  const endpoint = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  return createS3BlobStore({ ...server.options, endpoint, idleTimeoutMs: 500 });
}

async function relay(request: IncomingMessage, response: ServerResponse, fault: Fault): Promise<void> {
  if (fault === 'stall') return; // Reads nothing and answers nothing.
  const body = await buffer(request);
  if (fault === 'slow_down') {
    response.writeHead(503, { 'content-type': 'application/xml' });
    response.end('<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>');
    return;
  }
  const { method, url, headers } = request;
  const upstream = send(new URL(url ?? '', server.endpoint), { method, headers });
  upstream.end(body);
  const [answer] = (await once(upstream, 'response')) as [IncomingMessage];
  const bytes = await buffer(answer);
  if (fault === 'lose_answer') return void response.destroy();
  response.writeHead(answer.statusCode ?? 500, {
    ...answer.headers,
    ...(fault === 'wrong_etag' ? { etag: `"${'0'.repeat(32)}"` } : {}),
  });
  if (fault !== 'cut_body') return void response.end(bytes);
  response.write(bytes.subarray(0, bytes.length / 2));
  await delay(20);
  response.destroy();
}

const isPart = ({ method, url = '' }: IncomingMessage): boolean => method === 'PUT' && url.includes('partNumber=');
const isCompletion = ({ method, url = '' }: IncomingMessage): boolean => method === 'POST' && url.includes('uploadId=');
const content = randomBytes(20_000_000);
const putContent = (store: Awaited<ReturnType<typeof openFaulty>>) =>
  store.put(Readable.from([content.subarray(0, 9_000_000), content.subarray(9_000_000)]));

const firstOf = (matches: (request: IncomingMessage) => boolean, fault: Fault) => {
  let isDone = false;
  return (request: IncomingMessage): Fault => {
    if (isDone || !matches(request)) return null;
    isDone = true;
    return fault;
  };
};

test.for<[string, (request: IncomingMessage) => boolean, Fault]>([
  ['a part that is refused with SlowDown', isPart, 'slow_down'],
  ['a part that stalls', isPart, 'stall'],
  ['a part whose answer is lost', isPart, 'lose_answer'],
  ['a completion whose answer is lost', isCompletion, 'lose_answer'],
])('%s is repeated, and the blob is complete', async ([, matches, fault], context) => {
  if (missing !== null) context.skip(missing);
  const store = await openFaulty(firstOf(matches, fault));
  const { blob, sizeBytes } = await putContent(store);
  expect(sizeBytes).toBe(content.length);
  expect(content.equals(await buffer(await store.read(blob)))).toBe(true);
});

test('a server that refuses or ignores every part makes the upload unavailable, and nothing is left', async (context) => {
  if (missing !== null) context.skip(missing);
  const failing = (['slow_down', 'stall'] as const).map(async (fault) => {
    const store = await openFaulty((request) => (isPart(request) ? fault : null));
    await expect(putContent(store)).rejects.toMatchObject({ kind: 'unavailable', code: 'storage_unavailable' });
    return store;
  });
  for (const store of await Promise.all(failing)) {
    expect(await store.sweep({ olderThanMs: -86_400_000, findReferenced: async (names) => new Set(names) })).toEqual({
      blobsRemoved: 0,
      partialsRemoved: 0,
    });
  }
});

test('the server copies the parts of a joined blob, which are read once and not sent', async (context) => {
  if (missing !== null) context.skip(missing);
  const isCopy = ({ headers }: IncomingMessage): boolean => headers['x-amz-copy-source'] !== undefined;
  const loseFirst = firstOf(isCopy, 'lose_answer');
  let [sentBytes, reads] = [0, 0];
  const store = await openFaulty((request) => {
    sentBytes += Number(request.headers['content-length'] ?? 0);
    if (request.method === 'GET' && /blobs\/[0-9a-f]{32}/.test(request.url ?? '')) reads += 1;
    return loseFirst(request);
  });
  const halves = [content.subarray(0, 9_000_000), content.subarray(9_000_000)];
  const parts = await Promise.all(halves.map((half) => store.put(Readable.from([half]))));
  sentBytes = 0;
  const { blob } = await store.join(parts);
  expect({ isSmall: sentBytes < 10_000, reads }).toEqual({ isSmall: true, reads: 2 });
  expect(content.equals(await buffer(await store.read(blob)))).toBe(true);
});

test('writers of large blobs wait for the memory budget, and return what they held', async (context) => {
  if (missing !== null) context.skip(missing);
  const memory = createMemoryBudget(67_108_864, { graceMs: 60_000 });
  const store = await createS3BlobStore({ ...server.options, memory });
  const large = content.subarray(0, 5_000_000);
  const [first, second, third] = await Promise.all([store.openWriter(), store.openWriter(), store.openWriter()]);
  await store.put(Readable.from([content.subarray(0, 1_000_000)]));
  expect(memory.stats()).toMatchObject({ heldBytes: 0 });
  await first.write(large);
  await second.write(large);
  let isWritten = false;
  const written = third.write(large).then(() => (isWritten = true));
  await vi.waitFor(() => expect(memory.stats()).toMatchObject({ heldBytes: 2 * 25_165_824, waiting: 1 }));
  expect(isWritten).toBe(false);
  await first.commit();
  await written;
  await Promise.all([second.abort(), third.commit()]);
  expect(memory.stats()).toMatchObject({ heldBytes: 0, waiting: 0 });
});

test('a wrong ETag of a part never becomes a blob', async (context) => {
  if (missing !== null) context.skip(missing);
  const store = await openFaulty(firstOf(isPart, 'wrong_etag'));
  const before = await Readable.from(store.list()).toArray();
  await expect(putContent(store)).rejects.toMatchObject({ kind: 'unavailable' });
  expect(await Readable.from(store.list()).toArray()).toEqual(before);
});

test('a read that is interrupted resumes, and one that never gets further ends', async (context) => {
  if (missing !== null) context.skip(missing);
  const isRead = ({ method, url = '' }: IncomingMessage): boolean =>
    method === 'GET' && /blobs\/[0-9a-f]{32}/.test(url);
  const store = await openFaulty(firstOf(isRead, 'cut_body'));
  const { blob } = await putContent(store);
  expect(content.equals(await buffer(await store.read(blob)))).toBe(true);
  const hanging = await openFaulty((request) => (isRead(request) ? 'stall' : null));
  await expect(hanging.read(blob)).rejects.toMatchObject({ kind: 'unavailable' });
});

test('a process whose clock is days ahead sweeps nothing that was just written', async (context) => {
  if (missing !== null) context.skip(missing);
  const store = await createS3BlobStore(server.options);
  const { blob } = await store.put(Readable.from([Buffer.from('new')]));
  const ahead = Date.now() + 3 * 86_400_000;
  const clock = vi.spyOn(Date, 'now').mockImplementation(() => ahead);
  onTestFinished(() => clock.mockRestore());
  await store.sweep({ olderThanMs: 86_400_000, findReferenced: async () => new Set<string>() });
  expect(await store.sizeOf(blob)).toBe(3);
});

import { connect } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { HttpAppDeps } from './create-http-app.ts';
import { createBodyMemory, type BodyMemory } from './body-memory.ts';
import { authenticateForTest, serveForTest, testRoute, type TestServer } from './http-test-kit.ts';

let memory: BodyMemory;
let server: TestServer;
let answers: (() => void)[];
let authenticated: Promise<void>;

beforeEach(async () => {
  memory = createBodyMemory(1_000_000);
  answers = [];
  authenticated = Promise.resolve();
  const route = testRoute({
    method: 'POST',
    path: '/v1/hold',
    request: { body: 'json-bytes' },
    handler: async (_request, response) => {
      await new Promise<void>((resolve) => answers.push(resolve));
      response.json({});
    },
  });
  const authenticate: HttpAppDeps['authenticate'] = (request) => authenticated.then(() => authenticateForTest(request));
  const deps = { jsonBody: { memory }, authenticate };
  server = await serveForTest([route], { deps });
});
afterEach(async () => {
  await server[Symbol.asyncDispose]();
});

const headers = { authorization: 'Bearer all', 'content-type': 'application/json' };
const text = (sizeBytes: number): string => JSON.stringify('x'.repeat(sizeBytes - 2));
const post = (sizeBytes: number): Promise<Response> =>
  fetch(`${server.url}/v1/hold`, { method: 'POST', headers, body: text(sizeBytes) });
const held = (sizeBytes: number): Promise<void> => vi.waitFor(() => expect(memory.heldBytes()).toBe(sizeBytes));

test('a body counts until its answer is sent', async () => {
  const [first, second] = [post(300_000), post(500_000)];
  await held(800_000);
  await vi.waitFor(() => expect(answers).toHaveLength(2));
  for (const answer of answers) answer();
  expect((await first).status).toBe(200);
  expect((await second).status).toBe(200);
  await held(0);
});

test('one for which there is no room is refused, to be tried again after a second, and holds nothing', async () => {
  void post(600_000).catch(() => {});
  await held(600_000);
  const refused = await post(500_000);
  expect(refused.status).toBe(503);
  expect(refused.headers.get('retry-after')).toBe('1');
  expect(await refused.json()).toMatchObject({ error: { code: 'server_overloaded' } });
  await held(600_000);
  answers.shift()?.();
  await held(0);
  void post(500_000).catch(() => {});
  await held(500_000);
});

test('the last eighth is for small bodies, until that is full too', async () => {
  void post(800_000).catch(() => {});
  await held(800_000);
  expect((await post(80_000)).status).toBe(503);
  for (let index = 1; index <= 3; index += 1) {
    void post(60_000).catch(() => {});
    await held(800_000 + index * 60_000);
  }
  expect((await post(60_000)).status).toBe(503);
});

test('a body that comes alone is held, however large', async () => {
  void post(2_000_000).catch(() => {});
  await held(2_000_000);
  expect((await post(100)).status).toBe(503);
});

test('a body that does not tell its length counts as it comes', async () => {
  void post(600_000).catch(() => {});
  await held(600_000);
  const body = new Blob([text(500_000)]).stream();
  const refused = await fetch(`${server.url}/v1/hold`, {
    method: 'POST',
    headers,
    body,
    duplex: 'half',
  });
  expect(refused.status).toBe(503);
  await held(600_000);
});

test('a client that leaves in the middle of its body holds nothing any more', async () => {
  const socket = connect(server.port, '127.0.0.1');
  socket.write(
    'POST /v1/hold HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer all\r\nContent-Type: application/json\r\n' +
      'Content-Length: 700000\r\n\r\n"abc',
  );
  await held(700_000);
  socket.destroy();
  await held(0);
});

test('a client that left before its key was looked up holds nothing', async () => {
  const found = Promise.withResolvers<void>();
  authenticated = found.promise;
  const socket = connect(server.port, '127.0.0.1');
  socket.write(
    'POST /v1/hold HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer all\r\nContent-Type: application/json\r\n' +
      'Content-Length: 700000\r\n\r\n"abc',
  );
  await new Promise((resolve) => setTimeout(resolve, 50));
  socket.destroy();
  await vi.waitFor(() => expect(server.lines.some(({ msg }) => msg === 'request ended')).toBe(true));
  found.resolve();
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(memory.heldBytes()).toBe(0);
});

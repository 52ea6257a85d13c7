import { connect } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { HttpAppDeps } from '../create-http-app.ts';
import { createMemoryBudget, type MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { getJsonBody } from './json-body.ts';
import { authenticateForTest, serveForTest, testRoute, type TestServer } from '../http-test-kit.ts';

let memory: MemoryBudget;
let server: TestServer;
let answers: (() => void)[];
let authenticated: Promise<void>;

beforeEach(async () => {
  memory = createMemoryBudget(4_000_000);
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
  const authenticate: HttpAppDeps['authenticate'] = (request) =>
    authenticated.then(() => {
      const isOther = request.headers.authorization === 'Bearer other';
      const caller = authenticateForTest({ headers: { authorization: 'Bearer all' } });
      return isOther ? { ...caller, workspaceId: 'ws_2' } : caller;
    });
  const deps = { jsonBody: { memory }, authenticate };
  server = await serveForTest([route], { deps });
});
afterEach(async () => {
  await server[Symbol.asyncDispose]();
});

const headers = { authorization: 'Bearer all', 'content-type': 'application/json' };
const text = (sizeBytes: number): string => JSON.stringify('x'.repeat(sizeBytes - 2));
const postText = (body: string, key = 'all'): Promise<Response> =>
  fetch(`${server.url}/v1/hold`, { method: 'POST', headers: { ...headers, authorization: `Bearer ${key}` }, body });
const post = (sizeBytes: number, key?: string): Promise<Response> => postText(text(sizeBytes), key);
/** A body of one string, and its value: slightly more than twice its bytes. */
const held = (sizeBytes: number): Promise<void> =>
  vi.waitFor(() => {
    const { heldBytes } = memory.stats();
    expect(heldBytes).toBeGreaterThanOrEqual(2 * sizeBytes);
    expect(heldBytes).toBeLessThan(2 * sizeBytes + 1_000);
  });

test('bodies that come faster than the pace of their workspace arrive whole, and those of others at once', async () => {
  const lengths: number[] = [];
  const route = testRoute({
    method: 'POST',
    path: '/v1/length',
    request: { body: 'json-bytes' },
    handler: (request, response) => {
      lengths.push(getJsonBody(request).bytes.length);
      response.json({});
    },
  });
  await using paced = await serveForTest([route], { deps: { bodyBytesPerSecond: 5_000_000 } });
  const send = (sizeBytes: number): Promise<Response> =>
    fetch(`${paced.url}/v1/length`, { method: 'POST', headers, body: text(sizeBytes) });
  const large = [3_000_000, 3_000_000, 3_000_000].map(send);
  await vi.waitFor(async () => expect((await send(100_000)).status).toBe(200));
  expect(lengths).toEqual([100_000]);
  expect((await Promise.all(large)).map(({ status }) => status)).toEqual([200, 200, 200]);
  expect(lengths).toEqual([100_000, 3_000_000, 3_000_000, 3_000_000]);
});

test.each([
  ['empty objects', `[${'{},'.repeat(60_000)}{}]`],
  ['empty lists in lists', `[${`${'['.repeat(50)}${']'.repeat(50)},`.repeat(2_000)}1]`],
  ['numbers', `[${'1,'.repeat(400_000)}1]`],
  ['small objects', `[${'{"a":1},'.repeat(50_000)}1]`],
])('a body that would keep all others waiting while it is parsed is refused: %s', async (_what, body) => {
  const answer = await postText(body);
  expect([answer.status, await answer.json()]).toMatchObject([400, { error: { code: 'json_too_complex' } }]);
});

test('what a long body breaks is reported without its place, which would take far longer to find', async () => {
  const answer = await postText(`${'\n'.repeat(1_000_000)}x`);
  const error = { code: 'invalid_json', message: expect.stringContaining('too long (1000001 bytes)') as string };
  expect([answer.status, await answer.json()]).toMatchObject([400, { error }]);
});

test('a body counts with its parsed value until its answer is sent', async () => {
  const [first, second] = [post(300_000), post(500_000)];
  await held(800_000);
  await vi.waitFor(() => expect(answers).toHaveLength(2));
  for (const answer of answers) answer();
  expect((await first).status).toBe(200);
  expect((await second).status).toBe(200);
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(0));
});

test('one for which there is no room is refused, to be tried again after a second, and holds nothing', async () => {
  void post(900_000).catch(() => {});
  await held(900_000);
  const refused = await post(800_000);
  expect(refused.status).toBe(503);
  expect(refused.headers.get('retry-after')).toBe('1');
  expect(await refused.json()).toMatchObject({ error: { code: 'server_overloaded' } });
  await held(900_000);
  answers.shift()?.();
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(0));
  void post(800_000).catch(() => {});
  await held(800_000);
});

test('calls of another workspace, and small ones, find room beside the large ones of one', async () => {
  for (let index = 1; index <= 3; index += 1) {
    void post(400_000).catch(() => {});
    await held(400_000 * index);
  }
  expect((await post(400_000)).status).toBe(503);
  const [small, other] = [post(10_000), post(100_000, 'other')];
  await vi.waitFor(() => expect(answers).toHaveLength(5));
  for (const answer of answers) answer();
  expect([(await small).status, (await other).status]).toEqual([200, 200]);
});

test('a body whose values would take more memory than a request may ever have is refused for good', async () => {
  const refused = await postText(`[${'{},'.repeat(50_000)}{}]`);
  expect(refused.status).toBe(413);
  expect(await refused.json()).toMatchObject({ error: { code: 'request_too_complex' } });
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(0));
});

test('a body of small objects counts as what it becomes, not as its bytes', async () => {
  void postText(`[${'{},'.repeat(20_000)}{}]`).catch(() => {});
  await vi.waitFor(() => expect(answers).toHaveLength(1));
  expect(memory.stats().heldBytes).toBeGreaterThan(20 * 60_000);
});

test('a body that does not tell its length counts as it comes', async () => {
  void post(900_000).catch(() => {});
  await held(900_000);
  const body = new Blob([text(1_500_000)]).stream();
  const refused = await fetch(`${server.url}/v1/hold`, { method: 'POST', headers, body, duplex: 'half' });
  expect(refused.status).toBe(503);
  await held(900_000);
});

const beginsBody =
  'POST /v1/hold HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer all\r\nContent-Type: application/json\r\n' +
  'Content-Length: 700000\r\n\r\n';

test('a client that only tells of a large body holds little, and nothing when it leaves in the middle', async () => {
  const socket = connect(server.port, '127.0.0.1');
  socket.write(`${beginsBody}"abc`);
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(65_536));
  socket.write('x'.repeat(200_000));
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(200_004));
  socket.destroy();
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(0));
});

test('a client that left before its key was looked up holds nothing', async () => {
  const found = Promise.withResolvers<void>();
  authenticated = found.promise;
  const socket = connect(server.port, '127.0.0.1');
  socket.write(`${beginsBody}"abc`);
  await new Promise((resolve) => setTimeout(resolve, 50));
  socket.destroy();
  await vi.waitFor(() => expect(server.lines.some(({ msg }) => msg === 'request ended')).toBe(true));
  found.resolve();
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(memory.stats().heldBytes).toBe(0);
});

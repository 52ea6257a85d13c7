import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import { serveForTest, testRoute, type TestServer } from '#libs/http/http-test-kit.ts';
import { createMemoryBudget, type MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createBodyCheck } from '#libs/validation/lines/check-body.ts';
import { createLargeBodies } from './large-bodies.ts';

const path = '/v1/chat/completions';
const requireGoodBody = createBodyCheck(path);
const route = testRoute({
  method: 'POST',
  path,
  request: { body: 'json-bytes', contract: path },
  handler: (request, response) => {
    const body = getJsonBody(request);
    const { isChecked, head } = body;
    if (!isChecked) requireGoodBody(body.value);
    const { model, stream, stream_options } = head ?? {};
    response.json({ head: { model, stream, stream_options }, text: body.bytes.toString(), value: body.value });
  },
});

const largeBodies = createLargeBodies({ threads: 2 });
let memory: MemoryBudget;
/** The first server has the threads, and the other has none. */
let server: TestServer;
let plain: TestServer;

beforeAll(() => vi.setConfig({ testTimeout: 60_000 }));
beforeEach(async () => {
  memory = createMemoryBudget(200_000_000);
  server = await serveForTest([route], { deps: { jsonBody: { memory, largeBodies } } });
  plain = await serveForTest([route], { deps: { jsonBody: { memory } } });
});
afterEach(async () => {
  await server[Symbol.asyncDispose]();
  await plain[Symbol.asyncDispose]();
});
afterAll(() => largeBodies.stop());

async function post({ url }: TestServer, body: Buffer | string, signal?: AbortSignal): Promise<unknown[]> {
  const headers = { authorization: 'Bearer all', 'content-type': 'application/json' };
  const answer = await fetch(`${url}${path}`, {
    method: 'POST',
    headers,
    body: typeof body === 'string' ? body : new Uint8Array(body),
    ...(signal ? { signal } : {}),
  });
  return [answer.status, await answer.json()];
}

const text = 'žluťoučký "kůň" \\ '.repeat(20_000);
const user = { role: 'user', content: text };
const chat = (more: object = {}): string => JSON.stringify({ model: 'm', messages: [user], ...more });
const large = 300_000;
const mebibyte = 1_048_576;
const changed = (body: string, from: string, to: string): string => body.replace(from, to);

test.each<[string, Buffer | string, number]>([
  ['a chat', chat(), 200],
  [
    'one with all that decides how it is forwarded',
    chat({ stream: true, stream_options: { include_usage: true } }),
    200,
  ],
  ['one with line ends around it', `${'\n'.repeat(large)}${chat()}\n`, 200],
  [
    'many small messages',
    chat({ messages: Array.from({ length: 9_000 }, () => ({ role: 'user', content: 'Hello.' })) }),
    200,
  ],
  ['what is no object', JSON.stringify([text]), 400],
  ['what is not JSON', `${chat()}x`, 400],
  ['what ends too early', chat().slice(0, -1), 400],
  ['what begins with a byte order mark', `\uFEFF${chat()}`, 400],
  ['what is not UTF-8', Buffer.concat([Buffer.alloc(large, ' '), Buffer.from([0xff])]), 400],
  ['what is nested too deeply', chat({ x: Array.from({ length: 70 }).reduce((inner) => [inner], 1) }), 400],
  ['too many members', `{"x":{${'"a":1,'.repeat(110_000)}"b":1}}`, 400],
  ['too many values', `{"x":[${'{},'.repeat(100_000)}1]}`, 400],
  ['a member given twice', changed(chat(), '"messages"', '"model":"n","messages"'), 400],
  ['what the contract refuses', chat({ temperature: 3 }), 400],
  ['what a rule across members refuses', chat({ top_logprobs: 2 }), 400],
  ['thousands of bad messages', chat({ messages: Array.from({ length: 15_000 }, () => ({ role: 'nobody' })) }), 400],
])('a large body is checked like a small one, and in a thread like anywhere: %s', async (_what, body, status) => {
  const large = [Buffer.from(body), Buffer.concat([Buffer.from(body), Buffer.alloc(mebibyte, '\n')])];
  for (const bytes of large) {
    const answer = await post(server, bytes);
    expect(answer).toEqual(await post(plain, bytes));
    expect(answer[0]).toBe(status);
    await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(0));
  }
});

const messages = (count: number, content: string): string =>
  chat({ messages: Array.from({ length: count }, () => ({ role: 'user', content })) });

test.each([
  ['a few long messages', messages(40, 'x'.repeat(10_000)), 0],
  ['a quarter of a MiB of messages', messages(10_000, '').slice(0, 262_144), 0],
  ['more of them', messages(10_000, ''), 1],
  ['a few messages of a MiB', messages(4, 'x'.repeat(mebibyte / 4)), 1],
  ['many values that are not JSON', '[1],'.repeat(100_000), 1],
])('a body is moved to a thread because of its work, or its size: %s', async (_what, body, moved) => {
  const { begun } = largeBodies.stats();
  expect(await post(server, body)).toEqual(await post(plain, body));
  expect(largeBodies.stats().begun).toBe(begun + moved);
});

test('a large body of unknown length is checked like any other', async () => {
  const body = messages(40, text.slice(0, 10_000));
  const send = async ({ url }: TestServer): Promise<unknown> => {
    const headers = { authorization: 'Bearer all', 'content-type': 'application/json' };
    const stream = new Blob([body]).stream();
    return (await fetch(`${url}${path}`, { method: 'POST', headers, body: stream, duplex: 'half' })).json();
  };
  expect(await send(server)).toEqual(await send(plain));
});

test('a large body counts with its parsed value, and is refused where a request may not hold so much', async () => {
  await using tight = await serveForTest([route], {
    deps: { jsonBody: { memory: createMemoryBudget(2_000_000), largeBodies } },
  });
  const [status, answer] = await post(tight, chat({ x: Array.from({ length: 20_000 }, () => ({})) }));
  expect([status, answer]).toMatchObject([413, { error: { code: 'request_too_complex' } }]);
});

test('a client that leaves while its large body waits for a thread holds nothing', async () => {
  const waits = Promise.withResolvers<AbortSignal>();
  const never: typeof largeBodies = {
    ...largeBodies,
    judge: (_task, { signal }) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
        waits.resolve(signal);
      }),
  };
  await using busy = await serveForTest([route], { deps: { jsonBody: { memory, largeBodies: never } } });
  const leaving = new AbortController();
  const answer = post(busy, chat(), leaving.signal).catch(() => 'left');
  const signal = await waits.promise;
  expect(memory.stats().heldBytes).toBeGreaterThan(large);
  leaving.abort();
  expect(await answer).toBe('left');
  await vi.waitFor(() => expect(signal.aborted).toBe(true));
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(0));
  expect(busy.lines.filter(({ level }) => Number(level) > 30)).toEqual([]);
});

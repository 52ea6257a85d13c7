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
let judged: number;

beforeAll(() => vi.setConfig({ testTimeout: 60_000 }));
beforeEach(async () => {
  judged = 0;
  memory = createMemoryBudget(200_000_000);
  const counted: typeof largeBodies = {
    ...largeBodies,
    judge(task, caller) {
      judged += 1;
      return largeBodies.judge(task, caller);
    },
  };
  server = await serveForTest([route], { deps: { jsonBody: { memory, largeBodies: counted } } });
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
])('a thread judges a large body as a small one is judged: %s', async (_what, body, status) => {
  const answer = await post(server, body);
  expect(judged).toBe(1);
  expect(answer).toEqual(await post(plain, body));
  expect(answer[0]).toBe(status);
  await vi.waitFor(() => expect(memory.stats().heldBytes).toBe(0));
});

test('a body of a quarter of a MiB is judged where it is', async () => {
  const around = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: '' }] });
  const body = around.replace('""', `"${'x'.repeat(262_144 - around.length)}"`);
  expect((await post(server, body))[0]).toBe(200);
  expect(judged).toBe(0);
  expect((await post(server, `${body} `))[0]).toBe(200);
  expect(judged).toBe(1);
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

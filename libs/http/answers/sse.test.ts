import { connect } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import OpenAI from 'openai';
import OpenAI6 from 'openai6';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { GatewayError } from '#libs/kernel/errors.ts';
import { abortWhenClientLeaves } from '../client-signal.ts';
import { createTestLogger, exchange, serveForTest, testRoute, type TestServer } from '../http-test-kit.ts';
import { sendEventStream, type EventStreamOutcome } from './sse.ts';

type Source = (signal: AbortSignal) => AsyncGenerator<readonly string[]>;
let source: Source;
let outcomes: EventStreamOutcome[] = [];
let onLogged = (): void => {};
let server: TestServer;

beforeAll(async () => {
  const { logger } = createTestLogger();
  const error = (...args: Parameters<typeof logger.error>): void => {
    onLogged();
    logger.error(...args);
  };
  server = await serveForTest([
    testRoute({
      method: 'POST',
      path: '/v1/chat/completions',
      scope: 'public',
      request: { body: 'json-bytes' },
      handler: async (request, response) => {
        const controller = abortWhenClientLeaves(response);
        const options = {
          controller,
          logger: { ...logger, error } as typeof logger,
          heartbeatMs: 30,
          stallTimeoutMs: 200,
        };
        outcomes.push(await sendEventStream(request, response, source(controller.signal), options));
      },
    }),
  ]);
});
afterAll(() => server[Symbol.asyncDispose]());

const chunkOf = (content: string): string =>
  JSON.stringify({
    id: 'c',
    object: 'chat.completion.chunk',
    created: 1,
    model: 'm',
    choices: [{ index: 0, delta: { content }, finish_reason: null }],
  });
const requestText = 'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}';
const post = (): Promise<Response> =>
  fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    body: '{}',
    headers: { 'content-type': 'application/json' },
  });

/** Resolves when the signal aborts, like a source that waits for its provider. */
const aborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));

test('events, [DONE] and the end come in order, one write for each batch', async () => {
  source = async function* () {
    yield ['{"a":1}', '{"b":"ž"}'];
    yield [];
    await nextTurn(); // Node joins what is written in one turn.
    yield ['{\r\n"c":\r2\n}'];
    await nextTurn();
  };
  const raw = Buffer.from(await exchange(server.port, requestText), 'latin1').toString();
  const [head = '', ...rest] = raw.split('\r\n\r\n');
  expect(head).toMatch(/^HTTP\/1\.1 200 OK/);
  expect(head.toLowerCase()).toContain('content-type: text/event-stream; charset=utf-8');
  expect(head.toLowerCase()).toContain('cache-control: no-cache');
  expect(head.toLowerCase()).toContain('x-accel-buffering: no');
  const chunks = rest
    .join('\r\n\r\n')
    .split(/\r?\n?[0-9a-f]+\r\n/)
    .filter((chunk) => chunk.trim() !== '');
  expect(chunks).toEqual([
    'data: {"a":1}\n\ndata: {"b":"ž"}\n\n',
    'data: {\ndata: "c":\ndata: 2\ndata: }\n\n',
    'data: [DONE]\n\n',
  ]);
});

const clients = [
  ['openai 7', () => new OpenAI({ apiKey: 'k', baseURL: `${server.url}/v1`, maxRetries: 0 })],
  ['openai 6', () => new OpenAI6({ apiKey: 'k', baseURL: `${server.url}/v1`, maxRetries: 0 }) as unknown as OpenAI],
] as const;
const ask = { model: 'm', messages: [{ role: 'user' as const, content: 'hi' }], stream: true as const };

test.each(clients)('%s reads a whole stream', async (_name, makeClient) => {
  source = async function* () {
    for (const word of ['one ', 'two ', 'three']) yield [chunkOf(word)];
  };
  let text = '';
  for await (const chunk of await makeClient().chat.completions.create(ask))
    text += chunk.choices[0]?.delta.content ?? '';
  expect(text).toBe('one two three');
});

test.each(clients)('%s gets an error when the source fails, and never sees [DONE]', async (_name, makeClient) => {
  source = async function* () {
    yield [chunkOf('one')];
    throw new GatewayError('provider_failed', 'stream_interrupted', 'The provider broke off its answer.');
  };
  const stream = await makeClient().chat.completions.create(ask);
  const read = async (): Promise<void> => {
    for await (const _chunk of stream);
  };
  await expect(read()).rejects.toMatchObject({ code: 'stream_interrupted', type: 'server_error' });
  const text = await (await post()).text();
  expect(text).toMatch(
    /\ndata: \{"error":\{"message":"The provider broke off its answer\.","type":"server_error","param":null,"code":"stream_interrupted"\}\}\n\n$/,
  );
  expect(text).not.toContain('[DONE]');
});

test('the text of a bug is not streamed', async () => {
  source = async function* () {
    yield [chunkOf('one')];
    throw new TypeError('secret detail');
  };
  const text = await (await post()).text();
  expect(text).toContain('"code":"internal_error"');
  expect(text).not.toContain('secret detail');
});

test('a bug while the error of a stream is written cuts the connection and ends no process', async () => {
  source = async function* () {
    yield [chunkOf('one')];
    throw new TypeError('first bug');
  };
  onLogged = () => {
    throw new TypeError('second bug');
  };
  onTestFinished(() => {
    onLogged = () => {};
  });
  const response = await post();
  await expect(response.text()).rejects.toThrow('terminated');
});

test('a silent source is covered by comments', async () => {
  let release = (): void => {};
  const released = new Promise<void>((resolve) => (release = resolve));
  source = async function* () {
    await released;
    yield ['{}'];
  };
  let text = '';
  for await (const part of (await post()).body ?? []) {
    text += Buffer.from(part as Uint8Array).toString();
    if (text.split(': keep-alive\n\n').length > 2) release();
  }
  expect(text).toMatch(/^(?:: keep-alive\n\n){2,}data: \{\}\n\ndata: \[DONE\]\n\n$/);
});

test('a client that leaves aborts the source, and a source that ignores it is left behind', async () => {
  for (const stopsInTime of [true, false]) {
    outcomes = [];
    let isAborted = false;
    source = async function* (signal) {
      yield ['{}'];
      await aborted(signal);
      isAborted = true;
      if (!stopsInTime) await new Promise(() => {});
      throw new Error('aborted');
    };
    const socket = connect(server.port, '127.0.0.1', () => socket.write(requestText));
    socket.once('data', () => socket.destroy());
    await expect.poll(() => outcomes).toEqual(['disconnected']);
    expect(isAborted).toBe(true);
  }
});

test('a reader that stalls is cut off, and the source is not read ahead of it', async () => {
  outcomes = [];
  let given = 0;
  let signalled: AbortSignal | null = null;
  source = async function* (signal) {
    signalled = signal;
    for (;;) {
      given += 1;
      yield ['x'.repeat(100_000)];
    }
  };
  const socket = connect(server.port, '127.0.0.1', () => socket.write(requestText));
  socket.pause();
  socket.on('error', () => {});
  await expect.poll(() => outcomes, { timeout: 3_000 }).toEqual(['stalled']);
  expect(signalled).toMatchObject({ aborted: true });
  expect(given).toBeLessThan(200); // This is the content of the kernel's socket buffers, not the endless rest.
  socket.destroy();
});

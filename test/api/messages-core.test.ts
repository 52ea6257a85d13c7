import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { completion, payloads } from '#test/forwarding-rig.ts';
import type { TestPlatform } from '#test/platform.ts';
import { streamOf, type Upstream, type UpstreamScript } from '#test/upstream.ts';
import { ended, resultsOf, toJsonl, uploadInput } from './batch-kit.ts';
import { postJson, startScriptedPlatform, storeVirtualKey } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

// What the core does with messages on a provider that has OpenAI's format.

const sdk = sdks[0] as Sdk;
let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  await storeVirtualKey(platform, 'claude', upstream.url.href, 'anthropic');
});
afterAll(() => scripted.stop());

let questions = 0;
const ask = (more: object = {}) => {
  questions += 1;
  return { model: '@scripted/m', max_tokens: 50, messages: [{ role: 'user', content: `Why ${questions}?` }], ...more };
};
const send = (body: object, config?: object, headers: Record<string, string> = {}): Promise<Response> =>
  postJson(platform, '/messages', body, {
    ...(config === undefined ? {} : { 'x-gateway-config': JSON.stringify(config) }),
    ...headers,
  });
const say =
  (content: string, headers: Record<string, string> = {}): UpstreamScript =>
  (reply) =>
    reply.json(200, { ...completion, choices: [{ index: 0, message: { role: 'assistant', content } }] }, headers);

type Message = { content: { type: string; text: string }[]; usage: Record<string, number>; stop_reason: string };
/** The names of a stream's events, and the text in them. */
async function read(response: Response): Promise<{ types: string[]; text: string }> {
  const events = (await response.text()).split('\n\n').filter((event) => event.startsWith('event: '));
  const types = events.map((event) => /^event: (\w+)/.exec(event)?.[1] ?? '');
  const parsed = events.map(
    (event) => JSON.parse(event.slice(event.indexOf('data: ') + 6)) as { delta?: { text?: string } },
  );
  return { types, text: parsed.map(({ delta }) => delta?.text ?? '').join('') };
}
const whole = ['message_start', 'content_block_start', 'content_block_delta', 'content_block_stop'];

describe('a plan', () => {
  test('falls back from Claude to a model of another kind, in the client’s format', async () => {
    const overloaded: UpstreamScript = (reply) =>
      reply.json(529, { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } });
    upstream.script([overloaded, say('from the other')]);
    const seen = upstream.requests.length;
    const thought = { type: 'thinking', thinking: 'hm', signature: 'EqQB' };
    const body = ask({
      model: 'any',
      messages: [
        { role: 'user', content: 'One' },
        { role: 'assistant', content: [thought, { type: 'text', text: 'Two' }] },
        { role: 'user', content: 'Three' },
      ],
    });
    const config = {
      strategy: { mode: 'fallback' },
      targets: [
        { virtual_key: 'claude', override_params: { model: 'claude-x' } },
        { virtual_key: 'scripted', override_params: { model: 'gpt-x' } },
      ],
    };
    const response = await send(body, config);
    expect([response.status, response.headers.get('x-gateway-dropped-params')]).toEqual([200, 'reasoning']);
    expect(await response.json()).toMatchObject({ type: 'message', content: [{ text: 'from the other' }] });
    const [first, second] = upstream.requests
      .slice(seen)
      .map(({ path, body: sent }) => [path, JSON.parse(sent.toString())] as const);
    expect(first).toMatchObject([expect.stringMatching(/\/messages$/), { model: 'claude-x' }]);
    expect(first?.[1]).toMatchObject({ messages: body.messages });
    expect(second).toMatchObject([expect.stringMatching(/\/chat\/completions$/), { model: 'gpt-x' }]);
    expect(JSON.stringify(second?.[1])).not.toContain('hm');
  });

  test('moves a conversation from another model to Claude without the reasoning that Claude would reject', async () => {
    const answer = {
      id: 'msg_1',
      type: 'message',
      role: 'assistant',
      model: 'claude-x',
      content: [],
      stop_reason: 'end_turn',
      usage: { input_tokens: 1, output_tokens: 1 },
    };
    upstream.script((reply) => reply.json(200, answer));
    const messages = [
      { role: 'user', content: 'One' },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'hm', signature: 'sluice.openai-compatible.' },
          { type: 'text', text: 'Two' },
        ],
      },
      { role: 'user', content: 'Three' },
    ];
    const response = await send(ask({ model: '@claude/claude-x', messages }));
    expect([response.status, response.headers.get('x-gateway-dropped-params')]).toEqual([200, 'reasoning']);
    expect(upstream.requests.at(-1)?.body.toString()).not.toContain('sluice.');
  });
});

test('a large answer, which is read in a thread, is translated too', async () => {
  const text = 'word '.repeat(100_000);
  upstream.script(say(text));
  const message = (await (await send(ask())).json()) as Message;
  expect(message).toMatchObject({ type: 'message', content: [{ type: 'text', text }] });
});

describe('a stream', () => {
  test('is in the client’s format, and recorded with its usage', async () => {
    upstream.script(streamOf(payloads));
    const response = await send(ask({ stream: true }), undefined, { 'x-gateway-trace-id': 'translated-stream' });
    const { types } = await read(response);
    expect(types[0]).toBe('message_start');
    expect(types.slice(-2)).toEqual(['message_delta', 'message_stop']);
    const list = async () => {
      const headers = { authorization: `Bearer ${platform.adminKey}` };
      const found = await fetch(`${platform.baseUrl}/logs?trace_id=translated-stream`, { headers });
      return ((await found.json()) as { data: Record<string, unknown>[] }).data;
    };
    expect(await eventually(list, (rows) => rows.length > 0)).toMatchObject([
      { operation: 'messages', stream: true, finish_reason: 'end_turn', usage: { input_tokens: 3, output_tokens: 2 } },
    ]);
  });

  test('has the events of an answer that the provider did not stream', async () => {
    upstream.script(say('in one piece'));
    const { types, text } = await read(await send(ask({ stream: true })));
    expect([types, text]).toEqual([[...whole, 'message_delta', 'message_stop'], 'in one piece']);
  });

  test('that breaks off ends with an error in the client’s format', async () => {
    upstream.script(async (reply) => {
      reply.head(200, { 'content-type': 'text/event-stream' });
      await reply.write(`data: ${payloads[0]}\n\ndata: ${payloads[1]}\n\n`);
      reply.cut();
    });
    const response = await send(ask({ stream: true }));
    const text = await response.text();
    expect(text).toMatch(/event: error\ndata: \{"type":"error","error":\{"type":"api_error",[^\n]*\n\n$/);
    expect(text).not.toContain('message_stop');
  });
});

describe('the cache', () => {
  const config = { cache: { mode: 'simple', max_age: 60 } };
  const statusOf = (response: Response): string | null => response.headers.get('x-gateway-cache-status');

  test('answers with the same message, and streams it too', async () => {
    upstream.script(say('cached'));
    const body = ask();
    const first = await send(body, config);
    const firstMessage = (await first.json()) as Message;
    const again = await send(body, config);
    expect([statusOf(first), statusOf(again)]).toEqual(['MISS', 'HIT']);
    expect(await again.json()).toEqual(firstMessage);
    const streamed = await send({ ...body, stream: true }, config);
    expect(statusOf(streamed)).toBe('HIT');
    expect(await read(streamed)).toEqual({ types: [...whole, 'message_delta', 'message_stop'], text: 'cached' });
  });

  test('keeps a stream, event for event', async () => {
    upstream.script(streamOf(payloads));
    const body = ask({ stream: true });
    const first = await (await send(body, config)).text();
    const again = await send(body, config);
    expect([statusOf(again), await again.text()]).toEqual(['HIT', first]);
  });
});

describe('guardrails', () => {
  const noApples = { 'default.contains': { operator: 'none', words: ['Apple'] }, deny: true };

  test('read the request', async () => {
    const seen = upstream.requests.length;
    const body = ask({ system: [{ type: 'text', text: 'Apple' }] });
    expect((await send(body, { input_guardrails: [noApples] })).status).toBe(446);
    expect(upstream.requests).toHaveLength(seen);
  });

  test('read the answer, streamed or not', async () => {
    upstream.script(say('An Apple.'));
    for (const stream of [false, true]) {
      const response = await send(ask({ stream }), { output_guardrails: [noApples] });
      expect(response.status).toBe(446);
      expect(await response.text()).not.toContain('content_block');
    }
  });

  test('read why a model refuses', async () => {
    const refused = { role: 'assistant', content: null, refusal: 'No Apple.' };
    upstream.script((reply) => reply.json(200, { ...completion, choices: [{ index: 0, message: refused }] }));
    expect((await send(ask(), { output_guardrails: [noApples] })).status).toBe(446);
  });
});

test('rate limits have the names that clients of Anthropic read', async () => {
  upstream.script(
    say('limited', {
      'x-ratelimit-limit-requests': '60',
      'x-ratelimit-remaining-requests': '59',
      'x-ratelimit-reset-requests': '1s',
    }),
  );
  const { headers } = await send(ask());
  expect(headers.get('anthropic-ratelimit-requests-limit')).toBe('60');
  expect(headers.get('anthropic-ratelimit-requests-remaining')).toBe('59');
  const resetMs = Date.parse(headers.get('anthropic-ratelimit-requests-reset') ?? '');
  expect(Math.abs(resetMs - Date.now())).toBeLessThan(60_000);
});

test('parameters that the provider lacks are named, or refused if the config says so', async () => {
  upstream.script(say('fine'));
  const body = ask({ top_k: 3, context_management: { edits: [{ type: 'clear_tool_uses_20250919' }] } });
  expect((await send(body)).headers.get('x-gateway-dropped-params')).toBe('top_k, context_management');
  const refused = await send(body, { unsupported_params: 'refuse' });
  expect([refused.status, await refused.json()]).toMatchObject([
    400,
    { type: 'error', error: { type: 'invalid_request_error', code: 'unsupported_parameter' } },
  ]);
});

describe('a batch', () => {
  test('of messages runs at a provider that has only chat', async () => {
    await platform.startWorker();
    upstream.script(say('a line'));
    const client: Client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    const line = { custom_id: 'one', method: 'POST', url: '/v1/messages', body: ask() };
    const wrong = { custom_id: 'two', method: 'POST', url: '/v1/messages', body: ask({ container: 'c1' }) };
    const batch = await client.batches.create({
      input_file_id: await uploadInput(sdk, client, toJsonl([line, wrong])),
      endpoint: '/v1/messages' as '/v1/chat/completions',
      completion_window: '24h',
    });
    const { output, errors } = await resultsOf(client, await ended(client, batch));
    expect(output).toMatchObject([
      { custom_id: 'one', response: { status_code: 200, body: { type: 'message', content: [{ text: 'a line' }] } } },
    ]);
    expect(JSON.stringify(errors)).toContain('container');
  });
});

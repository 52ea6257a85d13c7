import Anthropic from '@anthropic-ai/sdk';
import { GoogleGenAI } from '@google/genai';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { streamOf, type UpstreamScript } from '#test/upstream.ts';
import { postJson, startScriptedPlatform, storeVirtualKey, type ScriptedPlatform } from './scripted-provider.ts';

// The stream of a first provider breaks off, and a second one follows: each official client reads one answer.

let scripted: ScriptedPlatform;
let openai: OpenAI;
let anthropic: Anthropic;
let google: GoogleGenAI;

/** The first has only chat completions. */
const wires = ['deepseek', 'openai', 'anthropic', 'gemini'];

beforeAll(async () => {
  scripted = await startScriptedPlatform();
  const { platform, upstream } = scripted;
  for (const provider of wires) await storeVirtualKey(platform, `first-${provider}`, upstream.url.href, provider);
  const { origin } = new URL(platform.baseUrl);
  openai = new OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
  anthropic = new Anthropic({ apiKey: platform.adminKey, baseURL: origin, maxRetries: 0 });
  google = new GoogleGenAI({ apiKey: platform.adminKey, httpOptions: { baseUrl: origin } });
});
afterAll(() => scripted.stop());

type Headers = Record<string, string>;
const prompt = 'Tell a story.';

/** Streams an answer with each client, and returns its text and its last request's turns as the second provider got them. */
const clients: Record<string, (headers: Headers) => Promise<string>> = {
  'chat completions': async (headers) => {
    const messages = [{ role: 'user' as const, content: prompt }];
    const whole = await openai.chat.completions.stream({ model: 'm', messages }, { headers }).finalChatCompletion();
    return whole.choices[0]?.message.content ?? '';
  },
  Responses: async (headers) => {
    const whole = await openai.responses.stream({ model: 'm', input: prompt }, { headers }).finalResponse();
    // A failed response is returned, not thrown.
    if (whole.status !== 'completed') throw new Error(`the response ended ${whole.status}`);
    return whole.output_text;
  },
  Messages: async (headers) => {
    const messages = [{ role: 'user' as const, content: prompt }];
    const whole = await anthropic.messages.stream({ model: 'm', max_tokens: 99, messages }, { headers }).finalMessage();
    return whole.content.map((block) => (block.type === 'text' ? block.text : '')).join('');
  },
  Gemini: async (headers) => {
    const config = { httpOptions: { headers } };
    const stream = await google.models.generateContentStream({ model: 'm', contents: prompt, config });
    let text = '';
    for await (const piece of stream) text += piece.text ?? '';
    return text;
  },
};

const chunk = (delta: object, finish: string | null = null): object => ({
  id: 'chatcmpl-1',
  object: 'chat.completion.chunk',
  created: 1,
  model: 'm',
  choices: [{ index: 0, delta, finish_reason: finish }],
});
const inChat = {
  reasoning: [chunk({ role: 'assistant', content: '' }), chunk({ reasoning_content: 'hm' })],
  text: [chunk({ content: 'Once' }), chunk({ content: ' upon' })],
};
const delta = (type: string, members: object, more: object): object => ({
  type: `response.${type}`,
  ...members,
  ...more,
});
const ofItem = (item: object, output_index: number): object => delta('output_item.added', { output_index }, { item });

/** What a provider streams before it breaks off: reasoning, and text after that. */
const begun: Record<string, { reasoning: object[]; text: object[] }> = {
  deepseek: inChat,
  openai: {
    reasoning: [
      { type: 'response.created', sequence_number: 0, response: { id: 'resp_1', object: 'response', output: [] } },
      ofItem({ id: 'rs_1', type: 'reasoning', summary: [] }, 0),
      delta(
        'reasoning_summary_part.added',
        { item_id: 'rs_1', output_index: 0, summary_index: 0 },
        { part: { type: 'summary_text', text: '' } },
      ),
      delta('reasoning_summary_text.delta', { item_id: 'rs_1', output_index: 0, summary_index: 0 }, { delta: 'hm' }),
    ],
    text: [
      delta('output_item.done', { output_index: 0 }, { item: { id: 'rs_1', type: 'reasoning', summary: [] } }),
      ofItem({ id: 'msg_1', type: 'message', role: 'assistant', status: 'in_progress', content: [] }, 1),
      delta(
        'content_part.added',
        { item_id: 'msg_1', output_index: 1, content_index: 0 },
        { part: { type: 'output_text', text: '', annotations: [] } },
      ),
      ...['Once', ' upon'].map((text) =>
        delta('output_text.delta', { item_id: 'msg_1', output_index: 1, content_index: 0 }, { delta: text }),
      ),
    ],
  },
  anthropic: {
    reasoning: [
      {
        type: 'message_start',
        message: {
          id: 'msg_1',
          type: 'message',
          role: 'assistant',
          model: 'm',
          content: [],
          usage: { input_tokens: 1 },
        },
      },
      { type: 'content_block_start', index: 0, content_block: { type: 'thinking', thinking: '', signature: '' } },
      { type: 'content_block_delta', index: 0, delta: { type: 'thinking_delta', thinking: 'hm' } },
    ],
    text: [
      { type: 'content_block_stop', index: 0 },
      { type: 'content_block_start', index: 1, content_block: { type: 'text', text: '' } },
      ...['Once', ' upon'].map((text) => ({
        type: 'content_block_delta',
        index: 1,
        delta: { type: 'text_delta', text },
      })),
    ],
  },
  gemini: {
    reasoning: [{ candidates: [{ content: { parts: [{ text: 'hm', thought: true }] } }], responseId: 'g' }],
    text: ['Once', ' upon'].map((text) => ({ candidates: [{ content: { parts: [{ text }] } }], responseId: 'g' })),
  },
};

/** Breaks off in the middle, without an end. */
const broken =
  (payloads: readonly object[]): UpstreamScript =>
  async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    for (const payload of payloads) await reply.write(`data: ${JSON.stringify(payload)}\n\n`);
    reply.end();
  };

const rest = [
  chunk({ role: 'assistant', content: '' }),
  chunk({ reasoning_content: 'so' }),
  chunk({ content: ' a time.' }),
  chunk({}, 'stop'),
  { ...chunk({}), choices: [], usage: { prompt_tokens: 5, completion_tokens: 3, total_tokens: 8 } },
];

/** The dialects in which a provider streams itself; from others, the stream is translated. */
const pairs = Object.keys(clients).flatMap((client) =>
  wires.filter((wire) => wire !== 'openai' || client === 'Responses').map((wire) => ({ client, wire })),
);

describe.each(pairs)('$client, after a stream of $wire', ({ client, wire }) => {
  const ask = async (payloads: readonly object[], strategy: object, traceId: string): Promise<string> => {
    const { upstream } = scripted;
    upstream.script([broken(payloads), streamOf(rest.map((payload) => JSON.stringify(payload)))]);
    const targets = [{ virtual_key: `first-${wire}` }, { virtual_key: 'first-deepseek' }];
    const config = JSON.stringify({ strategy: { mode: 'fallback', ...strategy }, targets });
    return (await clients[client]?.({ 'x-gateway-config': config, 'x-gateway-trace-id': traceId })) ?? '';
  };
  const { reasoning, text } = begun[wire] ?? inChat;
  const row = async (traceId: string) => {
    const find = async () => {
      const headers = { authorization: `Bearer ${scripted.platform.adminKey}` };
      const found = await fetch(`${scripted.platform.baseUrl}/logs?trace_id=${traceId}`, { headers });
      return ((await found.json()) as { data: object[] }).data;
    };
    return (await eventually(find, (rows) => rows.length > 0))[0];
  };

  test('the next target answers if only reasoning was seen', async () => {
    const traceId = `reasoning ${client} ${wire}`;
    expect(await ask(reasoning, {}, traceId)).toBe(' a time.');
    expect(await row(traceId)).toMatchObject({ status: 200, fallbacks: 1 });
  });

  test('the next target continues the text if the config says so', async () => {
    const seen = scripted.upstream.requests.length;
    const traceId = `text ${client} ${wire}`;
    expect(await ask([...reasoning, ...text], { continue_streams: true }, traceId)).toBe('Once upon a time.');
    const { messages } = JSON.parse(scripted.upstream.requests[seen + 1]?.body.toString() ?? '') as {
      messages: object[];
    };
    expect(messages).toMatchObject([
      { role: 'user', content: prompt },
      { role: 'assistant', content: 'Once upon' },
      { role: 'user', content: expect.stringContaining('cut off') },
    ]);
    expect(await row(traceId)).toMatchObject({ status: 200, attempts: 2, fallbacks: 1, is_estimate: true });
  });

  test('otherwise, a stream that breaks off in its text ends with an error', async () => {
    const seen = scripted.upstream.requests.length;
    await expect(ask([...reasoning, ...text], {}, `error ${client} ${wire}`)).rejects.toThrow(
      /ended|closed|broke|without/i,
    );
    expect(scripted.upstream.requests).toHaveLength(seen + 1);
  });
});

test('a third target gets the text of both streams before it', async () => {
  const { upstream } = scripted;
  const seen = upstream.requests.length;
  const second = broken([chunk({ role: 'assistant', content: '' }), chunk({ content: ' a' })]);
  const third = streamOf([chunk({ content: ' time.' }), chunk({}, 'stop')].map((payload) => JSON.stringify(payload)));
  upstream.script([broken([...inChat.reasoning, ...inChat.text]), second, third]);
  const targets = ['deepseek', 'deepseek', 'deepseek'].map((wire) => ({ virtual_key: `first-${wire}` }));
  const config = JSON.stringify({ strategy: { mode: 'fallback', continue_streams: true }, targets });
  expect(await clients['chat completions']?.({ 'x-gateway-config': config })).toBe('Once upon a time.');
  const { messages } = JSON.parse(upstream.requests[seen + 2]?.body.toString() ?? '') as { messages: object[] };
  expect(messages).toMatchObject([
    { content: prompt },
    { role: 'assistant', content: 'Once upon' },
    { role: 'user' },
    { role: 'assistant', content: ' a' },
    { role: 'user' },
  ]);
});

test('a stream that showed a tool call is not continued', async () => {
  const call = { index: 0, id: 'c', type: 'function', function: { name: 'f', arguments: '{' } };
  const { upstream, platform } = scripted;
  const seen = upstream.requests.length;
  upstream.script(broken([...inChat.reasoning, chunk({ tool_calls: [call] })]));
  const targets = [{ virtual_key: 'scripted' }, { virtual_key: 'scripted' }];
  const config = JSON.stringify({ strategy: { mode: 'fallback', continue_streams: true }, targets });
  const body = { model: 'm', messages: [{ role: 'user', content: prompt }], stream: true };
  const text = await (await postJson(platform, '/chat/completions', body, { 'x-gateway-config': config })).text();
  expect(text).toContain('"error"');
  expect(text).not.toContain('[DONE]');
  expect(upstream.requests).toHaveLength(seen + 1);
});

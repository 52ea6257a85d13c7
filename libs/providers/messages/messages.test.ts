import { describe, expect, test } from 'vitest';
import { translationCall, upstreamAt } from '#test/translation-call.ts';
import { bedrock } from '../bedrock/index.ts';
import { findTranslation } from '../dialects.ts';
import { gemini } from '../gemini/index.ts';
import { openAiCompatible } from '../openai-compatible.ts';
import type { Call, Provider } from '../provider.ts';
import type { Choice } from '../turns/answer.ts';
import { decodeMessageRequest } from './decode-request.ts';
import { encodeMessage } from './encode-answer.ts';
import { messagesDialect } from './index.ts';

const hi = { role: 'user', content: 'Hi' };
const callOf = (body: object, more: Partial<Call> = {}): Call =>
  translationCall(
    { model: 'm', max_tokens: 50, messages: [hi], ...body },
    { operation: 'messages', dialect: messagesDialect, strict: false, ...more },
  );
const chatOnly = openAiCompatible({ id: 'plain', baseUrl: 'https://plain.example/v1' });

function sentTo(provider: Provider, body: object, more: Partial<Call> = {}) {
  const call = callOf(body, more);
  const sent = findTranslation(provider, 'messages', call.model)?.encode(call, upstreamAt('https://x.example/v1'));
  const json = JSON.parse(Buffer.from(sent?.body as Uint8Array).toString()) as Record<string, unknown>;
  return { body: json, dropped: sent?.dropped ?? [] };
}

describe('a request', () => {
  test('becomes one of chat completions, with every part in its place', () => {
    const png = 'iVBORw0KGgo=';
    const { body, dropped } = sentTo(chatOnly, {
      system: [
        { type: 'text', text: 'x-anthropic-billing-header: cc_version=2' },
        { type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } },
      ],
      messages: [
        { role: 'user', content: [{ type: 'text', text: 'What is it?' }, image(png)] },
        {
          role: 'assistant',
          content: [
            { type: 'text', text: 'I look.' },
            { type: 'tool_use', id: 'toolu_1', name: 'look', input: { at: 1 } },
            { type: 'tool_use', id: 'toolu_2', name: 'look', input: {} },
          ],
        },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: 'toolu_1', content: 'a cat' },
            { type: 'tool_result', tool_use_id: 'toolu_2', content: [{ type: 'text', text: 'a dog' }, image(png)] },
            { type: 'text', text: 'Well?' },
          ],
        },
      ],
      tools: [{ name: 'look', description: 'Looks', input_schema: { type: 'object', properties: {} } }],
      tool_choice: { type: 'any', disable_parallel_tool_use: true },
      stop_sequences: ['END'],
      temperature: 0.5,
      metadata: { user_id: 'u1' },
      output_config: { effort: 'low' },
      thinking: { type: 'enabled', budget_tokens: 1_024 },
      context_management: { edits: [{ type: 'clear_tool_uses_20250919' }] },
      top_k: 5,
    });
    const picture = { type: 'image_url', image_url: { url: `data:image/png;base64,${png}` } };
    expect(body).toEqual({
      model: 'm',
      messages: [
        { role: 'system', content: 'x-anthropic-billing-header: cc_version=2' },
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: [{ type: 'text', text: 'What is it?' }, picture] },
        {
          role: 'assistant',
          content: 'I look.',
          tool_calls: [
            { id: 'toolu_1', type: 'function', function: { name: 'look', arguments: '{"at":1}' } },
            { id: 'toolu_2', type: 'function', function: { name: 'look', arguments: '{}' } },
          ],
        },
        { role: 'tool', tool_call_id: 'toolu_1', content: 'a cat' },
        { role: 'tool', tool_call_id: 'toolu_2', content: 'a dog' },
        { role: 'user', content: [picture, { type: 'text', text: 'Well?' }] },
      ],
      tools: [
        {
          type: 'function',
          function: { name: 'look', description: 'Looks', parameters: { type: 'object', properties: {} } },
        },
      ],
      tool_choice: 'required',
      parallel_tool_calls: false,
      stop: ['END'],
      max_completion_tokens: 50,
      temperature: 0.5,
      user: 'u1',
      reasoning_effort: 'low',
    });
    expect(dropped).toEqual(['thinking', 'context_management', 'top_k']);
  });

  test.each([
    ['tools[0].type', { tools: [{ type: 'web_search_20250305', name: 'web_search' }] }],
    ['mcp_servers', { mcp_servers: [{ type: 'url', url: 'https://mcp.example', name: 'm' }] }],
    ['container', { container: 'container_1' }],
    [
      'messages[0].content[0].source',
      { messages: [{ role: 'user', content: [{ type: 'document', source: { type: 'file', file_id: 'file_1' } }] }] },
    ],
    ['messages[0].content[0]', { messages: [{ role: 'user', content: [{ type: 'search_result' }] }] }],
  ])('is refused for what only Anthropic can do: %s', (param, body) => {
    expect(() => sentTo(chatOnly, body)).toThrow(expect.objectContaining({ code: 'unsupported_parameter', param }));
  });

  test.each([
    ['messages[0].role', { messages: [{ role: 'tool', content: 'x' }] }],
    ['messages[0].content[0].source.type', { messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] }],
    ['system[0]', { system: [{ type: 'image' }] }],
  ])('is refused with the place of what is wrong: %s', (param, body) => {
    expect(() => sentTo(chatOnly, body)).toThrow(expect.objectContaining({ code: 'invalid_value', param }));
  });

  test('asks for a schema, strictly where every object is closed', () => {
    const closed = { type: 'object', properties: { a: {} }, required: ['a'], additionalProperties: false };
    const formatOf = (schema: object) =>
      sentTo(chatOnly, { output_config: { format: { type: 'json_schema', schema } } }).body['response_format'];
    expect(formatOf(closed)).toEqual({
      type: 'json_schema',
      json_schema: { name: 'answer', schema: closed, strict: true },
    });
    for (const open of [
      { ...closed, required: [] },
      { ...closed, additionalProperties: true },
      { ...closed, properties: { a: { type: 'object', properties: { b: {} } } } },
    ]) {
      expect(formatOf(open)).toEqual({ type: 'json_schema', json_schema: { name: 'answer', schema: open } });
    }
  });

  test('with a long name of a user has its hash where names have 64 characters at most', () => {
    const user = (user_id: string) => sentTo(chatOnly, { metadata: { user_id } }).body['user'];
    expect(user('u'.repeat(64))).toBe('u'.repeat(64));
    expect(user('u'.repeat(65))).toMatch(/^[0-9a-f]{64}$/);
    expect(user('u'.repeat(65))).not.toBe(user('u'.repeat(66)));
  });

  test('keeps its thinking for models that have it', () => {
    const thinking = { type: 'enabled', budget_tokens: 1_024 };
    expect(sentTo(gemini, { thinking, max_tokens: 2_000 }, { model: 'gemini-2.5-flash' }).body).toMatchObject({
      generationConfig: { thinkingConfig: { includeThoughts: true, thinkingBudget: 1_024 } },
    });
    expect(sentTo(gemini, { thinking: { type: 'adaptive' } }, { model: 'gemini-3-pro' }).body).toMatchObject({
      generationConfig: { thinkingConfig: { includeThoughts: true } },
    });
    const nova = sentTo(bedrock, { thinking, max_tokens: 2_000 }, { model: 'amazon.nova-pro-v1:0' });
    expect(nova.body).not.toHaveProperty('additionalModelRequestFields');
    expect(nova.dropped).toEqual(['thinking']);
  });
});

const image = (data: string) => ({ type: 'image', source: { type: 'base64', media_type: 'image/png', data } });

describe('earlier reasoning', () => {
  const loop = (content: object[]) => ({
    messages: [
      hi,
      { role: 'assistant', content: [...content, { type: 'tool_use', id: 't', name: 'f', input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', content: 'done' }] },
    ],
  });
  const thought = (signature: string) => ({ type: 'thinking', thinking: 'hm', signature });

  test('goes back to the provider that wrote it, and to no other', () => {
    const own = sentTo(chatOnly, loop([thought('sluice.plain.')]));
    expect(own.body['messages']).toContainEqual(expect.objectContaining({ reasoning_content: 'hm' }));
    expect(own.dropped).toEqual([]);
    for (const signature of ['EqQB', 'sluice.gemini.c2ln', '', 'sluice.unknown.']) {
      const { body, dropped } = sentTo(chatOnly, loop([thought(signature)]));
      expect(JSON.stringify(body)).not.toContain('hm');
      expect(dropped).toEqual(['reasoning']);
    }
  });

  test('is still needed when a text follows the results', () => {
    const { messages } = loop([thought('sluice.plain.')]);
    const reminder = {
      role: 'user',
      content: [...((messages[2]?.content ?? []) as object[]), { type: 'text', text: 'Go on.' }],
    };
    const { body } = sentTo(chatOnly, { messages: [...messages.slice(0, 2), reminder] });
    expect(body['messages']).toContainEqual(expect.objectContaining({ reasoning_content: 'hm' }));
  });

  test('is read with its signer and its own signature', () => {
    const { messages } = decodeMessageRequest(loop([thought('sluice.gemini.c2ln'), thought('EqQB')]), 'm');
    expect(messages[1]).toMatchObject({
      blocks: [
        { type: 'thinking', thinking: 'hm', signer: 'gemini', signature: 'c2ln' },
        { type: 'thinking', thinking: 'hm', signer: 'claude', signature: 'EqQB' },
      ],
    });
  });
});

const head = { id: 'id1', model: 'm1', signer: 'gemini' };
const answer: Choice = {
  blocks: [
    { type: 'thinking', thinking: 'first', signature: 'c2ln' },
    { type: 'text', text: 'then' },
    { type: 'redacted_thinking', data: 'aGlk' },
  ],
  toolCalls: [
    { id: 'call_1', name: 'f', arguments: '{"a":[1]}' },
    { id: 'call_2', name: 'g', arguments: '' },
  ],
  finishReason: 'tool_calls',
};
const counts = { promptTokens: 30, completionTokens: 7, cachedTokens: 10, writtenTokens: 5, reasoningTokens: 3 };
const message = {
  id: 'id1',
  type: 'message',
  role: 'assistant',
  model: 'm1',
  content: [
    { type: 'thinking', thinking: 'first', signature: 'sluice.gemini.c2ln' },
    { type: 'text', text: 'then' },
    { type: 'redacted_thinking', data: 'sluice.gemini.aGlk' },
    { type: 'tool_use', id: 'call_1', name: 'f', input: { a: [1] } },
    { type: 'tool_use', id: 'call_2', name: 'g', input: {} },
  ],
  stop_reason: 'tool_use',
  stop_sequence: null,
  stop_details: null,
  usage: {
    input_tokens: 15,
    cache_creation_input_tokens: 5,
    cache_read_input_tokens: 10,
    output_tokens: 7,
    output_tokens_details: { thinking_tokens: 3 },
  },
};

type Event = {
  type: string;
  index: number;
  message: Record<string, unknown>;
  content_block: Record<string, unknown>;
  delta: Record<string, string>;
  usage: object;
};
/** The message that these events are pieces of, which follow the order that the API documents. */
function assemble(payloads: readonly string[]): Record<string, unknown> {
  const events = payloads.map((payload) => JSON.parse(payload) as Event);
  const word = { message_start: 'M', content_block_start: '(', content_block_delta: '.', content_block_stop: ')' };
  let blockIndex = -1;
  const indexes = events.map(({ type }) => (type === 'content_block_start' ? (blockIndex += 1) : blockIndex));
  const placed = events.filter(({ type }) => type.startsWith('content_block'));
  expect(placed.map(({ index }) => index)).toEqual(
    indexes.filter((_, at) => events[at]?.type.startsWith('content_block')),
  );
  const order = events.map(({ type }) => (word as Record<string, string>)[type] ?? type).join('');
  expect(order).toMatch(/^M(\(\.*\))*message_deltamessage_stop$/);
  const blocks: Record<string, unknown>[] = [];
  for (const { type, content_block: block, delta } of events) {
    if (type === 'content_block_start') {
      blocks.push({ ...block });
    }
    const open = blocks.at(-1);
    if (type !== 'content_block_delta' || open === undefined) continue;
    for (const [name, piece] of Object.entries(delta)) {
      if (name === 'signature') open[name] = piece;
      else if (name !== 'type') open[name] = (typeof open[name] === 'string' ? open[name] : '') + piece;
    }
  }
  const content = blocks.map(({ partial_json: json, ...block }) =>
    json === undefined ? block : { ...block, input: JSON.parse(json as string) as unknown },
  );
  const last = events.at(-2);
  return { ...events[0]?.message, content, ...last?.delta, usage: last?.usage };
}

describe('an answer', () => {
  test('is a message: reasoning and text in order, calls, counts, and signatures that name their signer', () => {
    expect(encodeMessage(head, [answer], counts)).toEqual(message);
  });

  test('of Claude keeps its own signatures', () => {
    const { content } = encodeMessage({ ...head, signer: 'claude' }, [answer], counts);
    expect(content).toMatchObject([{ signature: 'c2ln' }, {}, { data: 'aGlk' }, {}, {}]);
  });

  test.each([
    [{ finishReason: 'stop', toolCalls: [] }, 'end_turn'],
    [{ finishReason: 'stop' }, 'tool_use'],
    [{ finishReason: 'tool_calls', toolCalls: [] }, 'end_turn'],
    [{ finishReason: 'length' }, 'max_tokens'],
    [{ finishReason: 'content_filter' }, 'refusal'],
  ] as const)('that ended with %j has the stop reason %s', (more, stopReason) => {
    expect(encodeMessage(head, [{ ...answer, ...more }], null)).toMatchObject({ stop_reason: stopReason });
  });

  test('that refuses says why', () => {
    const refused: Choice = { blocks: [], toolCalls: [], finishReason: 'stop', refusal: 'I cannot.' };
    expect(encodeMessage(head, [refused], null)).toMatchObject({
      content: [],
      stop_reason: 'refusal',
      stop_details: { type: 'refusal', explanation: 'I cannot.' },
    });
  });

  test('with arguments that are not an object is a failure, unless it was cut off', () => {
    const broken = { ...answer, toolCalls: [{ id: 'c', name: 'f', arguments: '{"a":' }] };
    expect(() => encodeMessage(head, [broken], null)).toThrow(expect.objectContaining({ kind: 'provider_failed' }));
    expect(encodeMessage(head, [{ ...broken, finishReason: 'length' }], null)).toMatchObject({
      stop_reason: 'max_tokens',
    });
  });
});

describe('a stream', () => {
  const open = (signer = 'gemini') => messagesDialect.openAnswer({ ...head, signer }, callOf({ stream: true }));

  test('has the same message in its events', () => {
    const writer = open();
    const choice = writer.choice();
    const payloads = [
      choice.start(),
      choice.thought({ thinking: 'fir' }, 0),
      choice.thought({ thinking: 'st' }, 0),
      choice.thought({ signature: 'c2ln' }, 0),
      choice.text('th', 1),
      choice.text('en', 1),
      choice.thought({ data: 'aGlk' }, 2),
      choice.toolCall('x', { id: 'call_1', name: 'f' }),
      choice.toolArguments('x', '{"a":'),
      choice.toolArguments('x', '[1]}'),
      choice.toolCall('y', { id: 'call_2', name: 'g', arguments: '{}' }),
      writer.usage({ promptTokens: 1, completionTokens: 1 }),
      choice.finish('stop'),
      writer.usage(counts),
      choice.finish('tool_calls'),
      writer.end(),
      writer.end(),
    ].flat();
    expect(assemble(payloads)).toEqual(message);
    expect(JSON.parse(payloads[0] ?? '')).toMatchObject({
      message: { content: [], stop_reason: null, usage: { input_tokens: 0, output_tokens: 0 } },
    });
  });

  test('marks reasoning without a signature with its author, unless that is Claude', () => {
    for (const [signer, signature] of [
      ['plain', 'sluice.plain.'],
      ['claude', ''],
    ] as const) {
      const writer = open(signer);
      const payloads = [...writer.choice().thought({ thinking: 'hm' }, 0), ...writer.choice().finish('stop')];
      expect(assemble([...payloads, ...writer.end()])['content']).toEqual([
        { type: 'thinking', thinking: 'hm', signature },
      ]);
    }
  });

  test('that has not finished has no end', () => {
    const writer = open();
    writer.choice().text('Hel', 0);
    writer.usage(counts);
    expect(writer.end()).toEqual([]);
  });

  test('fails rather than losing arguments of a call that another one followed', () => {
    const choice = open().choice();
    choice.toolCall(0, { id: 'a', name: 'f' });
    choice.toolCall(1, { id: 'b', name: 'g' });
    expect(choice.toolArguments(0, '')).toEqual([]);
    expect(() => choice.toolArguments(0, '{}')).toThrow(expect.objectContaining({ kind: 'provider_failed' }));
  });

  test('of a whole message loses nothing', () => {
    const native = {
      ...message,
      stop_details: { type: 'refusal', category: null, explanation: 'No.' },
      content: [
        ...message.content,
        { type: 'server_tool_use', id: 'srvtoolu_1', name: 'web_search', input: { query: 'q' } },
        {
          type: 'web_search_tool_result',
          tool_use_id: 'srvtoolu_1',
          content: [{ type: 'web_search_result', url: 'u' }],
        },
      ],
    };
    expect(assemble(messagesDialect.splitAnswer(native, false))).toEqual(native);
  });
});

import { describe, expect, test } from 'vitest';
import type { Call } from '#libs/providers/provider.ts';
import { encodeChat, translationCall, upstreamAt } from '#test/translation-call.ts';
import { anthropic } from './index.ts';

const user = (content: unknown) => ({ role: 'user', content });
const encode = (more: object = {}, options: Partial<Call> = {}) =>
  encodeChat(
    anthropic,
    translationCall({ model: 'claude-sonnet-4-5', messages: [user('hi')], ...more }, options),
    upstreamAt('https://api.anthropic.com/v1'),
  );
const refusal = (param: string, code = 'invalid_value') =>
  expect.objectContaining({ kind: 'invalid_request', code, param });

describe('the conversation', () => {
  test('puts all results of a turn before the text that stands among them', () => {
    const call = (id: string) => ({ id, type: 'function', function: { name: 'f', arguments: '' } });
    const { body } = encode({
      messages: [
        user('a'),
        { role: 'assistant', content: '\n', tool_calls: [call('t1'), call('t2')] },
        { role: 'tool', tool_call_id: 't1', content: '' },
        user('wait'),
        { role: 'tool', tool_call_id: 't2', content: [{ type: 'text', text: 'x' }], is_error: true },
        user([]),
      ],
    });
    expect(body['messages']).toEqual([
      { role: 'user', content: [{ type: 'text', text: 'a' }] },
      {
        role: 'assistant',
        content: [
          { type: 'tool_use', id: 't1', name: 'f', input: {} },
          { type: 'tool_use', id: 't2', name: 'f', input: {} },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 't1' },
          { type: 'tool_result', tool_use_id: 't2', content: [{ type: 'text', text: 'x' }], is_error: true },
          { type: 'text', text: 'wait' },
        ],
      },
    ]);
  });

  test('merges neighbours of one role, and needs one message at least', () => {
    expect(encode({ messages: [user('a'), user('b')] }).body['messages']).toEqual([
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a' },
          { type: 'text', text: 'b' },
        ],
      },
    ]);
    expect(() => encode({ messages: [{ role: 'system', content: 'x' }] })).toThrow(refusal('messages'));
  });

  test('replays thinking only where strict compliance is off, and unsigned thinking never', () => {
    const blocks = [
      { type: 'thinking', thinking: 'hm', signature: 's' },
      { type: 'redacted_thinking', data: 'd' },
      { type: 'thinking', thinking: 'unsigned' },
      { type: 'text', text: 'A' },
      { type: 'tool_use', id: 'x' },
    ];
    const messages = [user('a'), { role: 'assistant', content: 'A', content_blocks: blocks }, user('b')];
    const free = encode({ messages }, { strict: false });
    expect(free.body['messages']).toMatchObject([{}, { content: [blocks[0], blocks[1], blocks[3]] }, {}]);
    expect(free.dropped).toEqual(['messages[1].content_blocks[2]']);
    const strict = encode({ messages });
    expect(strict.body['messages']).toMatchObject([{}, { content: [{ type: 'text', text: 'A' }] }, {}]);
    expect(strict.dropped).toEqual(['messages[1].content_blocks']);
  });

  test('keeps the marks for caching where they stand', () => {
    const mark = { cache_control: { type: 'ephemeral' } };
    const { body } = encode({
      messages: [
        { role: 'system', content: [{ type: 'text', text: 'S', ...mark }] },
        {
          ...user([
            { type: 'text', text: 'a' },
            { type: 'text', text: 'b' },
          ]),
          ...mark,
        },
      ],
      tools: [{ type: 'function', function: { name: 'f' }, ...mark }],
    });
    expect(body).toMatchObject({
      system: [{ text: 'S', ...mark }],
      messages: [
        {
          content: [
            { type: 'text', text: 'a' },
            { text: 'b', ...mark },
          ],
        },
      ],
      tools: [{ name: 'f', input_schema: { type: 'object', properties: {} }, ...mark }],
    });
  });

  test('holds images and documents, by address, by bytes, fetched, and by id', () => {
    const { body } = encode(
      {
        messages: [
          user([
            { type: 'image_url', image_url: { url: 'https://a.example/x.png' } },
            { type: 'image_url', image_url: { url: 'https://a.example/fetched.gif' } },
            { type: 'image_url', image_url: { url: 'data:image/webp;base64,AAAA' } },
            { type: 'image_url', image_url: { url: 'data:application/pdf;base64,AAAA' } },
            { type: 'file', file: { filename: 'n.txt', file_data: 'data:text/plain;base64,aGk=' } },
            { type: 'file', file: { file_url: 'https://a.example/y.pdf' } },
            { type: 'file', file: { file_id: 'file_1' } },
          ]),
        ],
      },
      {
        resources: new Map([
          ['https://a.example/fetched.gif', { contentType: 'image/gif', bytes: Buffer.from('gif') }],
        ]),
      },
    );
    expect(body['messages']).toEqual([
      user([
        { type: 'image', source: { type: 'url', url: 'https://a.example/x.png' } },
        { type: 'image', source: { type: 'base64', media_type: 'image/gif', data: 'Z2lm' } },
        { type: 'image', source: { type: 'base64', media_type: 'image/webp', data: 'AAAA' } },
        { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: 'AAAA' } },
        { type: 'document', source: { type: 'text', media_type: 'text/plain', data: 'hi' }, title: 'n.txt' },
        { type: 'document', source: { type: 'url', url: 'https://a.example/y.pdf' } },
        { type: 'document', source: { type: 'file', file_id: 'file_1' } },
      ]),
    ]);
  });

  test.each([
    { type: 'input_audio', input_audio: { data: 'AAAA', format: 'wav' } },
    { type: 'image_url', image_url: { url: 'data:image/tiff;base64,AAAA' } },
    { type: 'image_url', image_url: { url: 'gs://bucket/x.png' } },
    { type: 'smell' },
  ])('refuses a part that Claude cannot take: %j', (part) => {
    expect(() => encode({ messages: [user([part])] })).toThrow(
      refusal('messages[0].content[0]', 'unsupported_parameter'),
    );
  });
});

describe('tools', () => {
  const tools = [{ type: 'function', function: { name: 'f', description: 'd', parameters: { $defs: {}, anyOf: [] } } }];
  const choiceOf = (more: object) => encode({ tools, ...more }).body['tool_choice'];

  test('keep their whole schema', () => {
    expect(encode({ tools }).body['tools']).toEqual([
      { name: 'f', description: 'd', input_schema: { type: 'object', $defs: {}, anyOf: [] } },
    ]);
  });

  test.each([
    [{}, undefined],
    [{ tool_choice: 'auto' }, { type: 'auto' }],
    [{ tool_choice: 'none' }, { type: 'none' }],
    [{ tool_choice: 'required' }, { type: 'any' }],
    [{ tool_choice: { type: 'function', function: { name: 'f' } } }, { type: 'tool', name: 'f' }],
    [{ parallel_tool_calls: false }, { type: 'auto', disable_parallel_tool_use: true }],
    [
      { parallel_tool_calls: false, tool_choice: 'required' },
      { type: 'any', disable_parallel_tool_use: true },
    ],
    [{ parallel_tool_calls: false, tool_choice: 'none' }, { type: 'none' }],
  ])('are chosen as the client says: %j', (more, choice) => {
    expect(choiceOf(more)).toEqual(choice);
  });

  test('in the deprecated form are asked for one at a time', () => {
    const { body, dropped } = encode({ functions: [{ name: 'f' }], function_call: { name: 'f' } });
    expect(body['tool_choice']).toEqual({ type: 'tool', name: 'f', disable_parallel_tool_use: true });
    expect(dropped).toEqual([]);
  });

  test('are strict where the model can be', () => {
    const strict = [{ type: 'function', function: { name: 'f', strict: true } }];
    expect(encode({ tools: strict }).body['tools']).toMatchObject([{ strict: true }]);
    const old = encode({ tools: strict, model: 'claude-3-haiku-20240307' });
    expect(old.body['tools']).not.toMatchObject([{ strict: true }]);
    expect(old.dropped).toEqual(['tools[0].function.strict']);
  });
});

describe('parameters', () => {
  test('without a limit ask for as many tokens as the model has', () => {
    const limitOf = (model: string) => encode({ model }).body['max_tokens'];
    expect(limitOf('claude-sonnet-4-5-20250929')).toBe(64_000);
    expect(limitOf('claude-opus-4-20250514')).toBe(32_000);
    expect(limitOf('claude-3-haiku-20240307')).toBe(4_096);
    expect(limitOf('claude-opus-5')).toBe(128_000);
    expect(limitOf('claude-of-the-future')).toBe(64_000);
  });

  test.each([
    ['claude-3-haiku-20240307', { temperature: 0.2, top_p: 0.5, top_k: 3 }, []],
    ['claude-sonnet-4-5', { temperature: 0.2, top_k: 3 }, ['top_p']],
    ['claude-opus-5', {}, ['temperature', 'top_p', 'top_k']],
  ])('of sampling go out as far as %s takes them', (model, sent, dropped) => {
    const encoded = encode({ model, temperature: 0.2, top_p: 0.5, top_k: 3 });
    const { temperature, top_p, top_k } = encoded.body;
    expect(JSON.parse(JSON.stringify({ temperature, top_p, top_k }))).toEqual(sent);
    expect(encoded.dropped).toEqual(dropped);
  });

  test('that are the default are not reported', () => {
    expect(encode({ model: 'claude-opus-5', temperature: 1, top_p: 1 }).dropped).toEqual([]);
  });

  test('of thinking go out where strict compliance is off, and bind the temperature', () => {
    const thinking = { type: 'enabled', budget_tokens: 2_000 };
    const free = encode({ thinking, temperature: 0.5, max_tokens: 4_000 }, { strict: false });
    expect(free.body['thinking']).toEqual(thinking);
    expect(free.dropped).toEqual(['temperature']);
    const strict = encode({ thinking });
    expect(strict.body).not.toHaveProperty('thinking');
    expect(strict.dropped).toEqual(['thinking']);
    expect(() => encode({ thinking, max_tokens: 2_000 }, { strict: false })).toThrow(refusal('thinking.budget_tokens'));
  });

  test.each([
    ['claude-opus-4-6', 'high', { thinking: { type: 'adaptive' }, output_config: { effort: 'high' } }, []],
    ['claude-opus-4-6', 'minimal', { output_config: { effort: 'low' } }, []],
    ['claude-opus-4-6', 'none', { thinking: undefined, output_config: undefined }, []],
    ['claude-opus-4-5', 'low', { thinking: undefined, output_config: { effort: 'low' } }, []],
    ['claude-opus-5', 'none', { thinking: { type: 'disabled' } }, []],
    ['claude-opus-5-5', 'none', { thinking: undefined }, ['reasoning_effort']],
    ['claude-sonnet-4-5', 'low', { thinking: undefined, output_config: undefined }, ['reasoning_effort']],
    ['claude-opus-5', 'toString', { output_config: undefined }, ['reasoning_effort']],
  ])('of effort: %s, %s', (model, effort, sent, dropped) => {
    const encoded = encode({ model, reasoning_effort: effort });
    expect({ thinking: undefined, output_config: undefined, ...encoded.body }).toMatchObject(sent);
    expect(encoded.dropped).toEqual(dropped);
  });

  test('of the answer’s form become a schema, an instruction, or are refused', () => {
    const schema = { type: 'object', properties: {}, additionalProperties: false };
    const response_format = { type: 'json_schema', json_schema: { name: 'n', schema } };
    expect(encode({ response_format }).body['output_config']).toEqual({ format: { type: 'json_schema', schema } });
    expect(() => encode({ response_format, model: 'claude-3-haiku' })).toThrow(
      refusal('response_format', 'unsupported_parameter'),
    );
    expect(encode({ response_format: { type: 'text' } }).body).not.toHaveProperty('system');
  });

  test.each([{ type: 'json_object' }, { type: 'json_schema', json_schema: { name: 'n' } }])(
    'of a JSON object of any shape are the last instruction: %j',
    (response_format) => {
      const messages = [
        { role: 'system', content: 'Be brief.' },
        user('hi'),
        { role: 'developer', content: 'In French.' },
      ];
      for (const model of ['claude-opus-5', 'claude-3-haiku']) {
        const { body, dropped } = encode({ model, messages, response_format });
        expect(body['system']).toEqual([
          { type: 'text', text: 'Be brief.' },
          { type: 'text', text: 'In French.' },
          { type: 'text', text: expect.stringMatching(/^Answer with a single JSON object and nothing else/) },
        ]);
        expect(body).not.toHaveProperty('output_config');
        expect(dropped).toEqual([]);
      }
      const tools = [{ type: 'function', function: { name: 'look' } }];
      const asText = (more: object) => encode({ response_format, tools, ...more }).body['system'];
      expect(asText({})).toEqual([{ type: 'text', text: expect.stringMatching(/^Unless you call a tool: Answer/) }]);
      expect(asText({ tool_choice: 'none' })).toEqual([{ type: 'text', text: expect.stringMatching(/^Answer/) }]);
    },
  );

  test('of others: who asks, where to stop, which tier, and Anthropic’s own', () => {
    const { body, dropped } = encode({
      user: 'u1',
      stop: ['END', '\n'],
      service_tier: 'flex',
      inference_geo: 'us',
      container: null,
      verbosity: 'low',
    });
    expect(body).toMatchObject({ metadata: { user_id: 'u1' }, stop_sequences: ['END'], inference_geo: 'us' });
    expect(body).not.toHaveProperty('container');
    expect(dropped.toSorted()).toEqual(['service_tier', 'stop', 'verbosity']);
  });
});

test('versions and betas come from the client and the virtual key', () => {
  const call = translationCall(
    { model: 'claude-sonnet-4-5', messages: [user('hi')] },
    { headers: { 'anthropic-beta': 'b', 'anthropic-version': '2099-01-01' } },
  );
  const upstream = upstreamAt('http://127.0.0.1:9/proxy/v1/', {
    settings: { anthropic_beta: 'a', anthropic_version: '2023-01-01' },
  });
  const { outbound, headers } = encodeChat(anthropic, call, upstream);
  expect(headers).toMatchObject({ 'anthropic-beta': 'a,b', 'anthropic-version': '2099-01-01' });
  expect([outbound.origin, outbound.path]).toEqual(['http://127.0.0.1:9', '/proxy/v1/messages']);
});

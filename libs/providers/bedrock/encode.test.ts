import { describe, expect, test } from 'vitest';
import type { Call } from '#libs/providers/provider.ts';
import { encodeChat, translationCall, upstreamAt } from '#test/translation-call.ts';
import { bedrock } from './index.ts';

const user = (content: unknown) => ({ role: 'user', content });
const toCall = (more: object, options: Partial<Call> = {}) =>
  translationCall({ model: 'amazon.nova-pro-v1:0', messages: [user('hi')], ...more }, options);
const encode = (more: object = {}, options: Partial<Call> = {}) =>
  encodeChat(bedrock, toCall(more, options), upstreamAt('https://bedrock-runtime.us-east-1.amazonaws.com'));
const refusal = (param: string, code = 'invalid_value') =>
  expect.objectContaining({ kind: 'invalid_request', code, param });

const call = (id: string) => ({ id, type: 'function', function: { name: 'f', arguments: '{"a":1}' } });
const asked = [user('a'), { role: 'assistant', content: null, tool_calls: [call('t1'), call('t2')] }];
const answered = [
  ...asked,
  { role: 'tool', tool_call_id: 't1', content: 'x' },
  { role: 'tool', tool_call_id: 't2', content: '' },
];

describe('the conversation', () => {
  test('alternates, with all results of a turn in one message and empty ones too', () => {
    expect(encode({ messages: [...answered, user('and?')] }).body['messages']).toEqual([
      { role: 'user', content: [{ text: 'a' }] },
      {
        role: 'assistant',
        content: ['t1', 't2'].map((toolUseId) => ({ toolUse: { toolUseId, name: 'f', input: { a: 1 } } })),
      },
      {
        role: 'user',
        content: [
          { toolResult: { toolUseId: 't1', content: [{ text: 'x' }] } },
          { toolResult: { toolUseId: 't2', content: [] } },
          { text: 'and?' },
        ],
      },
    ]);
    expect(() => encode({ messages: [{ role: 'system', content: 'x' }] })).toThrow(refusal('messages'));
  });

  test('fetches images by address, and holds all media as bytes under names that the API allows', () => {
    const content = [
      { type: 'image_url', image_url: { url: 'https://a.example/x.jpg' } },
      { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
      { type: 'file', file: { filename: 'Bericht_2026 (final).pdf', file_data: 'data:application/pdf;base64,AAAA' } },
      { type: 'file', file: { filename: 'Bericht 2026 (final).pdf', file_data: 'data:application/pdf;base64,BBBB' } },
      { type: 'file', file: { file_data: 'data:video/mp4;base64,AAAA' } },
    ];
    const urls = bedrock.operations.chat?.resourcesOf?.(toCall({ messages: [user(content)] }));
    expect(urls).toEqual(['https://a.example/x.jpg']);
    const resources = new Map([['https://a.example/x.jpg', { contentType: 'image/jpeg', bytes: Buffer.from('jpg') }]]);
    expect(encode({ messages: [user(content)] }, { resources }).body['messages']).toEqual([
      user([
        { image: { format: 'jpeg', source: { bytes: 'anBn' } } },
        { image: { format: 'png', source: { bytes: 'AAAA' } } },
        { document: { format: 'pdf', source: { bytes: 'AAAA' }, name: 'Bericht 2026 (final)' } },
        { document: { format: 'pdf', source: { bytes: 'BBBB' }, name: 'Bericht 2026 (final) 2' } },
        { video: { format: 'mp4', source: { bytes: 'AAAA' } } },
      ]),
    ]);
  });

  test.each([
    { type: 'input_audio', input_audio: { data: 'AAAA', format: 'wav' } },
    { type: 'image_url', image_url: { url: 'data:image/tiff;base64,AAAA' } },
    { type: 'image_url', image_url: { url: 's3://bucket/x.png' } },
    { type: 'file', file: { file_id: 'file-1' } },
  ])('refuses a part that Converse cannot take: %j', (part) => {
    expect(() => encode({ messages: [user([part])] })).toThrow(
      refusal('messages[0].content[0]', 'unsupported_parameter'),
    );
  });

  test('replays reasoning where strict compliance is off', () => {
    const blocks = [
      { type: 'thinking', thinking: 'hm', signature: 's' },
      { type: 'redacted_thinking', data: 'd' },
      { type: 'text', text: 'A' },
    ];
    const messages = [user('a'), { role: 'assistant', content: 'A', content_blocks: blocks }, user('b')];
    expect(encode({ messages }, { strict: false }).body['messages']).toMatchObject([
      {},
      {
        content: [
          { reasoningContent: { reasoningText: { text: 'hm', signature: 's' } } },
          { reasoningContent: { redactedContent: 'd' } },
          { text: 'A' },
        ],
      },
      {},
    ]);
    expect(encode({ messages })).toMatchObject({ dropped: ['messages[1].content_blocks'] });
  });

  test('has points up to which it is cached', () => {
    const mark = { cache_control: { type: 'ephemeral' } };
    const point = { cachePoint: { type: 'default' } };
    const { body } = encode({
      messages: [
        { role: 'system', content: 'S', ...mark },
        { ...user([{ type: 'text', text: 'a', ...mark }]), ...mark },
      ],
      tools: [{ type: 'function', function: { name: 'f' }, ...mark }],
    });
    expect(body).toMatchObject({
      system: [{ text: 'S' }, point],
      messages: [{ content: [{ text: 'a' }, point] }],
      toolConfig: { tools: [{ toolSpec: { name: 'f' } }, point] },
    });
    expect((body['messages'] as { content: unknown[] }[])[0]?.content).toHaveLength(2);
  });
});

describe('tools', () => {
  const parameters = { type: 'object', $defs: {}, anyOf: [] };
  const tools = [{ type: 'function', function: { name: 'f', description: 'd', parameters } }];
  const toolSpec = { name: 'f', description: 'd', inputSchema: { json: parameters } };

  test.each([
    [{}, { tools: [{ toolSpec }] }],
    [{ tool_choice: 'auto' }, { tools: [{ toolSpec }], toolChoice: { auto: {} } }],
    [{ tool_choice: 'required' }, { tools: [{ toolSpec }], toolChoice: { any: {} } }],
    [
      { tool_choice: { type: 'function', function: { name: 'f' } } },
      { tools: [{ toolSpec }], toolChoice: { tool: { name: 'f' } } },
    ],
    [{ tool_choice: 'none' }, undefined],
  ])('are chosen as the client says: %j', (more, toolConfig) => {
    const { body, dropped } = encode({ tools, ...more });
    expect(body['toolConfig']).toEqual(toolConfig);
    expect(dropped).toEqual([]);
  });

  test('stay if the conversation has calls, and what was dropped is reported', () => {
    const none = encode({ tools, tool_choice: 'none', messages: answered });
    expect(none.body['toolConfig']).toEqual({ tools: [{ toolSpec }] });
    expect(none.dropped).toEqual(['tool_choice']);
    expect(encode({ messages: answered }).body['toolConfig']).toEqual({
      tools: [{ toolSpec: { name: 'f', inputSchema: { json: { type: 'object' } } } }],
    });
  });
});

describe('parameters', () => {
  test('that none was given for are not invented', () => {
    expect(Object.keys(encode().body)).toEqual(['messages']);
  });

  test('go where Converse or the model has a place for them', () => {
    const { body, dropped } = encode({
      max_tokens: 5,
      temperature: 0.5,
      top_p: 0.9,
      stop: ['a', 'b'],
      top_k: 7,
      service_tier: 'priority',
      performance_config: { latency: 'optimized' },
      additionalModelRequestFields: { x: 1 },
      user: 'u',
    });
    expect(body).toMatchObject({
      inferenceConfig: { maxTokens: 5, temperature: 0.5, topP: 0.9, stopSequences: ['a', 'b'] },
      additionalModelRequestFields: { top_k: 7, x: 1 },
      serviceTier: { type: 'priority' },
      performanceConfig: { latency: 'optimized' },
    });
    expect(dropped).toEqual(['user']);
  });

  test('of Claude follow Claude’s rules', () => {
    const model = 'eu.anthropic.claude-opus-4-6-v1';
    const thinking = { type: 'enabled', budget_tokens: 1_024 };
    const free = encode({ model, thinking, user: 'u', temperature: 0.5, top_p: 0.9 }, { strict: false });
    expect(free.body['additionalModelRequestFields']).toEqual({ metadata: { user_id: 'u' }, thinking });
    expect(free.dropped).toEqual(['temperature', 'top_p']);
    expect(encode({ model, thinking }).dropped).toEqual(['thinking']);
    expect(encode({ model, reasoning_effort: 'high' }).body['additionalModelRequestFields']).toEqual({
      thinking: { type: 'adaptive' },
      output_config: { effort: 'high' },
    });
  });

  test('of effort go to the models that have it', () => {
    expect(encode({ model: 'openai.gpt-oss-120b-1:0', reasoning_effort: 'low' }).body).toMatchObject({
      additionalModelRequestFields: { reasoning_effort: 'low' },
    });
    expect(encode({ reasoning_effort: 'low' }).dropped).toEqual(['reasoning_effort']);
  });

  test('of the answer’s form hold the schema as text', () => {
    const schema = { type: 'object', properties: {} };
    const response_format = { type: 'json_schema', json_schema: { name: 'n', description: 'd', schema } };
    expect(encode({ response_format }).body['outputConfig']).toEqual({
      textFormat: {
        type: 'json_schema',
        structure: { jsonSchema: { name: 'n', description: 'd', schema: JSON.stringify(schema) } },
      },
    });
    expect(() => encode({ response_format, model: 'anthropic.claude-3-haiku-20240307-v1:0' })).toThrow(
      refusal('response_format', 'unsupported_parameter'),
    );
  });

  test('of a JSON object of any shape are the last instruction, whatever the model', () => {
    const response_format = { type: 'json_object' };
    for (const model of ['amazon.nova-pro-v1:0', 'anthropic.claude-3-haiku-20240307-v1:0']) {
      const messages = [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'Hi' },
      ];
      const { body, dropped } = encode({ model, messages, response_format });
      expect(body['system']).toEqual([
        { text: 'Be brief.' },
        { text: expect.stringMatching(/^Answer with a single JSON object and nothing else/) },
      ]);
      expect(body).not.toHaveProperty('outputConfig');
      expect(dropped).toEqual([]);
    }
  });
});

test.each(['..', '.', '', '../invoke', 'a/../b', 'a//b'])(
  'a model %j that leads to another path is refused',
  (model) => {
    const call = translationCall({ model, messages: [{ role: 'user', content: 'Hi' }] });
    const settings = { aws_region: 'us-east-1' };
    const act = () => encodeChat(bedrock, call, upstreamAt('https://bedrock.example', { settings }));
    expect(act).toThrow(expect.objectContaining({ kind: 'invalid_request', param: 'model' }));
  },
);

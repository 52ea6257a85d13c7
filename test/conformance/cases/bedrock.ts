import { EventStreamCodec } from '@smithy/eventstream-codec';
import { expect } from 'vitest';
import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase, Json, Wire } from '../conformance-case.ts';

const codec = new EventStreamCodec(
  (bytes) => Buffer.from(bytes as Uint8Array).toString('utf8'),
  (value) => Buffer.from(value, 'utf8'),
);

/** Lines are `{eventType: payload}`, as the recordings have them; a type that ends with Exception is one. */
const wire: Wire = {
  contentType: 'application/vnd.amazon.eventstream',
  frame: (line) => {
    const [name = '', payload] = Object.entries(JSON.parse(line) as Json)[0] ?? [];
    const kind = name.endsWith('Exception') ? 'exception' : 'event';
    const encoded = codec.encode({
      headers: {
        [`:${kind}-type`]: { type: 'string', value: name },
        ':content-type': { type: 'string', value: 'application/json' },
        ':message-type': { type: 'string', value: kind },
      },
      body: Buffer.from(JSON.stringify(payload)),
    });
    return Buffer.from(encoded);
  },
};

const usage = { inputTokens: 10, cacheReadInputTokens: 6, cacheWriteInputTokens: 4, outputTokens: 9, totalTokens: 29 };
const says = { prompt: 20, completion: 9, cached: 6 };
const billed = { cacheWriteTokens: 4 };

const answer = (stopReason: string, ...content: object[]) => ({
  body: { output: { message: { role: 'assistant', content } }, stopReason, usage, metrics: { latencyMs: 1 } },
});
const stream = (stopReason: string, ...blocks: { start?: object; deltas: object[] }[]) => ({
  lines: [
    { messageStart: { role: 'assistant' } },
    ...blocks.flatMap(({ start, deltas }, contentBlockIndex) => [
      ...(start ? [{ contentBlockStart: { contentBlockIndex, start } }] : []),
      ...deltas.map((delta) => ({ contentBlockDelta: { contentBlockIndex, delta, p: 'abcdef' } })),
      { contentBlockStop: { contentBlockIndex } },
    ]),
    { messageStop: { stopReason } },
    { metadata: { usage, metrics: { latencyMs: 1 } } },
  ],
});
const text = (...deltas: string[]) => ({ deltas: deltas.map((delta) => ({ text: delta })) });
const toolUse = (toolUseId: string, name: string, ...fragments: string[]) => ({
  start: { toolUse: { toolUseId, name } },
  deltas: fragments.map((input) => ({ toolUse: { input } })),
});

const tools = ['weather', 'time'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { city: { type: 'string' } } } },
}));
const parallel = answer(
  'tool_use',
  { text: 'Let me look.' },
  { toolUse: { toolUseId: 'tooluse_1', name: 'weather', input: { city: 'Köln' } } },
  { toolUse: { toolUseId: 'tooluse_2', name: 'time', input: {} } },
);
const parallelStream = stream(
  'tool_use',
  text('Let me', ' look.'),
  toolUse('tooluse_1', 'weather', '{"city":', '"Köln"}'),
  toolUse('tooluse_2', 'time'),
);
const thought = { type: 'thinking', thinking: 'Five times 185.', signature: 'sig==' };
const hidden = { type: 'redacted_thinking', data: 'cmVkYWN0ZWQ=' };

const model = 'us.anthropic.claude-sonnet-4-5-20250929-v1:0';
const pathOf = (action: string): string => `/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/${action}`;
const shared = { provider: 'bedrock', folder: '', wire } as const;

export const cases: readonly ConformanceCase[] = [
  {
    ...shared,
    model,
    answers: [
      {
        name: 'text beyond ASCII',
        whole: answer('end_turn', { text: 'Schöne ' }, { text: 'Grüße 😀' }),
        stream: stream('end_turn', text('Schö', 'ne '), text('Grüße 😀')),
        says: { text: 'Schöne Grüße 😀', finishReason: 'stop', usage: says, billed },
      },
      {
        name: 'parallel tool calls behind text',
        request: { tools },
        whole: parallel,
        stream: parallelStream,
        says: {
          text: 'Let me look.',
          toolCalls: [
            { id: 'tooluse_1', name: 'weather', arguments: { city: 'Köln' } },
            { id: 'tooluse_2', name: 'time', arguments: {} },
          ],
          finishReason: 'tool_calls',
          usage: says,
          billed,
        },
      },
      {
        name: 'reasoning',
        whole: answer(
          'end_turn',
          { reasoningContent: { reasoningText: { text: 'Five times 185.', signature: 'sig==' } } },
          { reasoningContent: { redactedContent: 'cmVkYWN0ZWQ=' } },
          { text: '185' },
        ),
        stream: stream(
          'end_turn',
          {
            deltas: [
              { reasoningContent: { text: 'Five times' } },
              { reasoningContent: { text: ' 185.' } },
              { reasoningContent: { signature: 'sig==' } },
            ],
          },
          { deltas: [{ reasoningContent: { redactedContent: 'cmVkYWN0ZWQ=' } }] },
          text('1', '85'),
        ),
        says: {
          text: '185',
          finishReason: 'stop',
          usage: says,
          billed,
          contentBlocks: [thought, hidden, { type: 'text', text: '185' }],
        },
      },
      {
        name: 'guardrail',
        whole: answer('guardrail_intervened', { text: 'Sorry.' }),
        stream: stream('guardrail_intervened', text('Sorry.')),
        says: { text: 'Sorry.', finishReason: 'content_filter', usage: says, billed },
      },
      {
        name: 'full text, whole',
        whole: { fixture: 'amazon-bedrock-text.json' },
        says: {
          text: /^January has 31 days.*\*\*91\*\* "days"\.$/s,
          finishReason: 'stop',
          usage: { prompt: 22, completion: 57 },
        },
      },
      {
        name: 'full text, streamed',
        stream: { fixture: 'amazon-bedrock-text.chunks.txt' },
        says: {
          text: /^January has 31 days.*\*\*91\*\* "days"\.$/s,
          finishReason: 'stop',
          usage: { prompt: 22, completion: 55 },
        },
      },
      {
        name: 'full reasoning, whole',
        whole: { fixture: 'amazon-bedrock-reasoning.json' },
        says: {
          text: /^The first quarter of a leap year/,
          finishReason: 'stop',
          usage: { prompt: 51, completion: 78 },
        },
      },
      {
        name: 'full reasoning, streamed',
        stream: { fixture: 'amazon-bedrock-reasoning.chunks.txt' },
        says: {
          text: /^The first quarter of a leap year/,
          finishReason: 'stop',
          usage: { prompt: 51, completion: 94 },
        },
      },
      {
        name: 'full tool call, whole',
        whole: { fixture: 'amazon-bedrock-tool-call.1.json' },
        says: {
          text: null,
          toolCalls: [{ id: 'eplb-jqj-qd', name: 'list_files', arguments: { folder: 'reports' } }],
          finishReason: 'tool_calls',
          usage: { prompt: 10, completion: 20 },
        },
      },
      {
        name: 'full tool call, streamed with its usage first',
        stream: { fixture: 'amazon-bedrock-tool-call.1.chunks.txt' },
        says: {
          text: null,
          toolCalls: [{ id: 'eplb-jqj-qd', name: 'look_up', arguments: { value: 'leap year' } }],
          finishReason: 'tool_calls',
          usage: { prompt: 125, completion: 45 },
        },
      },
    ],
    conversations: [
      {
        name: 'parallel calls',
        request: { messages: [{ role: 'user', content: 'Weather and time?' }], tools },
        first: { whole: parallel, stream: parallelStream },
        results: { weather: 'rain', time: '12:00' },
        second: {
          whole: answer('end_turn', { text: 'Rain at noon.' }),
          stream: stream('end_turn', text('Rain at noon.')),
        },
        finalText: 'Rain at noon.',
        secondRequest: () => ({
          messages: [
            { role: 'user', content: [{ text: 'Weather and time?' }] },
            {
              role: 'assistant',
              content: [
                { text: 'Let me look.' },
                { toolUse: { toolUseId: 'tooluse_1', name: 'weather', input: { city: 'Köln' } } },
                { toolUse: { toolUseId: 'tooluse_2', name: 'time', input: {} } },
              ],
            },
            {
              role: 'user',
              content: [
                { toolResult: { toolUseId: 'tooluse_1', content: [{ text: 'rain' }] } },
                { toolResult: { toolUseId: 'tooluse_2', content: [{ text: '12:00' }] } },
              ],
            },
          ],
        }),
      },
    ],
    earlyErrors: [
      {
        name: 'throttled',
        status: 429,
        body: { message: 'Too many requests, please wait before trying again.' },
        reported: {
          status: 429,
          code: null,
          type: 'rate_limit_error',
          message: 'Too many requests, please wait before trying again.',
        },
      },
      {
        name: 'named by its type',
        status: 400,
        body: { __type: 'com.amazon.coral.validate#ValidationException', Message: 'The provided model is invalid.' },
        reported: { status: 400, code: 'ValidationException', message: 'The provided model is invalid.' },
      },
      {
        name: 'a key in the text',
        status: 403,
        body: { message: `The key ${canary} is not valid.` },
        reported: { status: 403, code: null, type: 'permission_error', message: 'The key [redacted] is not valid.' },
      },
    ],
    streamErrors: [
      {
        name: 'throttled',
        before: stream('end_turn', text('Hel')).lines.slice(0, 2),
        error: { throttlingException: { message: 'Too many tokens.' } },
        reported: { code: 'throttlingException', message: 'Too many tokens.' },
        firstStatus: 429,
      },
      {
        name: 'failed in the model',
        before: stream('end_turn', text('Hel')).lines.slice(0, 2),
        error: { modelStreamErrorException: { message: 'Broken.', originalStatusCode: 500 } },
        reported: { code: 'modelStreamErrorException', message: 'Broken.' },
        firstStatus: 424,
      },
    ],
    brokenAnswers: [
      { name: 'no JSON', whole: { body: '<html>' }, code: 'upstream_invalid_response' },
      { name: 'no message', whole: { body: { output: {} } }, code: 'upstream_invalid_response' },
      { name: 'a stream without an event', stream: { lines: [] }, code: 'upstream_truncated' },
    ],
    encodings: [
      {
        name: 'instructions and limits',
        request: {
          messages: [
            { role: 'system', content: 'Be kind.' },
            { role: 'user', content: 'Hi' },
            { role: 'developer', content: 'Be brief.' },
          ],
          stop: 'END',
          max_tokens: 50,
          top_k: 5,
          guardrailConfig: { guardrailIdentifier: 'g', guardrailVersion: '1' },
        },
        path: pathOf('converse'),
        headers: { authorization: `Bearer ${canary}`, 'x-amz-date': undefined },
        body: {
          system: [{ text: 'Be kind.' }, { text: 'Be brief.' }],
          inferenceConfig: { maxTokens: 50, stopSequences: ['END'] },
          additionalModelRequestFields: { top_k: 5 },
          guardrailConfig: { guardrailIdentifier: 'g', guardrailVersion: '1' },
          model: undefined,
        },
      },
      {
        name: 'a stream',
        request: {},
        stream: true,
        path: pathOf('converse-stream'),
        body: { inferenceConfig: undefined },
      },
    ],
    dropped: [
      {
        request: { logit_bias: { 5: 1 }, seed: 7, presence_penalty: 1 },
        names: ['logit_bias', 'seed', 'presence_penalty'],
      },
      { request: { temperature: 1.5 }, names: ['temperature'] },
      { request: { tools, parallel_tool_calls: false }, names: ['parallel_tool_calls'] },
    ],
    refused: [
      { request: { n: 2 }, param: 'n' },
      { request: { logprobs: true }, param: 'logprobs' },
    ],
  },
  {
    ...shared,
    variant: 'signed',
    model: 'amazon.titan-embed-text-v2:0',
    apiKey: null,
    settings: { aws_region: 'eu-central-1', aws_access_key_id: 'AKIDEXAMPLE' },
    secrets: () => ({ aws_secret_access_key: 'aws-SECRET-0123456789', aws_session_token: 'aws-TOKEN-0123456789' }),
    answers: [],
    conversations: [],
    earlyErrors: [],
    streamErrors: [],
    encodings: [
      {
        name: 'carries a signature over its own digest',
        request: {},
        path: '/model/amazon.titan-embed-text-v2%3A0/converse',
        headers: {
          authorization: expect.stringMatching(
            /^AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE\/20231114\/eu-central-1\/bedrock\/aws4_request, SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date;x-amz-security-token, Signature=[0-9a-f]{64}$/,
          ) as string,
          'x-amz-security-token': 'aws-TOKEN-0123456789',
          'x-amz-date': '20231114T221320Z',
        },
      },
    ],
    embeddings: [
      {
        name: 'one text',
        request: { input: 'sunny day', dimensions: 256 },
        sends: { inputText: 'sunny day', dimensions: 256 },
        whole: { body: { embedding: [0.5, -1], inputTextTokenCount: 3 } },
        vectors: [[0.5, -1]],
        promptTokens: 3,
      },
    ],
  },
];

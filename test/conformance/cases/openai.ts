import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase } from '../conformance-case.ts';
import { chunk, completion, counts, parallel, parallelStream, stream, tools } from '../openai-payloads.ts';
import { sseWire } from '../wires.ts';

export const openAi: ConformanceCase = {
  provider: 'openai',
  model: 'gpt-test',
  folder: '/v1',
  wire: sseWire({ done: true }),
  passThrough: true,
  answers: [
    {
      name: 'text beyond ASCII',
      whole: completion({ content: 'Schöne Grüße 😀' }, 'stop'),
      stream: stream('stop', { content: 'Schöne ' }, { content: 'Grüße 😀' }),
      says: { text: 'Schöne Grüße 😀', finishReason: 'stop', usage: counts },
    },
    {
      name: 'parallel tool calls',
      request: { tools },
      whole: completion({ tool_calls: parallel }, 'tool_calls'),
      stream: parallelStream,
      says: {
        text: null,
        toolCalls: [
          { id: 'call_1', name: 'weather', arguments: { city: 'Köln' } },
          { id: 'call_2', name: 'time', arguments: {} },
        ],
        finishReason: 'tool_calls',
        usage: counts,
      },
    },
    {
      name: 'refusal',
      whole: completion({ refusal: 'I cannot help with that.' }, 'stop'),
      stream: stream('stop', { refusal: 'I cannot' }, { refusal: ' help with that.' }),
      says: { text: null, refusal: 'I cannot help with that.', finishReason: 'stop', usage: counts },
    },
    {
      name: 'content filter',
      whole: completion({ content: 'So f' }, 'content_filter'),
      stream: stream('content_filter', { content: 'So f' }),
      says: { text: 'So f', finishReason: 'content_filter', usage: counts },
    },
    {
      name: 'full text',
      whole: { fixture: 'openai-text.json' },
      says: {
        text: /^\*\*A plan for a small library\*\*.*changed later\.$/s,
        finishReason: 'stop',
        usage: { prompt: 16, completion: 363 },
      },
    },
  ],
  conversations: [
    {
      name: 'parallel calls',
      request: { messages: [{ role: 'user', content: 'Weather and time?' }], tools },
      first: { whole: completion({ tool_calls: parallel }, 'tool_calls'), stream: parallelStream },
      results: { weather: 'rain', time: '12:00' },
      second: {
        whole: completion({ content: 'Rain at noon.' }, 'stop'),
        stream: stream('stop', { content: 'Rain at noon.' }),
      },
      finalText: 'Rain at noon.',
      secondRequest: () => ({
        model: 'gpt-test',
        messages: [
          { role: 'user' },
          { role: 'assistant', tool_calls: parallel },
          { role: 'tool', tool_call_id: 'call_1', content: 'rain' },
          { role: 'tool', tool_call_id: 'call_2', content: '12:00' },
        ],
      }),
    },
  ],
  earlyErrors: [
    {
      name: 'too many requests',
      status: 429,
      headers: { 'retry-after': '7' },
      body: { error: { message: 'Rate limit reached', type: 'requests', param: null, code: 'rate_limit_exceeded' } },
      reported: {
        status: 429,
        code: 'rate_limit_exceeded',
        message: 'Rate limit reached',
        type: 'requests',
        retryAfterMs: 7_000,
      },
    },
    {
      name: 'a key in the text',
      status: 401,
      body: {
        error: {
          message: `Incorrect API key provided: ${canary}.`,
          type: 'invalid_request_error',
          param: null,
          code: 'invalid_api_key',
        },
      },
      reported: { status: 401, code: 'invalid_api_key', message: 'Incorrect API key provided: [redacted].' },
    },
  ],
  streamErrors: [
    {
      name: 'sent as an object',
      before: [chunk({ role: 'assistant', content: 'Hel' })],
      error: {
        error: { message: 'The server had an error', type: 'server_error', param: null, code: 'server_error' },
      },
      reported: { code: 'server_error', message: 'The server had an error' },
      firstStatus: 502,
    },
  ],
  brokenAnswers: [
    { name: 'no JSON', whole: { body: '<html>' }, code: 'upstream_invalid_response' },
    { name: 'no choices', whole: { body: { object: 'chat.completion' } }, code: 'upstream_invalid_response' },
    { name: 'a stream without an event', stream: { lines: [] }, code: 'upstream_truncated' },
    { name: 'an event without JSON', stream: { lines: ['oops'] }, code: 'upstream_invalid_response' },
  ],
  encodings: [
    {
      name: 'a developer message stays',
      request: { messages: [{ role: 'developer', content: 'Be brief.' }], future_parameter: 1 },
      path: '/v1/chat/completions',
      headers: { authorization: `Bearer ${canary}` },
      body: { messages: [{ role: 'developer', content: 'Be brief.' }], future_parameter: 1 },
    },
  ],
  embeddings: [
    {
      name: 'recorded',
      request: { input: ['sunny day at the beach', 'rainy day in the city'] },
      sends: { input: ['sunny day at the beach', 'rainy day in the city'] },
      whole: { fixture: 'openai-embedding.json' },
      vectors: [
        [-0.098988443, 0.094356074, 0.009538226, -0.00760114, -0.064298653],
        [-0.042421869, 0.098830262, 0.084512421, 0.050550073, -0.021253866],
      ],
      promptTokens: 12,
    },
  ],
  models: {
    whole: { body: { object: 'list', data: [{ id: 'gpt-test', object: 'model', created: 1, owned_by: 'openai' }] } },
    path: '/v1/models',
    ids: ['gpt-test'],
  },
};

export const cases: readonly ConformanceCase[] = [openAi];

import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase } from '../conformance-case.ts';
import { sseWire } from '../wires.ts';

const usage = {
  billed_units: { input_tokens: 12, output_tokens: 7 },
  tokens: { input_tokens: 30, output_tokens: 11 },
  cached_tokens: 8,
};
const counts = { prompt: 30, completion: 11, cached: 8 };

const answer = (message: object, reason: string) => ({
  body: { id: 'c1', message: { role: 'assistant', ...message }, finish_reason: reason, usage },
});
const stream = (reason: string, ...events: object[]) => ({
  lines: [
    {
      id: 'c1',
      type: 'message-start',
      delta: { message: { role: 'assistant', content: [], tool_plan: '', tool_calls: [], citations: [] } },
    },
    ...events,
    { type: 'message-end', delta: { finish_reason: reason, usage } },
  ],
});
const block = (index: number, type: 'text' | 'thinking', ...pieces: string[]) => [
  { type: 'content-start', index, delta: { message: { content: { type, [type]: '' } } } },
  ...pieces.map((piece) => ({ type: 'content-delta', index, delta: { message: { content: { [type]: piece } } } })),
  { type: 'content-end', index },
];
const called = (index: number, id: string, name: string, ...pieces: string[]) => [
  {
    type: 'tool-call-start',
    index,
    delta: { message: { tool_calls: { id, type: 'function', function: { name, arguments: '' } } } },
  },
  ...pieces.map((piece) => ({
    type: 'tool-call-delta',
    index,
    delta: { message: { tool_calls: { function: { arguments: piece } } } },
  })),
  { type: 'tool-call-end', index },
];

const toolCall = (id: string, name: string, input: string) => ({
  id,
  type: 'function',
  function: { name, arguments: input },
});
const tools = ['weather', 'now'].map((name) => ({
  type: 'function',
  function: {
    name,
    description: `tells ${name}`,
    parameters: { type: 'object', properties: { city: { type: 'string' } } },
  },
}));
// A call without arguments, as Cohere writes it: null.
const parallel = {
  whole: answer(
    {
      tool_plan: 'I will look.',
      tool_calls: [toolCall('weather_1', 'weather', '{"city":"Köln"}'), toolCall('now_2', 'now', 'null')],
    },
    'TOOL_CALL',
  ),
  stream: stream(
    'TOOL_CALL',
    { type: 'tool-plan-delta', delta: { message: { tool_plan: 'I will ' } } },
    { type: 'tool-plan-delta', delta: { message: { tool_plan: 'look.' } } },
    ...called(0, 'weather_1', 'weather', '{"', 'city":"Kö', 'ln"}'),
    ...called(1, 'now_2', 'now', 'nu', 'll'),
  ),
};
const sunny = {
  whole: answer({ content: [{ type: 'text', text: 'Sunny.' }] }, 'COMPLETE'),
  stream: stream('COMPLETE', ...block(0, 'text', 'Sun', 'ny.')),
};

export const cases: readonly ConformanceCase[] = [
  {
    provider: 'cohere',
    model: 'command-a-03-2025',
    folder: '/v2',
    wire: sseWire({ eventOf: (json) => (json as { type?: string }).type ?? 'message' }),
    answers: [
      {
        name: 'text beyond ASCII',
        whole: answer({ content: [{ type: 'text', text: 'Schöne Grüße 😀' }] }, 'COMPLETE'),
        stream: stream('COMPLETE', ...block(0, 'text', 'Schöne ', 'Grüße 😀')),
        says: { text: 'Schöne Grüße 😀', finishReason: 'stop', usage: counts },
      },
      {
        name: 'parallel tool calls, one without arguments',
        request: { tools },
        ...parallel,
        says: {
          text: null,
          toolCalls: [
            { id: 'weather_1', name: 'weather', arguments: { city: 'Köln' } },
            { id: 'now_2', name: 'now', arguments: {} },
          ],
          finishReason: 'tool_calls',
          usage: counts,
        },
      },
      {
        name: 'thinking, then text',
        whole: answer(
          {
            content: [
              { type: 'thinking', thinking: 'Two and two.' },
              { type: 'text', text: '4' },
            ],
          },
          'COMPLETE',
        ),
        stream: stream('COMPLETE', ...block(0, 'thinking', 'Two ', 'and two.'), ...block(1, 'text', '4')),
        says: {
          text: '4',
          finishReason: 'stop',
          usage: counts,
          contentBlocks: [
            { type: 'thinking', thinking: 'Two and two.' },
            { type: 'text', text: '4' },
          ],
        },
      },
      {
        name: 'cut at max_tokens',
        whole: answer({ content: [{ type: 'text', text: 'So' }] }, 'MAX_TOKENS'),
        stream: stream('MAX_TOKENS', ...block(0, 'text', 'So')),
        says: { text: 'So', finishReason: 'length', usage: counts },
      },
      {
        name: 'content filter',
        whole: answer({ content: [] }, 'ERROR_TOXIC'),
        stream: stream('ERROR_TOXIC'),
        says: { text: null, finishReason: 'content_filter', usage: counts },
      },
      {
        name: 'citations, which strict answers leave out',
        whole: answer(
          { content: [{ type: 'text', text: 'Tall.' }], citations: [{ start: 0, end: 4, text: 'Tall', sources: [] }] },
          'COMPLETE',
        ),
        stream: stream(
          'COMPLETE',
          ...block(0, 'text', 'Tall.'),
          {
            type: 'citation-start',
            index: 0,
            delta: { message: { citations: { start: 0, end: 4, text: 'Tall', sources: [] } } },
          },
          { type: 'citation-end', index: 0 },
        ),
        says: { text: 'Tall.', finishReason: 'stop', usage: counts, contentBlocks: [{ type: 'text', text: 'Tall.' }] },
      },
      {
        name: 'full text',
        whole: { fixture: 'cohere-text.json' },
        says: {
          text: 'The capital of Norway is Oslo.',
          finishReason: 'stop',
          usage: { prompt: 507, completion: 10, cached: 448 },
        },
      },
      {
        name: 'full text stream',
        stream: { fixture: 'cohere-text.chunks.txt' },
        says: {
          text: 'The capital of Norway is Oslo.',
          finishReason: 'stop',
          usage: { prompt: 507, completion: 10, cached: 448 },
        },
      },
      {
        name: 'full reasoning',
        whole: { fixture: 'cohere-reasoning.json' },
        says: {
          text: '6 + 7 = 13',
          finishReason: 'stop',
          usage: { prompt: 1394, completion: 582, cached: 1344 },
          contentBlocks: [
            {
              type: 'thinking',
              thinking: 'The user wants the sum of 6 and 7. Six and four make ten, and three of the seven are left.',
            },
            { type: 'text', text: '6 + 7 = 13' },
          ],
        },
      },
      {
        name: 'full reasoning stream',
        stream: { fixture: 'cohere-reasoning.chunks.txt' },
        says: {
          text: 'The sum of 6 and 7 is 13.',
          finishReason: 'stop',
          usage: { prompt: 1394, completion: 54, cached: 1360 },
        },
      },
      {
        name: 'full tool calls',
        request: { tools },
        whole: { fixture: 'cohere-tool-call.json' },
        says: {
          text: null,
          toolCalls: [
            { id: 'weather_sffnlmxsw4s7', name: 'weather', arguments: { location: 'Lisbon' } },
            { id: 'cityMuseums_hmcqs5lqdm77', name: 'cityMuseums', arguments: { city: 'Lisbon' } },
          ],
          finishReason: 'tool_calls',
          usage: { prompt: 1549, completion: 103, cached: 992 },
        },
      },
      {
        name: 'full tool call stream',
        request: { tools },
        stream: { fixture: 'cohere-tool-call.chunks.txt' },
        says: {
          text: null,
          toolCalls: [
            { id: 'weather_y6d1sj84yk7a', name: 'weather', arguments: { location: 'Lisbon' } },
            { id: 'cityMuseums_edgyijoap9ys', name: 'cityMuseums', arguments: { city: 'Lisbon' } },
          ],
          finishReason: 'tool_calls',
          usage: { prompt: 1549, completion: 95, cached: 1504 },
        },
      },
    ],
    conversations: [
      {
        name: 'parallel calls',
        request: {
          messages: [
            { role: 'developer', content: 'Be brief.' },
            { role: 'user', content: 'Weather and time?' },
          ],
          tools,
        },
        first: parallel,
        results: { weather: 'sun', now: '12:00' },
        second: sunny,
        finalText: 'Sunny.',
        secondRequest: () => ({
          messages: [
            { role: 'system', content: 'Be brief.' },
            { role: 'user', content: 'Weather and time?' },
            {
              role: 'assistant',
              tool_calls: [toolCall('weather_1', 'weather', '{"city":"Köln"}'), toolCall('now_2', 'now', '{}')],
            },
            { role: 'tool', tool_call_id: 'weather_1', content: 'sun' },
            { role: 'tool', tool_call_id: 'now_2', content: '12:00' },
          ],
        }),
      },
    ],
    earlyErrors: [
      {
        name: 'too many requests',
        status: 429,
        headers: { 'retry-after': '3' },
        body: { id: 'e1', message: 'You are using a Trial key, which is limited to 10 calls / minute.' },
        reported: {
          status: 429,
          code: null,
          message: 'You are using a Trial key, which is limited to 10 calls / minute.',
          type: 'rate_limit_error',
          retryAfterMs: 3_000,
        },
      },
      {
        name: 'a key in the text',
        status: 401,
        body: { message: `invalid api token ${canary}` },
        reported: { status: 401, code: null, message: 'invalid api token [redacted]', type: 'invalid_request_error' },
      },
      {
        name: 'no JSON',
        status: 503,
        body: 'upstream connect error',
        reported: { status: 503, code: null, message: 'upstream connect error', type: 'server_error' },
      },
    ],
    streamErrors: [
      {
        name: 'ERROR at the end',
        before: stream('', ...block(0, 'text', 'Hel')).lines.slice(0, -1),
        error: { type: 'message-end', delta: { finish_reason: 'ERROR', error: 'the model crashed' } },
        reported: { code: 'upstream_error', message: 'the model crashed' },
        firstStatus: 502,
      },
      {
        name: 'TIMEOUT at the end',
        before: stream('', ...block(0, 'text', 'Hel')).lines.slice(0, -1),
        error: { type: 'message-end', delta: { finish_reason: 'TIMEOUT' } },
        reported: { code: 'upstream_timeout', message: 'Cohere timed out while generating this answer.' },
        firstStatus: 504,
      },
      {
        name: 'a flat error beside the protocol',
        before: stream('', ...block(0, 'text', 'Hel')).lines.slice(0, -1),
        error: { message: 'internal server error', id: 'e2' },
        reported: { code: null, message: 'internal server error' },
        firstStatus: 502,
      },
    ],
    brokenAnswers: [
      {
        name: 'ended in ERROR',
        whole: answer({ content: [{ type: 'text', text: 'Hel' }] }, 'ERROR'),
        code: 'upstream_error',
      },
      { name: 'ended in TIMEOUT', whole: answer({ content: [] }, 'TIMEOUT'), code: 'upstream_timeout' },
      { name: 'no message', whole: { body: { id: 'c1' } }, code: 'upstream_invalid_response' },
      {
        name: 'an event without JSON',
        stream: { lines: [{ type: 'message-start', id: 'c1' }] },
        code: 'upstream_truncated',
      },
    ],
    encodings: [
      {
        name: 'parameters by their names there',
        request: {
          max_completion_tokens: 5,
          temperature: 0.5,
          top_p: 0.9,
          top_k: 4,
          seed: 7,
          stop: 'END',
          frequency_penalty: 0.1,
          presence_penalty: 0.2,
          safety_mode: 'STRICT',
        },
        path: '/v2/chat',
        headers: { authorization: `Bearer ${canary}` },
        body: {
          model: 'command-a-03-2025',
          max_tokens: 5,
          temperature: 0.5,
          p: 0.9,
          k: 4,
          seed: 7,
          stop_sequences: ['END'],
          frequency_penalty: 0.1,
          presence_penalty: 0.2,
          safety_mode: 'STRICT',
          top_p: undefined,
          stop: undefined,
          max_completion_tokens: undefined,
          stream: undefined,
        },
      },
      {
        name: 'one tool by name',
        request: { tools, tool_choice: { type: 'function', function: { name: 'now' } } },
        stream: true,
        body: {
          stream: true,
          tools: [{ function: { name: 'now' } }],
          tool_choice: 'REQUIRED',
          stream_options: undefined,
        },
      },
      { name: 'any tool', request: { tools, tool_choice: 'required' }, body: { tool_choice: 'REQUIRED', tools } },
      { name: 'no tool', request: { tools, tool_choice: 'none' }, body: { tool_choice: 'NONE' } },
      { name: 'tools as it likes', request: { tools, tool_choice: 'auto' }, body: { tool_choice: undefined } },
      {
        name: 'an image and a text',
        request: {
          messages: [
            {
              role: 'user',
              content: [
                { type: 'text', text: 'What?' },
                { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA', detail: 'low' } },
              ],
            },
          ],
        },
        body: {
          messages: [
            {
              content: [
                { type: 'text', text: 'What?' },
                { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA', detail: 'low' } },
              ],
            },
          ],
        },
      },
      {
        name: 'a schema',
        request: {
          response_format: {
            type: 'json_schema',
            json_schema: { name: 'x', schema: { type: 'object' }, strict: true },
          },
        },
        body: { response_format: { type: 'json_object', json_schema: { type: 'object' } } },
      },
      {
        name: 'a JSON object of any shape',
        request: { response_format: { type: 'json_object' } },
        body: { response_format: { type: 'json_object' } },
      },
    ],
    dropped: [
      { request: { logit_bias: { 1: 2 }, user: 'u' }, names: ['logit_bias', 'user'] },
      {
        request: {
          messages: [{ role: 'user', name: 'Ada', content: 'Hi' }],
          reasoning_effort: 'high',
          parallel_tool_calls: false,
        },
        names: ['messages[0].name', 'reasoning_effort', 'parallel_tool_calls'],
      },
      { request: { thinking: { type: 'enabled', budget_tokens: 5 } }, names: ['thinking'] },
    ],
    refused: [
      { request: { n: 2 }, param: 'n' },
      { request: { logprobs: true }, param: 'logprobs' },
      { request: { modalities: ['text', 'audio'] }, param: 'modalities' },
      {
        request: {
          messages: [
            { role: 'user', content: [{ type: 'input_audio', input_audio: { data: 'AAAA', format: 'wav' } }] },
          ],
        },
        param: 'messages[0].content[0]',
      },
    ],
    embeddings: [
      {
        name: 'as documents unless the request says otherwise',
        request: { input: ['sunny day at the beach', 'rainy day in the city'], dimensions: 256 },
        sends: {
          texts: ['sunny day at the beach', 'rainy day in the city'],
          input_type: 'search_document',
          embedding_types: ['float'],
          output_dimension: 256,
        },
        whole: { fixture: 'cohere-embedding.json' },
        vectors: [
          [-0.093685754, -0.069312744, -0.083917604, 0.069175515, 0.087961125],
          [0.007997028, -0.06394345, 0.025023189, 0.006245819, -0.047070118],
        ],
        promptTokens: 10,
      },
      {
        name: 'a single query',
        request: { input: 'beach', input_type: 'search_query' },
        sends: { texts: ['beach'], input_type: 'search_query' },
        whole: { body: { id: 'e', embeddings: { float: [[0.5, -1]] }, meta: { billed_units: { input_tokens: 2 } } } },
        vectors: [[0.5, -1]],
        promptTokens: 2,
      },
    ],
    models: {
      whole: { body: { models: [{ name: 'command-a-03-2025', endpoints: ['chat'] }] } },
      path: '/v1/models?page_size=1000',
      ids: ['command-a-03-2025'],
    },
  },
];

import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase, Json } from '../conformance-case.ts';
import { sseWire } from '../wires.ts';

const head = { id: 'msg_1', type: 'message', role: 'assistant', model: 'claude-test-2026' };
const usage = { input_tokens: 10, cache_creation_input_tokens: 4, cache_read_input_tokens: 6, output_tokens: 9 };
const says = { prompt: 20, completion: 9, cached: 6 };
const billed = { cacheWriteTokens: 4 };

const message = (stop: string, ...content: object[]) => ({
  body: { ...head, content, stop_reason: stop, stop_sequence: null, usage },
});

type Block = { type: string; [member: string]: unknown };
/** A stream of these blocks, each with the deltas that make it up. */
const stream = (stop: string, ...blocks: [Block, ...object[]][]) => ({
  lines: [
    { type: 'message_start', message: { ...head, content: [], usage: { ...usage, output_tokens: 1 } } },
    { type: 'ping' },
    ...blocks.flatMap(([block, ...deltas], index) => [
      { type: 'content_block_start', index, content_block: block },
      ...deltas.map((delta) => ({ type: 'content_block_delta', index, delta })),
      { type: 'content_block_stop', index },
    ]),
    {
      type: 'message_delta',
      delta: { stop_reason: stop, stop_sequence: null },
      usage: { output_tokens: usage.output_tokens },
    },
    { type: 'message_stop' },
  ],
});
const text = (...deltas: string[]): [Block, ...object[]] => [
  { type: 'text', text: '' },
  ...deltas.map((delta) => ({ type: 'text_delta', text: delta })),
];
const toolUse = (id: string, name: string, ...fragments: string[]): [Block, ...object[]] => [
  { type: 'tool_use', id, name, input: {} },
  ...fragments.map((fragment) => ({ type: 'input_json_delta', partial_json: fragment })),
];

const tools = ['weather', 'time'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { city: { type: 'string' } } } },
}));
const parallel = message(
  'tool_use',
  { type: 'text', text: 'Let me look.' },
  { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Köln' } },
  { type: 'tool_use', id: 'toolu_2', name: 'time', input: {} },
);
const parallelStream = stream(
  'tool_use',
  text('Let me', ' look.'),
  toolUse('toolu_1', 'weather', '', '{"city":', '"Köln"}'),
  toolUse('toolu_2', 'time', ''),
);
const thought = { type: 'thinking', thinking: 'Five times 185.', signature: 'sig==' };
const hidden = { type: 'redacted_thinking', data: 'cmVkYWN0ZWQ=' };

const error = (type: string, text: string): Json => ({
  type: 'error',
  error: { type, message: text },
  request_id: 'req_1',
});

export const cases: readonly ConformanceCase[] = [
  {
    provider: 'anthropic',
    model: 'claude-sonnet-4-5',
    folder: '/v1',
    wire: sseWire({ eventOf: (json) => (json as { type: string }).type }),
    answers: [
      {
        name: 'text beyond ASCII',
        whole: message('end_turn', { type: 'text', text: 'Schöne ' }, { type: 'text', text: 'Grüße 😀' }),
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
            { id: 'toolu_1', name: 'weather', arguments: { city: 'Köln' } },
            { id: 'toolu_2', name: 'time', arguments: {} },
          ],
          finishReason: 'tool_calls',
          usage: says,
          billed,
        },
      },
      {
        name: 'thinking',
        whole: message('end_turn', thought, hidden, { type: 'text', text: '185' }),
        stream: stream(
          'end_turn',
          [
            { type: 'thinking', thinking: '', signature: '' },
            { type: 'thinking_delta', thinking: 'Five times' },
            { type: 'thinking_delta', thinking: ' 185.' },
            { type: 'signature_delta', signature: 'sig==' },
          ],
          [hidden],
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
        name: 'full context window',
        whole: message('model_context_window_exceeded', { type: 'text', text: 'So f' }),
        stream: stream('model_context_window_exceeded', text('So f')),
        says: { text: 'So f', finishReason: 'length', usage: says, billed },
      },
      {
        name: 'paused turn',
        whole: message('pause_turn', { type: 'text', text: 'Wait' }),
        stream: stream('pause_turn', text('Wait')),
        says: { text: 'Wait', finishReason: 'stop', usage: says, billed },
      },
      {
        name: 'full text, whole',
        whole: { fixture: 'anthropic-text.json' },
        says: {
          text: /^Good morning! All is well here.*time do you have\?$/,
          finishReason: 'stop',
          usage: { prompt: 12, completion: 29 },
        },
      },
      {
        name: 'full text, streamed',
        stream: { fixture: 'anthropic-text.chunks.txt' },
        says: {
          text: /^Good morning! All is well here.*time do you have\?$/,
          finishReason: 'stop',
          usage: { prompt: 12, completion: 30 },
        },
      },
      {
        name: 'full refusal',
        whole: { fixture: 'anthropic-refusal.json' },
        stream: { fixture: 'anthropic-refusal.chunks.txt' },
        says: {
          text: null,
          refusal:
            'This request was declined: it asks for help that the usage policy on computer security does not allow.',
          finishReason: 'content_filter',
          usage: { prompt: 18, completion: 5 },
        },
      },
      {
        name: 'full call without arguments, whole',
        whole: { fixture: 'anthropic-tool-no-args.json' },
        says: {
          text: /refresh the calendar now:$/,
          toolCalls: [{ id: 'toolu_01VMjus5hAZ1g8BJFCOxhnP7', name: 'refreshCalendar', arguments: {} }],
          finishReason: 'tool_calls',
          usage: { prompt: 602, completion: 93 },
        },
      },
      {
        name: 'full call without arguments, streamed',
        stream: { fixture: 'anthropic-tool-no-args.chunks.txt' },
        says: {
          text: "I'll refresh the calendar for you.",
          toolCalls: [{ id: 'toolu_01RS0AVyRPp0uq9K0GtGPviK', name: 'refreshCalendar', arguments: {} }],
          finishReason: 'tool_calls',
          usage: { prompt: 565, completion: 48 },
        },
      },
      {
        name: 'full thinking, whole',
        whole: { fixture: 'anthropic-clear-thinking.1.json' },
        says: { text: '372 ÷ 4 = 93', finishReason: 'stop', usage: { prompt: 69, completion: 33 } },
      },
      {
        name: 'full thinking, streamed',
        stream: { fixture: 'anthropic-clear-thinking.1.chunks.txt' },
        says: { text: '372 ÷ 4 = 93', finishReason: 'stop', usage: { prompt: 69, completion: 53 } },
      },
    ],
    conversations: [
      {
        name: 'parallel calls',
        request: { messages: [{ role: 'user', content: 'Weather and time?' }], tools },
        first: { whole: parallel, stream: parallelStream },
        results: { weather: 'rain', time: '12:00' },
        second: {
          whole: message('end_turn', { type: 'text', text: 'Rain at noon.' }),
          stream: stream('end_turn', text('Rain at noon.')),
        },
        finalText: 'Rain at noon.',
        secondRequest: () => ({
          model: 'claude-sonnet-4-5',
          messages: [
            { role: 'user', content: [{ type: 'text', text: 'Weather and time?' }] },
            {
              role: 'assistant',
              content: [
                { type: 'text', text: 'Let me look.' },
                { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Köln' } },
                { type: 'tool_use', id: 'toolu_2', name: 'time', input: {} },
              ],
            },
            {
              role: 'user',
              content: [
                { type: 'tool_result', tool_use_id: 'toolu_1', content: [{ type: 'text', text: 'rain' }] },
                { type: 'tool_result', tool_use_id: 'toolu_2', content: [{ type: 'text', text: '12:00' }] },
              ],
            },
          ],
        }),
      },
    ],
    earlyErrors: [
      {
        name: 'overloaded',
        status: 529,
        body: error('overloaded_error', 'Overloaded'),
        reported: { status: 529, code: 'overloaded_error', type: 'overloaded_error', message: 'Overloaded' },
      },
      {
        name: 'too many requests',
        status: 429,
        headers: { 'retry-after': '7' },
        body: error('rate_limit_error', 'Number of requests has exceeded your rate limit'),
        reported: {
          status: 429,
          code: 'rate_limit_error',
          type: 'rate_limit_error',
          message: 'Number of requests has exceeded your rate limit',
          retryAfterMs: 7_000,
        },
      },
      {
        name: 'a key in the text',
        status: 401,
        body: error('authentication_error', `invalid x-api-key ${canary}`),
        reported: { status: 401, code: 'authentication_error', message: 'invalid x-api-key [redacted]' },
      },
    ],
    streamErrors: [
      {
        name: 'overloaded',
        before: stream('end_turn', text('Hel')).lines.slice(0, 4),
        error: error('overloaded_error', 'Overloaded'),
        reported: { code: 'overloaded_error', message: 'Overloaded' },
        firstStatus: 529,
      },
    ],
    brokenAnswers: [
      { name: 'no JSON', whole: { body: '<html>' }, code: 'upstream_invalid_response' },
      { name: 'no message', whole: { body: { type: 'message' } }, code: 'upstream_invalid_response' },
      { name: 'a stream without an event', stream: { lines: [] }, code: 'upstream_truncated' },
    ],
    encodings: [
      {
        name: 'instructions, stop list, one call at a time',
        request: {
          messages: [
            { role: 'system', content: 'Be kind.' },
            { role: 'user', content: 'Hi' },
            { role: 'developer', content: 'Be brief.' },
          ],
          stop: 'END',
          tools,
          parallel_tool_calls: false,
          max_completion_tokens: 50,
        },
        path: '/v1/messages',
        headers: { 'x-api-key': canary, 'anthropic-version': '2023-06-01', authorization: undefined },
        body: {
          system: [
            { type: 'text', text: 'Be kind.' },
            { type: 'text', text: 'Be brief.' },
          ],
          stop_sequences: ['END'],
          tool_choice: { type: 'auto', disable_parallel_tool_use: true },
          max_tokens: 50,
          max_completion_tokens: undefined,
          stream: undefined,
        },
      },
      {
        name: 'a stream',
        request: {},
        stream: true,
        path: '/v1/messages',
        body: { stream: true, stream_options: undefined },
      },
    ],
    dropped: [
      {
        request: { logit_bias: { 5: 1 }, seed: 7, presence_penalty: 1 },
        names: ['logit_bias', 'seed', 'presence_penalty'],
      },
      { request: { temperature: 1.5 }, names: ['temperature'] },
      { request: { messages: [{ role: 'user', content: 'Hi', name: 'Ann' }] }, names: ['messages[0].name'] },
    ],
    refused: [
      { request: { n: 2 }, param: 'n' },
      { request: { logprobs: true }, param: 'logprobs' },
      { request: { modalities: ['text', 'audio'], audio: { voice: 'alloy', format: 'mp3' } }, param: 'modalities' },
    ],
    models: {
      whole: {
        body: {
          data: [
            { type: 'model', id: 'claude-sonnet-4-5', display_name: 'Claude', created_at: '2025-09-29T00:00:00Z' },
          ],
          has_more: false,
        },
      },
      path: '/v1/models?limit=1000',
      ids: ['claude-sonnet-4-5'],
    },
  },
];

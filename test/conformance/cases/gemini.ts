import { canary } from '#test/forwarding-rig.ts';
import type { ConformanceCase, Json } from '../conformance-case.ts';
import { sseWire } from '../wires.ts';

const head = { modelVersion: 'gemini-3-test', responseId: 'resp-1' };
const counts = { promptTokenCount: 20, candidatesTokenCount: 5, thoughtsTokenCount: 4, cachedContentTokenCount: 8 };
const usage = { prompt: 20, completion: 9, cached: 8, reasoning: 4 };

export const candidate = (parts: readonly Json[], finishReason?: string, more: Json = {}): Json => ({
  candidates: [
    {
      ...(parts.length > 0 ? { content: { role: 'model', parts } } : {}),
      ...(finishReason === undefined ? {} : { finishReason }),
      index: 0,
      ...more,
    },
  ],
  usageMetadata: counts,
  ...head,
});
const answer = (parts: readonly Json[], finish = 'STOP') => ({ body: candidate(parts, finish) });
const stream = (finish: string, ...events: (readonly Json[])[]) => ({
  lines: [...events.map((parts) => candidate(parts)), candidate([{ text: '' }], finish)],
});

const signature = 'EskgCsYgAb4+9vtF7/499YQS2bjZs3xcQI+iAl+ILn29nK1j0Kg6uw==';
const weather = { functionCall: { name: 'weather', args: { city: 'Köln' } }, thoughtSignature: signature };
const time = { functionCall: { name: 'time', args: {} } };
const tools = ['weather', 'time'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { city: { type: 'string' } } } },
}));
const parallelCalls = {
  text: 'Let me see.',
  toolCalls: [
    { name: 'weather', arguments: { city: 'Köln' } },
    { name: 'time', arguments: {} },
  ],
  finishReason: 'tool_calls' as const,
  usage,
};
const said = { text: 'Let me see.' };

const rateLimit = {
  error: {
    code: 429,
    message: 'You exceeded your current quota.',
    status: 'RESOURCE_EXHAUSTED',
    details: [
      { '@type': 'type.googleapis.com/google.rpc.QuotaFailure', violations: [] },
      { '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '34.4s' },
    ],
  },
};

/** What holds of Gemini models wherever they run: Vertex AI's case has the same answers. */
export const geminiAnswers: Pick<
  ConformanceCase,
  'answers' | 'conversations' | 'earlyErrors' | 'streamErrors' | 'brokenAnswers' | 'dropped' | 'refused'
> = {
  answers: [
    {
      name: 'text beyond ASCII',
      whole: answer([{ text: 'Schöne Grüße 😀' }]),
      stream: stream('STOP', [{ text: 'Schöne ' }], [{ text: 'Grüße ' }, { text: '😀' }]),
      says: {
        text: 'Schöne Grüße 😀',
        finishReason: 'stop',
        usage,
        contentBlocks: [{ type: 'text', text: 'Schöne Grüße 😀' }],
      },
    },
    {
      name: 'text and parallel tool calls, although Gemini says STOP',
      request: { tools },
      whole: answer([said, weather, time]),
      stream: stream('STOP', [{ text: 'Let me ' }], [{ text: 'see.' }, weather], [time]),
      says: parallelCalls,
    },
    {
      name: 'thoughts',
      whole: answer([
        { text: 'Hm. Yes.', thought: true },
        { text: 'Yes', thoughtSignature: 'c2ln' },
      ]),
      stream: stream(
        'STOP',
        [{ text: 'Hm. ', thought: true }],
        [{ text: 'Yes.', thought: true }],
        [{ text: 'Ye' }],
        [{ text: 's', thoughtSignature: 'c2ln' }],
      ),
      says: {
        text: 'Yes',
        finishReason: 'stop',
        usage,
        contentBlocks: [
          { type: 'thinking', thinking: 'Hm. Yes.' },
          { type: 'text', text: 'Yes', signature: 'c2ln' },
        ],
      },
    },
    {
      name: 'cut by the limit of tokens',
      whole: answer([{ text: 'Once upon' }], 'MAX_TOKENS'),
      stream: stream('MAX_TOKENS', [{ text: 'Once ' }], [{ text: 'upon' }]),
      says: { text: 'Once upon', finishReason: 'length', usage },
    },
    {
      name: 'stopped by a filter',
      whole: answer([{ text: 'So f' }], 'SAFETY'),
      stream: stream('SAFETY', [{ text: 'So f' }]),
      says: { text: 'So f', finishReason: 'content_filter', usage },
    },
    {
      name: 'a prompt that was blocked',
      whole: { body: { promptFeedback: { blockReason: 'PROHIBITED_CONTENT' }, usageMetadata: counts, ...head } },
      stream: { lines: [{ promptFeedback: { blockReason: 'PROHIBITED_CONTENT' }, usageMetadata: counts, ...head }] },
      says: { text: null, finishReason: 'content_filter', usage },
    },
    {
      name: 'a malformed call behind a text',
      whole: answer([said], 'MALFORMED_FUNCTION_CALL'),
      stream: stream('MALFORMED_FUNCTION_CALL', [said]),
      says: { text: 'Let me see.', finishReason: 'stop', usage },
    },
    {
      name: 'full text',
      whole: { fixture: 'google-text.json' },
      says: {
        text: "There are **91** days' worth of it.\n\nThe months: 31 + **29** + 31.",
        finishReason: 'stop',
        usage: { prompt: 9, completion: 272, reasoning: 244 },
      },
    },
    {
      name: 'full text, streamed',
      stream: { fixture: 'google-text.chunks.txt' },
      says: {
        text: 'There are **91** "days" in it.\n\n31 + **29** + 31',
        finishReason: 'stop',
        usage: { prompt: 9, completion: 208, reasoning: 185 },
      },
    },
    {
      name: 'full reasoning',
      whole: { fixture: 'google-reasoning.json' },
      says: {
        text: /^There are \*\*91\*\* "days" in it\./,
        finishReason: 'stop',
        usage: { prompt: 9, completion: 311, reasoning: 282 },
      },
    },
    {
      name: 'full reasoning, streamed',
      stream: { fixture: 'google-reasoning.chunks.txt' },
      says: {
        text: /^There are \*\*91\*\* "days" in it\./,
        finishReason: 'stop',
        usage: { prompt: 9, completion: 285, reasoning: 256 },
      },
    },
    {
      name: 'full tool call',
      whole: { fixture: 'google-tool-call.json' },
      says: {
        text: null,
        toolCalls: [{ name: 'weather', arguments: { location: 'Lisbon' } }],
        finishReason: 'tool_calls',
        usage: { prompt: 29, completion: 908, reasoning: 893 },
      },
    },
    {
      name: 'full tool call, streamed',
      stream: { fixture: 'google-tool-call.chunks.txt' },
      says: {
        text: null,
        toolCalls: [{ name: 'weather', arguments: { location: 'Lisbon' } }],
        finishReason: 'tool_calls',
        usage: { prompt: 29, completion: 60, reasoning: 45 },
      },
    },
  ],
  conversations: [
    {
      name: 'parallel calls, signature and results return',
      request: { messages: [{ role: 'user', content: 'Weather and time?' }], tools },
      first: { whole: answer([said, weather, time]), stream: stream('STOP', [said, weather], [time]) },
      results: { weather: 'rain', time: '{"now":"12:00"}' },
      second: { whole: answer([{ text: 'Rain at noon.' }]), stream: stream('STOP', [{ text: 'Rain at noon.' }]) },
      finalText: 'Rain at noon.',
      secondRequest: () => ({
        contents: [
          { role: 'user', parts: [{ text: 'Weather and time?' }] },
          { role: 'model', parts: [said, weather, time] },
          {
            role: 'user',
            parts: [
              { functionResponse: { name: 'weather', response: { output: 'rain' } } },
              { functionResponse: { name: 'time', response: { now: '12:00' } } },
            ],
          },
        ],
      }),
    },
  ],
  earlyErrors: [
    {
      name: 'too many requests, with the wait in the body',
      status: 429,
      body: rateLimit,
      reported: {
        status: 429,
        code: 'RESOURCE_EXHAUSTED',
        message: 'You exceeded your current quota.',
        type: 'rate_limit_error',
        retryAfterMs: 34_400,
      },
    },
    {
      name: 'in a list, with a key in the text',
      status: 400,
      body: [{ error: { code: 400, message: `API key not valid: ${canary}.`, status: 'INVALID_ARGUMENT' } }],
      reported: {
        status: 400,
        code: 'INVALID_ARGUMENT',
        message: 'API key not valid: [redacted].',
        type: 'invalid_request_error',
      },
    },
    {
      name: 'a field at fault',
      status: 400,
      body: {
        error: {
          code: 400,
          message: 'Invalid value',
          status: 'INVALID_ARGUMENT',
          details: [
            {
              '@type': 'type.googleapis.com/google.rpc.BadRequest',
              fieldViolations: [{ field: 'generation_config.top_k', description: 'too large' }],
            },
          ],
        },
      },
      reported: { status: 400, code: 'INVALID_ARGUMENT', message: 'Invalid value', param: 'generation_config.top_k' },
    },
  ],
  streamErrors: [
    {
      name: 'sent as an object',
      before: [candidate([{ text: 'Hel' }])],
      error: { error: { code: 503, message: 'The model is overloaded.', status: 'UNAVAILABLE' } },
      reported: { code: 'UNAVAILABLE', message: 'The model is overloaded.' },
      firstStatus: 503,
    },
  ],
  brokenAnswers: [
    { name: 'no JSON', whole: { body: '<html>' }, code: 'upstream_invalid_response' },
    { name: 'no candidates', whole: { body: { usageMetadata: counts } }, code: 'upstream_invalid_response' },
    {
      name: 'a malformed call and nothing else',
      whole: { body: candidate([], 'MALFORMED_FUNCTION_CALL', { finishMessage: 'Malformed function call: weather(' }) },
      stream: { lines: [candidate([], 'MALFORMED_FUNCTION_CALL')] },
      code: 'upstream_invalid_response',
    },
    { name: 'a stream without an event', stream: { lines: [] }, code: 'upstream_truncated' },
    { name: 'a stream without an end', stream: { lines: [candidate([{ text: 'Hel' }])] }, code: 'upstream_truncated' },
    { name: 'an event without JSON', stream: { lines: ['oops'] }, code: 'upstream_invalid_response' },
  ],
  dropped: [
    { request: { logit_bias: { 50256: -100 }, user: 'u1' }, names: ['logit_bias', 'user'] },
    { request: { seed: 4_294_967_296 }, names: ['seed'] },
    {
      request: { messages: [{ role: 'user', name: 'Ada', content: 'Hello' }], parallel_tool_calls: false },
      names: ['messages[0].name', 'parallel_tool_calls'],
    },
    { request: { thinking: { type: 'enabled', budget_tokens: 1_024 } }, names: ['thinking'] },
  ],
  refused: [
    { request: { modalities: ['text', 'audio'] }, param: 'modalities' },
    { request: { response_modalities: ['TEXT', 'IMAGE'] }, param: 'response_modalities' },
  ],
};

export const cases: readonly ConformanceCase[] = [
  {
    provider: 'gemini',
    model: 'gemini-3-test',
    folder: '/v1beta',
    wire: sseWire(),
    ...geminiAnswers,
    encodings: [
      {
        name: 'every instruction, roles merged, generation parameters',
        request: {
          messages: [
            { role: 'system', content: 'Be brief.' },
            { role: 'user', content: 'Hello' },
            { role: 'developer', content: [{ type: 'text', text: 'Be kind.' }] },
            { role: 'user', content: [{ type: 'text', text: 'there' }] },
          ],
          max_completion_tokens: 50,
          temperature: 0.5,
          top_p: 0.9,
          top_k: 40,
          n: 2,
          seed: 7,
          stop: 'END',
          presence_penalty: 0.5,
          frequency_penalty: -0.5,
          logprobs: true,
          top_logprobs: 3,
          reasoning_effort: 'low',
          safety_settings: [{ category: 'HARM_CATEGORY_HARASSMENT', threshold: 'OFF' }],
        },
        path: '/v1beta/models/gemini-3-test:generateContent',
        headers: { 'x-goog-api-key': canary, authorization: undefined },
        body: {
          model: undefined,
          systemInstruction: { parts: [{ text: 'Be brief.' }, { text: 'Be kind.' }] },
          contents: [{ role: 'user', parts: [{ text: 'Hello' }, { text: 'there' }] }],
          generationConfig: {
            maxOutputTokens: 50,
            temperature: 0.5,
            topP: 0.9,
            topK: 40,
            candidateCount: 2,
            seed: 7,
            stopSequences: ['END'],
            presencePenalty: 0.5,
            frequencyPenalty: -0.5,
            responseLogprobs: true,
            logprobs: 3,
            thinkingConfig: { thinkingLevel: 'low' },
          },
          safetySettings: [{ category: 'HARM_CATEGORY_HARASSMENT', threshold: 'OFF' }],
        },
      },
      {
        name: 'a stream',
        request: {},
        stream: true,
        path: '/v1beta/models/gemini-3-test:streamGenerateContent?alt=sse',
        body: { generationConfig: undefined, stream: undefined },
      },
    ],
    embeddings: [
      {
        name: 'of one text',
        request: { model: 'gemini-embedding-001', input: 'sunny', dimensions: 3 },
        sends: { content: { parts: [{ text: 'sunny' }] }, outputDimensionality: 3 },
        whole: { body: { embedding: { values: [0.1, 0.2, 0.3] }, usageMetadata: { promptTokenCount: 2 } } },
        vectors: [[0.1, 0.2, 0.3]],
        promptTokens: 2,
      },
      {
        name: 'of a list',
        request: { model: 'gemini-embedding-001', input: ['sunny', 'rainy'] },
        sends: {
          requests: [
            { model: 'models/gemini-embedding-001', content: { parts: [{ text: 'sunny' }] } },
            { model: 'models/gemini-embedding-001', content: { parts: [{ text: 'rainy' }] } },
          ],
        },
        whole: { body: { embeddings: [{ values: [0.1] }, { values: [0.2] }], usageMetadata: { promptTokenCount: 4 } } },
        vectors: [[0.1], [0.2]],
        promptTokens: 4,
      },
    ],
    models: {
      whole: { body: { models: [{ name: 'models/gemini-2.5-flash' }, { name: 'models/gemini-embedding-001' }] } },
      path: '/v1beta/models?pageSize=1000',
      ids: ['gemini-2.5-flash', 'gemini-embedding-001'],
    },
  },
];

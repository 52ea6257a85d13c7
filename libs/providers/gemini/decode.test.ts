import { describe, expect, test } from 'vitest';
import type { Call } from '../provider.ts';
import { decodeAll, translationCall } from '#test/translation-call.ts';
import { decodeGeminiChat, readGeminiDetails } from './decode.ts';
import { openGeminiStream } from './stream.ts';

// Cases that test/conformance/cases/gemini.ts cannot express: several candidates, log probabilities, extensions, odd
// streams.

const head = { responseId: 'r1', modelVersion: 'gemini-test', createTime: '2026-02-03T04:05:06.789Z' };
const usageMetadata = { promptTokenCount: 3, candidatesTokenCount: 2 };
const callOf = (body: object = {}, options: Partial<Call> = {}): Call =>
  translationCall({ model: 'gemini-asked', messages: [], ...body }, options);
const decode = (body: object, call = callOf()) => decodeGeminiChat({ ...head, ...body }, call);
const candidate = (parts: object[], finishReason?: string, more: object = {}) => ({
  content: { role: 'model', parts },
  ...(finishReason === undefined ? {} : { finishReason }),
  ...more,
});
type Chunk = {
  choices: { index: number; delta: Record<string, unknown>; finish_reason: string | null; logprobs: unknown }[];
  usage?: unknown;
};
const stream = (events: readonly object[], call = callOf({}, { stream: true })): Chunk[] =>
  decodeAll(
    openGeminiStream(call),
    events.map((event) => ({ data: JSON.stringify({ ...head, ...event }) })),
  ).chunks as Chunk[];
const finishes = (chunks: readonly Chunk[]) =>
  chunks.flatMap(({ choices }) =>
    choices.flatMap(({ index, finish_reason: reason }) => (reason === null ? [] : [[index, reason]])),
  );
const failing = (message: string | RegExp) =>
  expect.objectContaining({
    kind: 'provider_failed',
    code: 'upstream_invalid_response',
    message: expect.stringMatching(message),
  });

describe('whole answers', () => {
  test('id, model and time are Gemini’s; without them the model is the one asked for', () => {
    const answer = { candidates: [candidate([{ text: 'Hi' }], 'STOP')] };
    expect(decode(answer)).toMatchObject({ id: 'r1', model: 'gemini-test', created: 1_770_091_506 });
    expect(decodeGeminiChat(answer, callOf())).toMatchObject({
      id: expect.stringMatching(/^chatcmpl-/),
      model: 'gemini-asked',
    });
  });

  test('several candidates keep their index; a filtered one has its own finish reason', () => {
    const candidates = [
      candidate([{ text: 'B' }], 'STOP', { index: 1 }),
      { finishReason: 'PROHIBITED_CONTENT', index: 2 },
      candidate([{ text: 'A' }], 'MAX_TOKENS'),
    ];
    expect(decode({ candidates })).toMatchObject({
      choices: [
        { index: 0, message: { content: 'A' }, finish_reason: 'length' },
        { index: 1, message: { content: 'B' }, finish_reason: 'stop' },
        { index: 2, message: { content: '' }, finish_reason: 'content_filter' },
      ],
    });
  });

  test('log-probabilities', () => {
    const logprobsResult = {
      chosenCandidates: [{ token: 'é', tokenId: 1, logProbability: -0.5 }],
      topCandidates: [
        {
          candidates: [
            { token: 'é', logProbability: -0.5 },
            { token: 'e', logProbability: -1 },
          ],
        },
      ],
    };
    const wanted = {
      content: [
        {
          token: 'é',
          logprob: -0.5,
          bytes: [195, 169],
          top_logprobs: [
            { token: 'é', logprob: -0.5, bytes: [195, 169] },
            { token: 'e', logprob: -1, bytes: [101] },
          ],
        },
      ],
    };
    const logged = candidate([{ text: 'é' }], 'STOP', { logprobsResult });
    expect(decode({ candidates: [logged] })).toMatchObject({ choices: [{ logprobs: wanted }] });
    const { finishReason, ...open } = logged;
    const chunks = stream([{ candidates: [open] }, { candidates: [{ finishReason }] }]);
    expect(chunks.at(-1)?.choices).toMatchObject([{ finish_reason: 'stop', logprobs: wanted }]);
  });

  test('usage holds what tools of Google’s put into the prompt', () => {
    const counted = { ...usageMetadata, toolUsePromptTokenCount: 10, thoughtsTokenCount: 4, totalTokenCount: 19 };
    expect(decode({ candidates: [candidate([{ text: 'x' }], 'STOP')], usageMetadata: counted })).toMatchObject({
      usage: {
        prompt_tokens: 13,
        completion_tokens: 6,
        total_tokens: 19,
        completion_tokens_details: { reasoning_tokens: 4 },
      },
    });
    expect(decode({ candidates: [candidate([{ text: 'x' }], 'STOP')] })).not.toHaveProperty('usage');
  });

  test('signatures and images are shown with strict compliance off only', () => {
    const parts = [
      { text: 'See', thoughtSignature: 'dGV4' },
      { inlineData: { mimeType: 'image/png', data: 'AAAA' }, thoughtSignature: 'aW1n' },
      { functionCall: { id: 'fc1', name: 'f' }, thoughtSignature: 'c2ln' },
    ];
    const content_blocks = [
      { type: 'text', text: 'See', signature: 'dGV4' },
      { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' }, signature: 'aW1n' },
    ];
    const open = callOf({}, { strict: false });
    const called = { id: 'call_ts4_c2lnfc1', type: 'function', function: { name: 'f', arguments: '{}' } };
    const signed = { ...called, function: { ...called.function, thought_signature: 'c2ln' } };
    const message = { role: 'assistant', content: 'See', refusal: null };
    expect(decode({ candidates: [candidate(parts, 'STOP')] })).toMatchObject({
      choices: [{ message: { ...message, tool_calls: [called] } }],
    });
    expect(decode({ candidates: [candidate(parts, 'STOP')] }, open)).toMatchObject({
      choices: [{ message: { ...message, tool_calls: [signed], content_blocks } }],
    });
    const shown = stream([{ candidates: [candidate(parts, 'STOP')] }], callOf({}, { stream: true, strict: false }));
    expect(shown.flatMap(({ choices }) => choices.map(({ delta }) => delta))).toEqual([
      { role: 'assistant', content: '', refusal: null },
      { content: 'See', content_blocks: [{ index: 0, delta: { text: 'See', signature: 'dGV4' } }] },
      {
        content_blocks: [
          {
            index: 1,
            delta: { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' }, signature: 'aW1n' },
          },
        ],
      },
      { tool_calls: [{ index: 0, ...signed }] },
      {},
    ]);
  });

  test('calls without ids get ones made of the answer’s, which its stream has as well', () => {
    const parts = [{ functionCall: { name: 'f' } }, { functionCall: { name: 'f' } }];
    const ids = ['call_r1_0_0', 'call_r1_0_1'];
    expect(decode({ candidates: [candidate(parts, 'STOP')] })).toMatchObject({
      choices: [{ message: { content: null, tool_calls: ids.map((id) => ({ id })) }, finish_reason: 'tool_calls' }],
    });
    const chunks = stream(parts.map((part) => ({ candidates: [candidate([part])] })));
    expect(chunks.flatMap(({ choices }) => choices.flatMap(({ delta }) => delta['tool_calls'] ?? []))).toMatchObject(
      ids.map((id, index) => ({ index, id })),
    );
  });

  test('an answer to functions says function_call', () => {
    const call = callOf({ functions: [{ name: 'f' }] });
    expect(
      decode({ candidates: [candidate([{ functionCall: { name: 'f', args: { a: 1 } } }], 'STOP')] }, call),
    ).toMatchObject({
      choices: [{ message: { function_call: { name: 'f', arguments: '{"a":1}' } }, finish_reason: 'function_call' }],
    });
  });

  test('why a prompt was blocked is the refusal', () => {
    const promptFeedback = { blockReason: 'SAFETY', blockReasonMessage: 'Too hot.' };
    expect(decode({ promptFeedback })).toMatchObject({
      choices: [{ message: { content: null, refusal: 'Too hot.' }, finish_reason: 'content_filter' }],
    });
  });

  test.each(['MALFORMED_FUNCTION_CALL', 'UNEXPECTED_TOOL_CALL', 'OTHER'])(
    'an empty end by %s is a failure',
    (reason) => {
      const finishMessage = 'said sk-abcdefghijklmnop';
      expect(() => decode({ candidates: [candidate([{ text: '' }], reason, { finishMessage })] })).toThrow(
        failing(`^The provider ended its answer with ${reason}: said \\[redacted\\]\\.$`),
      );
    },
  );

  test('no candidate, and one that says nothing and not why, are failures', () => {
    expect(() => decode({})).toThrow(failing(/returned no candidates/));
    expect(() => decode({ candidates: [{ index: 0 }] })).toThrow(failing(/no finish reason/));
    expect(decode({ candidates: [candidate([], 'STOP')] })).toMatchObject({ choices: [{ finish_reason: 'stop' }] });
  });
});

describe('streams', () => {
  test('several candidates interleave; usage comes once, when all are finished', () => {
    const chunks = stream([
      { candidates: [candidate([{ text: 'A' }]), candidate([], undefined, { index: 1 })], usageMetadata },
      { candidates: [candidate([{ text: 'a' }], 'STOP')], usageMetadata },
      { candidates: [candidate([{ text: 'B' }], 'MAX_TOKENS', { index: 1 })], usageMetadata },
    ]);
    expect(finishes(chunks)).toEqual([
      [0, 'stop'],
      [1, 'length'],
    ]);
    expect(chunks.map(({ usage }) => usage !== null)).toEqual([...chunks.slice(1).map(() => false), true]);
    const roles = chunks.flatMap(({ choices }) =>
      choices.flatMap(({ index, delta }) => ('role' in delta ? [index] : [])),
    );
    expect(roles).toEqual([0, 1]);
  });

  test('calls behind an end that was no call’s end it again, as calls', () => {
    const chunks = stream([
      { candidates: [candidate([{ text: 'Look' }], 'STOP')] },
      { candidates: [candidate([{ functionCall: { name: 'f' } }])] },
    ]);
    expect(finishes(chunks)).toEqual([
      [0, 'stop'],
      [0, 'tool_calls'],
    ]);
  });

  test('an event after the end is written only if its counts differ', () => {
    const end = { candidates: [candidate([{ text: 'x' }], 'STOP')], usageMetadata };
    const after = { candidates: [{ index: 0, groundingMetadata: {} }], usageMetadata };
    expect(stream([end, after])).toHaveLength(4);
    const more = { ...after, usageMetadata: { ...usageMetadata, candidatesTokenCount: 9 } };
    expect(stream([end, more]).at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: 9 } });
  });

  test('a prompt that is blocked in the middle of the answer ends it', () => {
    const chunks = stream([
      { candidates: [candidate([{ text: 'So' }])] },
      { promptFeedback: { blockReason: 'PROHIBITED_CONTENT' }, usageMetadata },
    ]);
    expect(finishes(chunks)).toEqual([[0, 'content_filter']]);
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { prompt_tokens: 3 } });
  });
});

describe('calls whose arguments come in pieces', () => {
  type CallDelta = { index: number; id?: string; type?: string; function: { name?: string; arguments: string } };
  const begun = (name: string, more: object = {}) => ({ functionCall: { name, willContinue: true, ...more } });
  const piece = (jsonPath: string, value: object, more: object = { willContinue: true }) => ({
    functionCall: { partialArgs: [{ jsonPath, ...value }], ...more },
  });
  const ended = { functionCall: {} };
  const deltasOf = (parts: readonly object[], finish?: string) => {
    const events = parts.map((part) => ({ candidates: [candidate([part])] }));
    const chunks = stream(finish ? [...events, { candidates: [candidate([{ text: '' }], finish)] }] : events);
    const deltas = chunks.flatMap(({ choices }) => (choices[0]?.delta['tool_calls'] ?? []) as CallDelta[]);
    const texts = deltas.reduce<string[]>((all, { index, function: { arguments: text } }) => {
      all[index] = (all[index] ?? '') + text;
      return all;
    }, []);
    return { deltas, texts, finishes: finishes(chunks) };
  };

  test('the first delta has id and name, the later ones text', () => {
    const { deltas } = deltasOf(
      [
        begun('f', { id: 'x1' }),
        piece('$.a', { stringValue: 'A', willContinue: true }),
        piece('$.a', { stringValue: 'B' }),
        ended,
      ],
      'STOP',
    );
    expect(deltas).toEqual([
      { index: 0, id: 'x1', type: 'function', function: { name: 'f', arguments: '' } },
      { index: 0, function: { arguments: '{"a":"A' } },
      { index: 0, function: { arguments: 'B"' } },
      { index: 0, function: { arguments: '}' } },
    ]);
  });

  test('an id in every part tells which call it belongs to; a name alone begins the next call', () => {
    const { texts } = deltasOf([
      begun('f', { id: '1' }),
      { functionCall: { id: '1', name: 'f', partialArgs: [{ jsonPath: '$.a', numberValue: 1 }], willContinue: true } },
      begun('f'),
      piece('$.b', { numberValue: 2 }, {}),
      ended,
    ]);
    expect(texts).toEqual(['{"a":1}', '{"b":2}']);
  });

  test('an answer that ends with STOP ends its call; one cut off by its length leaves the call as it is', () => {
    const parts = [begun('f'), piece('$.a', { stringValue: 'A', willContinue: true })];
    expect(deltasOf(parts, 'STOP')).toMatchObject({ texts: ['{"a":"A"}'], finishes: [[0, 'tool_calls']] });
    expect(deltasOf(parts, 'MAX_TOKENS')).toMatchObject({ texts: ['{"a":"A'], finishes: [[0, 'length']] });
  });

  test('arguments that arrive whole nevertheless are written at the end', () => {
    expect(deltasOf([begun('f', { args: { a: 1 } }), ended]).texts).toEqual(['{"a":1}']);
    expect(deltasOf([begun('f'), { functionCall: { args: { a: 1 } } }]).texts).toEqual(['{"a":1}']);
  });

  test('the deprecated form of calls gets its pieces, too', () => {
    const call = callOf({ functions: [{ name: 'f' }] }, { stream: true });
    const events = [begun('f'), piece('$.a', { stringValue: 'A' }), ended];
    const chunks = stream(
      events.map((part) => ({ candidates: [candidate([part])] })),
      call,
    );
    expect(chunks.flatMap(({ choices }) => choices[0]?.delta['function_call'] ?? [])).toEqual([
      { name: 'f', arguments: '' },
      { arguments: '{"a":"A"' },
      { arguments: '}' },
    ]);
  });

  test('pieces that are not valid JSON end the stream with an error', () => {
    const parts = [begun('f'), piece('$.a', { stringValue: 'A' }), piece('$.a', { stringValue: 'B' })];
    expect(() => deltasOf(parts)).toThrow(failing(/are not valid JSON: a value continues after its end/));
  });
});

test('audio, images and a grounded answer are known for their prices, and not in the answer', () => {
  const response = {
    candidates: [
      {
        content: { parts: [{ text: 'Hi' }] },
        finishReason: 'STOP',
        groundingMetadata: { webSearchQueries: ['a', 'b'] },
      },
    ],
    usageMetadata: {
      promptTokenCount: 300,
      candidatesTokenCount: 100,
      promptTokensDetails: [
        { modality: 'TEXT', tokenCount: 100 },
        { modality: 'AUDIO', tokenCount: 200 },
      ],
      cacheTokensDetails: [{ modality: 'AUDIO', tokenCount: 50 }],
      candidatesTokensDetails: [{ modality: 'IMAGE', tokenCount: 90 }],
    },
  };
  expect(readGeminiDetails(response)).toEqual({
    audioInputTokens: 200,
    cachedAudioTokens: 50,
    imageOutputTokens: 90,
    searches: 1,
  });
  expect(readGeminiDetails({ usageMetadata: { promptTokenCount: 1 } })).toBeNull();
});

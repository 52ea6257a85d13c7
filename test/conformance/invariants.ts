import { expect } from 'vitest';
import type { Invariant, Json, Says } from './conformance-case.ts';
import type { Chunk, Completion, Read } from './read-answer.ts';

// PROVIDER-1: CALL-9 and SSE-1 to SSE-5, and what official SDKs need to put a stream together.

const finishReasons = ['stop', 'length', 'tool_calls', 'content_filter', 'function_call'];

type Options = { strict: boolean; deviations: readonly Invariant[] };

/** Asserts what holds of every whole chat answer, whatever it says. */
export function checkCompletion(body: Completion, { strict, deviations }: Options): void {
  const holds = (invariant: Invariant): boolean => !deviations.includes(invariant);
  expect(body.choices.length).toBeGreaterThan(0);
  if (holds('head')) checkHead(body, 'chat.completion');
  for (const [index, { message, ...choice }] of body.choices.entries()) {
    expect(choice.index).toBe(index);
    expect(message.role).toBe('assistant');
    if (holds('content')) expect(message).toHaveProperty('content');
    expect(finishReasons).toContain(choice.finish_reason);
    for (const call of message.tool_calls ?? []) {
      expect(call).toMatchObject({ type: 'function', id: expect.stringMatching(/./) });
      expect(call.function?.name).toMatch(/./);
      expect(() => JSON.parse(call.function?.arguments ?? '') as unknown).not.toThrow();
    }
    if (message.tool_calls?.length === 0)
      expect(message, 'an empty list of tool calls').not.toHaveProperty('tool_calls');
  }
  if (strict) expect(JSON.stringify(body)).not.toContain('"content_blocks"');
  if (holds('total')) checkUsage(body.usage);
}

/** Asserts what holds of every chat stream that came to its end. */
export function checkChunks(chunks: readonly Chunk[], options: Options & { includeUsage: boolean }): void {
  const { strict, includeUsage, deviations } = options;
  const holds = (invariant: Invariant): boolean => !deviations.includes(invariant);
  const [first] = chunks;
  if (holds('head')) {
    for (const chunk of chunks) {
      checkHead(chunk, 'chat.completion.chunk');
      expect([chunk.id, chunk.created, chunk.model]).toEqual([first?.id, first?.created, first?.model]);
    }
  }
  if (holds('usage')) checkUsagePlace(chunks, includeUsage);
  const deltas = chunks.flatMap(({ choices }) => choices.filter(({ index }) => index === 0));
  if (holds('role'))
    expect(deltas.map(({ delta }) => delta?.role)).toEqual(['assistant', ...deltas.slice(1).map(() => undefined)]);
  expect(deltas.map(({ finish_reason: reason }) => reason ?? null)).toEqual([
    ...deltas.slice(1).map(() => null),
    expect.toSatisfy((reason) => finishReasons.includes(String(reason))),
  ]);
  if (holds('tool calls')) checkToolDeltas(chunks);
  if (strict) expect(JSON.stringify(chunks)).not.toContain('"content_blocks"');
  const last = chunks.at(-1)?.usage;
  if (holds('total') && includeUsage) checkUsage(last);
}

/** Asserts that an answer says what it should, arguments as values and not as texts. */
export function checkSays(read: Read, says: Says, strict = true): void {
  // No text is null or empty: both mean "nothing said", and a stream cannot tell them apart.
  if (says.text instanceof RegExp) expect(read.text).toMatch(says.text);
  else expect(read.text || null).toBe(says.text);
  if (says.refusal instanceof RegExp) expect(read.refusal).toMatch(says.refusal);
  else expect(read.refusal || null).toBe(says.refusal ?? null);
  expect(read.finishReason).toBe(says.finishReason);
  const wanted = (says.toolCalls ?? []).map(({ id, name, arguments: input }) => ({
    ...(id === undefined ? {} : { id }),
    name,
    input,
  }));
  expect(
    read.toolCalls.map(({ id, function: called }) => ({
      id,
      name: called.name,
      input: JSON.parse(called.arguments) as unknown,
    })),
  ).toMatchObject(wanted);
  expect(read.toolCalls).toHaveLength(wanted.length);
  expect(new Set(read.toolCalls.map(({ id }) => id)).size).toBe(wanted.length);
  expect(read.contentBlocks).toEqual(strict ? null : (says.contentBlocks ?? null));
}

export function checkCounts(
  usage: Json | null | undefined,
  { prompt, completion, cached = 0, reasoning = 0 }: Says['usage'],
): void {
  const shown = usage as {
    prompt_tokens_details?: { cached_tokens?: number } | null;
    completion_tokens_details?: { reasoning_tokens?: number } | null;
  } & Json;
  expect({
    prompt: shown['prompt_tokens'],
    completion: shown['completion_tokens'],
    total: shown['total_tokens'],
    cached: shown.prompt_tokens_details?.cached_tokens ?? 0,
    reasoning: shown.completion_tokens_details?.reasoning_tokens ?? 0,
  }).toEqual({ prompt, completion, total: prompt + completion, cached, reasoning });
}

function checkHead(
  { id, object, created, model }: Pick<Chunk, 'id' | 'object' | 'created' | 'model'>,
  kind: string,
): void {
  expect({ id, object, created, model }).toEqual({
    id: expect.stringMatching(/./),
    object: kind,
    // Seconds, not milliseconds.
    created: expect.toSatisfy((at) => Number.isInteger(at) && Number(at) > 0 && Number(at) < 1e11),
    model: expect.stringMatching(/./),
  });
}

function checkUsage(usage: Json | null | undefined): void {
  const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = usage ?? {};
  expect(total).toBe(Number(prompt) + Number(completion));
  const { cached_tokens: cached = 0 } = (usage?.['prompt_tokens_details'] ?? {}) as { cached_tokens?: number };
  const { reasoning_tokens: reasoning = 0 } = (usage?.['completion_tokens_details'] ?? {}) as {
    reasoning_tokens?: number;
  };
  expect(cached).toBeLessThanOrEqual(Number(prompt));
  expect(reasoning).toBeLessThanOrEqual(Number(completion));
}

/** Usage comes in one last chunk without choices, when it was asked for, and nowhere else. */
function checkUsagePlace(chunks: readonly Chunk[], includeUsage: boolean): void {
  const body = includeUsage ? chunks.slice(0, -1) : chunks;
  expect(body.filter(({ usage }) => usage !== undefined && usage !== null)).toEqual([]);
  expect(body.filter(({ choices }) => choices.length === 0)).toEqual([]);
  if (includeUsage) expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { total_tokens: expect.any(Number) } });
}

/** Each call begins with index, id, type and name, once; then only its arguments grow. */
function checkToolDeltas(chunks: readonly Chunk[]): void {
  let begun = -1;
  for (const { choices } of chunks) {
    for (const part of choices.flatMap(({ index, delta }) => (index === 0 ? (delta?.tool_calls ?? []) : []))) {
      if (part.index !== begun) {
        begun += 1;
        expect(part).toMatchObject({
          index: begun,
          id: expect.stringMatching(/./),
          type: 'function',
          function: { name: expect.stringMatching(/./), arguments: expect.any(String) },
        });
      } else {
        expect(part).not.toHaveProperty('id');
        expect(part.function).not.toHaveProperty('name');
      }
    }
  }
}

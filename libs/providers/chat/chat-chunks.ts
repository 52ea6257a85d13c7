import { randomBytes } from 'node:crypto';
import type { Json } from './json-value.ts';

/** The finish reasons that OpenAI's clients know. `tool_calls` becomes `function_call` where the request used `functions`. */
export type FinishReason = 'stop' | 'length' | 'tool_calls' | 'content_filter';

/** `promptTokens` include cached ones, `completionTokens` reasoning. Absent counts are unknown and left out. */
export type TokenCounts = {
  promptTokens: number;
  completionTokens: number;
  cachedTokens?: number | undefined;
  reasoningTokens?: number | undefined;
  /** The provider's own counts, for non-strict answers. */
  extra?: Json | undefined;
};

/** `extra`: additional members of `function` for non-strict answers (`thought_signature`). */
export type CalledTool = { id: string; name: string; arguments: string; extra?: Json | undefined };

export type AnswerHead = {
  id: string;
  model: string;
  /** Unix seconds; the current time if the provider sends none. */
  created?: number;
  /** The request used `functions`, so calls are returned as `function_call`. */
  usesFunctions: boolean;
};

export type Choice = {
  text: string;
  toolCalls: readonly CalledTool[];
  finishReason: FinishReason;
  refusal?: string | null;
  logprobs?: unknown;
  /** Additional members of the message (`content_blocks`, `reasoning_content`). */
  extra?: Json | undefined;
};

/** Usage in OpenAI's format; the total is always the sum. */
function toUsage(counts: TokenCounts): Json {
  const { promptTokens, completionTokens, cachedTokens, reasoningTokens, extra } = counts;
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    ...(cachedTokens === undefined ? {} : { prompt_tokens_details: { cached_tokens: cachedTokens } }),
    ...(reasoningTokens === undefined ? {} : { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
    ...extra,
  };
}

/** A whole `chat.completion`. Like OpenAI's, an answer that only calls tools has null as its content. */
export function toCompletion(head: AnswerHead, choices: readonly Choice[], usage: TokenCounts | null): Json {
  return {
    id: head.id,
    object: 'chat.completion',
    created: head.created ?? nowSeconds(),
    model: head.model,
    choices: choices.map((choice, index) => ({
      index,
      message: messageOf(choice, head.usesFunctions),
      logprobs: choice.logprobs ?? null,
      finish_reason: reasonOf(choice.finishReason, head.usesFunctions),
    })),
    ...(usage === null ? {} : { usage: toUsage(usage) }),
  };
}

function messageOf({ text, toolCalls, refusal, extra }: Choice, usesFunctions: boolean): Json {
  const [first] = toolCalls;
  const calls =
    first === undefined
      ? {}
      : usesFunctions
        ? { function_call: { name: first.name, arguments: first.arguments } }
        : {
            tool_calls: toolCalls.map((call) => ({
              id: call.id,
              type: 'function',
              function: { name: call.name, arguments: call.arguments, ...call.extra },
            })),
          };
  return {
    role: 'assistant',
    content: text === '' && (first !== undefined || refusal) ? null : text,
    refusal: refusal ?? null,
    ...calls,
    ...extra,
  };
}

const reasonOf = (reason: FinishReason, usesFunctions: boolean): string =>
  reason === 'tool_calls' && usesFunctions ? 'function_call' : reason;

/** A piece of a block, as the member `content_blocks` of a delta. Strict answers have no such member. */
export const blockPiece = (strict: boolean, index: number, delta: Json): Json =>
  strict ? {} : { content_blocks: [{ index, delta }] };

/** Writes the chunks of one choice, as payload texts in order. The first one always has the role. */
export type ChoiceWriter = {
  /** Returns the chunk with the role, or no chunk if it was written already. */
  start: () => string[];
  text: (text: string) => string[];
  /** Any other delta (`content_blocks`, `reasoning_content`, `refusal`). */
  delta: (delta: Json) => string[];
  /** Begins the next tool call, with the next index. `key` identifies it in the provider's later events. */
  toolCall: (
    key: string | number,
    call: { id: string; name: string; arguments?: string; extra?: Json | undefined },
  ) => string[];
  /** Continues the arguments of a call. Returns no chunk for an empty fragment or an unknown key. */
  toolArguments: (key: string | number, fragment: string) => string[];
  /** Whether a tool call has begun. */
  hasToolCalls: () => boolean;
  finish: (reason: FinishReason, logprobs?: unknown) => string[];
};

export type ChunkWriter = {
  choice: (index?: number) => ChoiceWriter;
  /** The closing chunk with `choices: []`. */
  usage: (counts: TokenCounts) => string[];
};

/**
 * Writes one stream in OpenAI's format: all chunks share id, time and model. If usage was asked for, all chunks except the
 * one with the usage have it as null (SSE-3).
 */
export function createChunkWriter(head: AnswerHead, { includeUsage }: { includeUsage: boolean }): ChunkWriter {
  const frame = {
    id: head.id,
    object: 'chat.completion.chunk',
    created: head.created ?? nowSeconds(),
    model: head.model,
  };
  const choices = new Map<number, ChoiceWriter>();
  return {
    choice: (index = 0) => {
      let writer = choices.get(index);
      if (writer === undefined) {
        writer = createChoiceWriter(frame, index, head.usesFunctions, includeUsage ? { usage: null } : {});
        choices.set(index, writer);
      }
      return writer;
    },
    usage: (counts) => [JSON.stringify({ ...frame, choices: [], usage: toUsage(counts) })],
  };
}

function createChoiceWriter(frame: Json, index: number, usesFunctions: boolean, noUsage: Json): ChoiceWriter {
  const indexes = new Map<string | number, number>();
  let started = false;

  const chunk = (delta: Json, reason: string | null = null, logprobs: unknown = null): string =>
    JSON.stringify({ ...frame, choices: [{ index, delta, logprobs, finish_reason: reason }], ...noUsage });
  const start = (): string[] => {
    if (started) return [];
    started = true;
    return [chunk({ role: 'assistant', content: '', refusal: null })];
  };
  const write = (delta: Json): string[] => [...start(), chunk(delta)];
  const callDelta = (position: number, id: string | undefined, called: Json): string[] => {
    // The deprecated form has room for one call, so any further calls of the provider are dropped.
    if (usesFunctions) return position === 0 ? write({ function_call: called }) : [];
    const named = id === undefined ? {} : { id, type: 'function' };
    return write({ tool_calls: [{ index: position, ...named, function: called }] });
  };

  return {
    start,
    text: (text) => (text === '' ? [] : write({ content: text })),
    delta: write,
    toolCall: (key, call) => {
      const position = indexes.size;
      indexes.set(key, position);
      return callDelta(position, call.id, { name: call.name, arguments: call.arguments ?? '', ...call.extra });
    },
    toolArguments: (key, fragment) => {
      const position = indexes.get(key);
      return position === undefined || fragment === '' ? [] : callDelta(position, undefined, { arguments: fragment });
    },
    hasToolCalls: () => indexes.size > 0,
    finish: (reason, logprobs) => [...start(), chunk({}, reasonOf(reason, usesFunctions), logprobs ?? null)],
  };
}

/** An ID for the answer of a provider that sends none. */
export const newCompletionId = (): string => `chatcmpl-${randomBytes(16).toString('hex')}`;

const nowSeconds = (): number => Math.floor(Date.now() / 1_000);

import { randomBytes } from 'node:crypto';
import type { Call } from '../provider.ts';
import { usesFunctions } from './chat-request.ts';
import {
  type AnswerHead,
  type Choice,
  type ChoiceWriter,
  type FinishReason,
  type StreamWriter,
  type Thought,
  type TokenCounts,
  textIn,
} from '../turns/answer.ts';
import type { Json } from '../turns/json-value.ts';

/** Usage in OpenAI's format; the total is always the sum. */
function toUsage(counts: TokenCounts, strict: boolean): Json {
  const { promptTokens, completionTokens, cachedTokens, reasoningTokens, extra } = counts;
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    ...(cachedTokens === undefined ? {} : { prompt_tokens_details: { cached_tokens: cachedTokens } }),
    ...(reasoningTokens === undefined ? {} : { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
    ...(strict ? {} : extra),
  };
}

/**
 * A whole `chat.completion`. Like OpenAI's, an answer that only calls tools has null as its content. An answer that need not
 * be strict has its blocks as well, if the provider has any besides the text.
 */
export function toCompletion(
  head: AnswerHead,
  choices: readonly Choice[],
  usage: TokenCounts | null,
  call: Call,
): Json {
  const asFunctions = usesFunctions(call.json());
  return {
    id: head.id,
    object: 'chat.completion',
    created: head.created ?? nowSeconds(),
    model: head.model,
    choices: choices.map((choice, index) => ({
      index,
      message: messageOf(choice, asFunctions, call.strict),
      logprobs: choice.logprobs ?? null,
      finish_reason: reasonOf(choice.finishReason, asFunctions),
    })),
    ...(usage === null ? {} : { usage: toUsage(usage, call.strict) }),
  };
}

function messageOf({ blocks, toolCalls, refusal, extra }: Choice, asFunctions: boolean, strict: boolean): Json {
  const [first] = toolCalls;
  const text = textIn(blocks);
  const calls =
    first === undefined
      ? {}
      : asFunctions
        ? { function_call: { name: first.name, arguments: first.arguments } }
        : {
            tool_calls: toolCalls.map((call) => ({
              id: call.id,
              type: 'function',
              function: { name: call.name, arguments: call.arguments, ...(strict ? {} : call.extra) },
            })),
          };
  return {
    role: 'assistant',
    content: text === '' && (first !== undefined || refusal) ? null : text,
    refusal: refusal ?? null,
    ...calls,
    ...(strict || blocks.length === 0 ? {} : { content_blocks: blocks }),
    ...(strict ? {} : extra),
  };
}

const reasonOf = (reason: FinishReason, asFunctions: boolean): string =>
  reason === 'tool_calls' && asFunctions ? 'function_call' : reason;

/**
 * Writes one stream in OpenAI's format: all chunks share id, time and model. If usage was asked for, all chunks except the
 * one with the usage have it as null (SSE-3).
 */
export function createChunkWriter(head: AnswerHead, call: Call): StreamWriter {
  const frame = {
    id: head.id,
    object: 'chat.completion.chunk',
    created: head.created ?? nowSeconds(),
    model: head.model,
  };
  const noUsage = call.includeUsage ? { usage: null } : {};
  const asFunctions = usesFunctions(call.json());
  const choices = new Map<number, ChoiceWriter>();
  return {
    choice: (index = 0) => {
      let writer = choices.get(index);
      if (writer === undefined) {
        writer = new ChunksOfChoice({ frame, index, noUsage, asFunctions, strict: call.strict });
        choices.set(index, writer);
      }
      return writer;
    },
    usage: (counts) => [JSON.stringify({ ...frame, choices: [], usage: toUsage(counts, call.strict) })],
    end: () => [],
  };
}

type Shape = { frame: Json; index: number; noUsage: Json; asFunctions: boolean; strict: boolean };

/** The chunks of one choice. The first one always has the role. */
class ChunksOfChoice implements ChoiceWriter {
  readonly #shape: Shape;
  readonly #indexes = new Map<string | number, number>();
  #started = false;

  constructor(shape: Shape) {
    this.#shape = shape;
  }

  start(): string[] {
    if (this.#started) return [];
    this.#started = true;
    return [this.#chunk({ role: 'assistant', content: '', refusal: null })];
  }

  text(text: string, block?: number, signature?: string): string[] {
    const signed = signature === undefined ? {} : { signature };
    const piece = block === undefined ? {} : this.#piece(block, { text, ...signed });
    return this.#write({ ...(text === '' ? {} : { content: text }), ...(text === '' && !signature ? {} : piece) });
  }

  thought(piece: Thought, block: number): string[] {
    return this.#write(this.#piece(block, piece));
  }

  image(url: string, block: number, signature?: string): string[] {
    const signed = signature === undefined ? {} : { signature };
    return this.#write(this.#piece(block, { type: 'image_url', image_url: { url }, ...signed }));
  }

  refusal(text: string): string[] {
    return this.#write({ refusal: text });
  }

  extension(delta: Json): string[] {
    return this.#shape.strict ? [] : this.#write(delta);
  }

  toolCall(
    key: string | number,
    call: { id: string; name: string; arguments?: string; extra?: Json | undefined },
  ): string[] {
    const position = this.#indexes.size;
    this.#indexes.set(key, position);
    const extra = this.#shape.strict ? {} : call.extra;
    return this.#callDelta(position, call.id, { name: call.name, arguments: call.arguments ?? '', ...extra });
  }

  toolArguments(key: string | number, fragment: string): string[] {
    const position = this.#indexes.get(key);
    return position === undefined || fragment === ''
      ? []
      : this.#callDelta(position, undefined, { arguments: fragment });
  }

  hasToolCalls(): boolean {
    return this.#indexes.size > 0;
  }

  finish(reason: FinishReason, logprobs?: unknown): string[] {
    return [...this.start(), this.#chunk({}, reasonOf(reason, this.#shape.asFunctions), logprobs ?? null)];
  }

  /** A piece of a block. Strict answers have none. */
  #piece(index: number, delta: Json): Json {
    return this.#shape.strict ? {} : { content_blocks: [{ index, delta }] };
  }

  /** An empty delta would be useless to clients. */
  #write(delta: Json): string[] {
    return Object.keys(delta).length === 0 ? [] : [...this.start(), this.#chunk(delta)];
  }

  #callDelta(position: number, id: string | undefined, called: Json): string[] {
    // The deprecated form has room for one call, so any further calls of the provider are dropped.
    if (this.#shape.asFunctions) return position === 0 ? this.#write({ function_call: called }) : [];
    const named = id === undefined ? {} : { id, type: 'function' };
    return this.#write({ tool_calls: [{ index: position, ...named, function: called }] });
  }

  #chunk(delta: Json, reason: string | null = null, logprobs: unknown = null): string {
    const { frame, index, noUsage } = this.#shape;
    return JSON.stringify({ ...frame, choices: [{ index, delta, logprobs, finish_reason: reason }], ...noUsage });
  }
}

/** An ID for the answer of a provider that sends none. */
export const newCompletionId = (): string => `chatcmpl-${randomBytes(16).toString('hex')}`;

const nowSeconds = (): number => Math.floor(Date.now() / 1_000);

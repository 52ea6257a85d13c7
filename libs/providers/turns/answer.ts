import type { Json } from './json-value.ts';

/** Why an answer ended, by the names of chat completions. */
export type FinishReason = 'stop' | 'length' | 'tool_calls' | 'content_filter';

/** `promptTokens` include cached ones, `completionTokens` reasoning. Absent counts are unknown and left out. */
export type TokenCounts = {
  promptTokens: number;
  completionTokens: number;
  /** Read from the provider's cache of prompts. */
  cachedTokens?: number | undefined;
  /** Written to it. */
  writtenTokens?: number | undefined;
  reasoningTokens?: number | undefined;
  /** The provider's own counts, for answers in OpenAI's format that need not be strict. */
  extra?: Json | undefined;
};

/** `extra`: additional members of `function` for answers that need not be strict (`thought_signature`). */
export type CalledTool = { id: string; name: string; arguments: string; extra?: Json | undefined };

export type AnswerHead = {
  id: string;
  model: string;
  /** Unix seconds; the current time if the provider sends none. */
  created?: number;
  /**
   * Whose signatures the answer's reasoning has. Only models of the same signer accept them in the next turn. Absent: the
   * reasoning is not signed.
   */
  signer?: string;
};

/** A piece of reasoning: more of its text, its signature, or the whole of a block that is not shown. */
export type Thought = { thinking?: string; signature?: string; data?: string };

/** A part of an answer's content, by the names of `content_blocks`. */
export type AnswerBlock =
  | { type: 'text'; text: string; signature?: string }
  | { type: 'thinking'; thinking: string; signature?: string }
  | { type: 'redacted_thinking'; data: string }
  | { type: 'image_url'; image_url: { url: string }; signature?: string };

/** One whole answer. `blocks` have its text, images and reasoning in their order. */
export type Choice = {
  blocks: readonly AnswerBlock[];
  toolCalls: readonly CalledTool[];
  finishReason: FinishReason;
  refusal?: string | null;
  logprobs?: unknown;
  /** Additional members of a message in OpenAI's format that need not be strict (`citations`). */
  extra?: Json | undefined;
};

/** The text of an answer. */
export const textIn = (blocks: readonly AnswerBlock[]): string =>
  blocks.map((block) => (block.type === 'text' ? block.text : '')).join('');

/**
 * Writes the parts of one choice in the client's format, as payload texts in order. `block` is the position of a block; pieces
 * with the same position belong together. It is absent where the provider has no blocks.
 */
export interface ChoiceWriter {
  /** Returns what precedes all content, or nothing if it was written already. */
  start(): string[];
  text(text: string, block?: number, signature?: string): string[];
  thought(piece: Thought, block: number): string[];
  /** `url` is a `data:` URL. */
  image(url: string, block: number, signature?: string): string[];
  refusal(text: string): string[];
  /** Additional members of a delta in OpenAI's format; written only to clients of that format that need not be strict. */
  extension(delta: Json): string[];
  /** Begins the next tool call. `key` identifies it in the provider's later events. */
  toolCall(
    key: string | number,
    call: { id: string; name: string; arguments?: string; extra?: Json | undefined },
  ): string[];
  /** Continues the arguments of a call. Returns nothing for an empty fragment or an unknown key. */
  toolArguments(key: string | number, fragment: string): string[];
  /** Whether a tool call has begun. */
  hasToolCalls(): boolean;
  /** Can be called again with a better reason. */
  finish(reason: FinishReason, logprobs?: unknown): string[];
}

/** Writes one stream in the client's format. */
export interface StreamWriter {
  choice(index?: number): ChoiceWriter;
  /** Can be called again with newer counts. */
  usage(counts: TokenCounts): string[];
  /** What follows everything else; nothing if the answer has not finished. Called when the provider's stream has ended. */
  end(): string[];
}

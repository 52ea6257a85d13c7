import { GatewayError } from '#libs/kernel/errors.ts';
import type { Json } from './json-value.ts';
import type { Media } from './media.ts';

/** A location in the client's body, in the form of an error's `param` (`messages[2].content[0]`). */
type Placed = { param: string; raw: Json };

/** `raw` is the client's own object, for members that only some providers support (`cache_control`). */
export type ContentPart = Placed &
  (
    | { type: 'text'; text: string }
    | { type: 'refusal'; text: string }
    | { type: 'image'; media: Media; detail: string | null }
    | { type: 'audio'; base64: string; format: string }
    | { type: 'file'; media: Media; name: string | null }
    | { type: 'unknown'; name: string }
  );

/** `input` is the parsed JSON of the arguments, empty for empty ones; `written` is their text as the client sent it. */
export type ToolCall = Placed & { id: string; name: string; input: Json; written: string };

/**
 * One message that is not an instruction. `blocks` are an earlier answer's text, images and reasoning in their order, in the
 * form of `AnswerBlock`, where a client can send them back; they repeat the text of `parts`. A block of reasoning can have a
 * `signer` (see `AnswerHead`). `toolName` is the name of the call that a result belongs to, null if no earlier message has
 * that call.
 */
export type Turn = Placed &
  (
    | { role: 'user'; parts: readonly ContentPart[] }
    | { role: 'assistant'; parts: readonly ContentPart[]; toolCalls: readonly ToolCall[]; blocks: readonly Json[] }
    | {
        role: 'tool';
        parts: readonly ContentPart[];
        toolCallId: string;
        toolName: string | null;
        isError: boolean;
      }
  );

export type Conversation = {
  /** The texts of system and developer messages, in order. */
  system: readonly (Placed & { text: string })[];
  messages: readonly Turn[];
  /** Every `messages[1].name` and `….image_url.detail` in the request, which few providers support. */
  hints: readonly string[];
};

export type Tool = {
  name: string;
  description: string | undefined;
  /** The whole JSON schema; undefined for a tool without parameters. */
  parameters: Json | undefined;
  strict: boolean | undefined;
  param: string;
  raw: Json;
};

export type ToolChoice = 'auto' | 'none' | 'required' | { name: string };

export type ResponseFormat =
  | { type: 'text' }
  | { type: 'json_object' }
  | {
      type: 'json_schema';
      name: string;
      description: string | undefined;
      schema: Json | undefined;
      strict: boolean | undefined;
    };

/**
 * A request for the next turn of a conversation, whatever format the client speaks: what adapters make their provider's
 * request from. undefined: not given, or null.
 */
export type TurnRequest = Conversation & {
  model: string;
  tools: readonly Tool[];
  toolChoice: ToolChoice | undefined;
  parallelToolCalls: boolean | undefined;
  responseFormat: ResponseFormat | undefined;
  /** Empty if none was given. */
  stop: readonly string[];
  /** `max_completion_tokens`, else `max_tokens`. */
  maxTokens: number | undefined;
  temperature: number | undefined;
  topP: number | undefined;
  seed: number | undefined;
  frequencyPenalty: number | undefined;
  presencePenalty: number | undefined;
  n: number | undefined;
  logprobs: boolean;
  topLogprobs: number | undefined;
  user: string | undefined;
  reasoningEffort: string | undefined;
  /** The request used the deprecated `functions`, so its answer has `function_call`. */
  usesFunctions: boolean;
  /** All parameters with the names that chat completions have for them, those of providers included (`top_k`). */
  body: Json;
};

/** The http URLs of images and files in the messages, for providers that accept only bytes. */
export function mediaUrls({ messages }: Pick<Conversation, 'messages'>): string[] {
  return messages.flatMap(({ parts }) =>
    parts.flatMap((part) => {
      if (part.type !== 'image' && part.type !== 'file') return [];
      return part.media.kind === 'url' && /^https?:/i.test(part.media.url) ? [part.media.url] : [];
    }),
  );
}

/** Only white space: models write it before tool calls, and their providers reject it in the next request. */
export const isBlank = (part: ContentPart): boolean => part.type === 'text' && part.text.trim() === '';

/** The texts of the parts, concatenated; parts of other kinds are skipped. */
export const joinText = (parts: readonly ContentPart[]): string =>
  parts.map((part) => (part.type === 'text' || part.type === 'refusal' ? part.text : '')).join('');

/** The error for a part that a provider does not support: dropping it would change the question. */
export const unsupportedPart = ({ param }: ContentPart, provider: string, accepted: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'unsupported_parameter',
    `${provider} does not support '${param}': ${accepted}.`,
    {
      param,
    },
  );

/** Read by every adapter or by the core, or checked by `assertPlainAnswer`. */
const always = new Set(['model', 'messages', 'stream', 'stream_options', 'n', 'logprobs']);

/** OpenAI's defaults: sending one of them has no effect. */
const idle: Readonly<Record<string, readonly unknown[]>> = {
  frequency_penalty: [0],
  presence_penalty: [0],
  parallel_tool_calls: [true],
  service_tier: ['auto', 'default'],
  store: [false],
  verbosity: ['medium'],
};

/**
 * The names of the body's parameters that are not in `taken`, in the client's order, for `OutboundRequest.dropped`.
 * Parameters without effect (null, a penalty of 0) are not included.
 */
export function droppedParams(body: Json, taken: ReadonlySet<string>): string[] {
  return Object.keys(body).filter((name) => {
    const value = body[name];
    if (taken.has(name) || always.has(name) || value === null || value === undefined) return false;
    if (idle[name]?.includes(value)) return false;
    return !(typeof value === 'object' && Object.keys(value).length === 0);
  });
}

/**
 * Rejects the parameters that a provider with only one text choice does not support: several choices, log
 * probabilities, audio. Throws invalid_request `unsupported_parameter`, naming the param.
 */
export function assertPlainAnswer(
  request: TurnRequest,
  provider: string,
  can: { n?: boolean; logprobs?: boolean } = {},
): void {
  if (!can.n && request.n !== undefined && request.n > 1) {
    throw unsupported(
      'n',
      `${provider} returns one choice per call. Leave out 'n' and send the request ${request.n} times`,
    );
  }
  if (!can.logprobs && request.logprobs) throw unsupported('logprobs', `${provider} does not return log-probabilities`);
  const { modalities, audio } = request.body;
  if (Array.isArray(modalities) && modalities.some((kind) => kind !== 'text')) {
    throw unsupported('modalities', `${provider} only returns text`);
  }
  if (audio !== undefined && audio !== null) throw unsupported('audio', `${provider} only returns text`);
}

/** The error for a parameter whose absence would change the answer's shape. `why` is a sentence without a full stop. */
export const unsupported = (param: string, why: string): GatewayError =>
  new GatewayError('invalid_request', 'unsupported_parameter', `Unsupported parameter '${param}': ${why}.`, { param });

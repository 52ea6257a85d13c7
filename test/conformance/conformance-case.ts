import type { UsageDetails } from '#libs/prices/usage.ts';
import type { PayloadSet } from '#test/fixtures/provider-payloads.ts';
import type { UpstreamRequest } from '#test/upstream.ts';

export type Json = Readonly<Record<string, unknown>>;

/** A payload of test/fixtures/providers by its file name. */
type Fixture = { fixture: string; set?: PayloadSet };
export type Whole = Fixture | { body: unknown };
/** One event a line, as JSON text or as a value; the case's wire makes bytes of it. */
export type Lines = Fixture | { lines: readonly unknown[] };

/** How a provider puts a stream on the wire. */
export type Wire = {
  contentType: string;
  /** One event's bytes, from its JSON line; errors in a stream are lines, too. */
  frame: (line: string) => Buffer;
  /** What ends a complete stream (`data: [DONE]`); absent: nothing does. */
  end?: Buffer;
};

/** What an answer says, in OpenAI's terms. */
export type Says = {
  /** null: no text at all. A pattern where a payload says more than one wants to repeat. */
  text: string | RegExp | null;
  /** `arguments` parsed. `id` only where the provider gives it. */
  toolCalls?: readonly { id?: string; name: string; arguments: unknown }[];
  finishReason: 'stop' | 'length' | 'tool_calls' | 'content_filter' | 'function_call';
  usage: { prompt: number; completion: number; cached?: number; reasoning?: number };
  /** What else has a price, and is not in the answer. */
  billed?: UsageDetails;
  /** `message.refusal`, where the provider says so. */
  refusal?: string | RegExp;
  /** With strict compliance off; what a strict answer never holds. Each block as a whole answer has it. */
  contentBlocks?: readonly Json[];
};

/** `whole` and `stream` of one answer say the same; payloads that differ are two answers. */
export type AnswerCase = {
  name: string;
  /** Members beside `model`; messages default to one user message. */
  request?: Json;
  whole?: Whole;
  stream?: Lines;
  says: Says;
};

/** Two turns: tools are asked for, their results go back, an answer comes. */
export type Conversation = {
  name: string;
  /** The first request: messages, tools and what else. */
  request: Json;
  first: { whole: Whole; stream: Lines };
  /** What each tool answers, by its name. */
  results: Readonly<Record<string, string>>;
  second: { whole: Whole; stream: Lines };
  finalText: string;
  /** What the provider's second request must hold (`toMatchObject`), given the ids that the client got with the calls. */
  secondRequest: (ids: readonly string[]) => Json;
};

export type EarlyError = {
  name: string;
  status: number;
  headers?: Readonly<Record<string, string>>;
  /** A text is sent as it is. */
  body: unknown;
  reported: {
    status: number;
    code: string | null;
    message: string;
    type?: string;
    param?: string | null;
    /** As `readRetryAfter` understands the answer's headers. */
    retryAfterMs?: number;
  };
};

/** An error in the stream after `before`; and, with status `firstStatus`, as its first event. */
export type StreamError = {
  name: string;
  before: readonly unknown[];
  error: unknown;
  reported: { code: string | null; message: string };
  /** Absent: nothing is tried at the beginning. */
  firstStatus?: number;
};

/** A request and what must be in the one that the provider gets (`toMatchObject`; `undefined` says "absent"). */
export type Encoding = {
  name: string;
  request: Json;
  stream?: boolean;
  path?: string;
  headers?: Readonly<Record<string, string | undefined>>;
  body?: Json;
};

/** What a pass-through cannot hold, because the provider's own bytes do not: see invariants.ts for each. */
export type Invariant = 'total' | 'content' | 'head' | 'role' | 'usage' | 'tool calls';

/** All that the suite knows of one provider. */
export type ConformanceCase = {
  /** Registry id. */
  provider: string;
  /** Tells two cases of one provider apart (endpoints of Vertex). */
  variant?: string;
  model: string;
  /** Folder of the base address on the scripted upstream, as a custom host would have it. */
  folder: string;
  /** Default: a canary that no answer may repeat. null: the credentials are `secrets`. */
  apiKey?: string | null;
  /** `upstream` is the scripted server's address, for credentials that name where tokens are fetched. */
  settings?: Readonly<Record<string, string>>;
  secrets?: (upstream: URL) => Readonly<Record<string, string>>;
  /** Answers requests that are no calls (a token), by JSON. undefined: it is a call. */
  beside?: (request: UpstreamRequest) => Json | undefined;
  wire: Wire;
  /** Every payload leaves as the provider wrote it, which is checked instead. */
  passThrough?: true;
  deviations?: readonly Invariant[];
  answers: readonly AnswerCase[];
  conversations: readonly Conversation[];
  earlyErrors: readonly EarlyError[];
  streamErrors: readonly StreamError[];
  /** Bodies with 200 that are no answer: the call fails as provider_failed or provider_timeout. */
  brokenAnswers?: readonly { name: string; whole?: Whole; stream?: Lines; code: string }[];
  encodings?: readonly Encoding[];
  /** Parameters that are left out, and named in a header. */
  dropped?: readonly { request: Json; names: readonly string[] }[];
  /** Parameters without which the answer would have another shape. */
  refused?: readonly { request: Json; param: string }[];
  embeddings?: readonly {
    name: string;
    request: Json;
    sends: Json;
    whole: Whole;
    vectors: readonly (readonly number[])[];
    promptTokens: number;
  }[];
  /** The ids of GET /models. */
  models?: { whole: Whole; path: string; ids: readonly string[] };
};

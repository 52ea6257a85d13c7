import type { Readable } from 'node:stream';
import type { BreakerPolicy } from '#libs/contracts/circuit-breaker.ts';
import type { GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json-members.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import type { Operation, RelayArea, RelayCall, Settings } from '#libs/providers/provider.ts';
import type { Timeouts } from './timeouts.ts';

/** Where a call goes. `label` (the virtual key's slug, or the provider) is how messages name it. */
export type Target = {
  /** Registry id of the provider. */
  provider: string;
  baseUrl: URL;
  apiKey: Secret | null;
  settings: Settings;
  secrets: Readonly<Record<string, Secret>>;
  /**
   * The only origin that the credential may be sent to, for a stored credential. null: the credential came with this very call
   * and goes where its owner asks.
   */
  secretOrigin: string | null;
  /** Replaces the model of the body. */
  model?: string;
  label: string;
  /**
   * What pauses, circuit breakers and queues know the credential by: the virtual key's id, or a digest of a key that came
   * with the call. Absent: none of them counts.
   */
  credentialId?: string;
  workspaceId?: string;
};

/** Of a pass-through call: its area. */
export type CallOperation = Operation | RelayArea;

/** A call of a pass-through area: sent as it is, once, and answered by the provider's own bytes. */
export type Relayed = Pick<RelayCall, 'method' | 'path' | 'accept'> & {
  /** The body with this model in the place of its own. A body that is a stream is there once. */
  send: (model: string | null) => Pick<RelayCall, 'body' | 'contentType' | 'contentLength'>;
};

export type ForwardRequest = {
  operation: CallOperation;
  relayed?: Relayed;
  /** The client's own JSON, already checked; empty for `models`, and where a pass-through call has none. */
  body: Buffer;
  /** The body as the caller parsed it, for adapters that translate it; parsed here when one needs it and it is absent. */
  parsed?: Readonly<Record<string, unknown>> | undefined;
  /** Top-level members to set (raw JSON) or remove on the way out: a config's overrides and defaults. */
  edits?: MemberEdits;
  model: string | null;
  stream: boolean;
  /** The client asked for usage in the stream; otherwise the usage chunk is taken out. */
  includeUsage: boolean;
  /** false: the answer may hold what OpenAI's do not. Default true. */
  strict?: boolean;
  /** Parameters that the provider cannot take: left out and told in `x-gateway-dropped-params`, or refused. Default drop. */
  unsupportedParams?: 'drop' | 'refuse';
  /** The client's headers, lower case. Only those that the provider's adapter admits go out. */
  headers?: Readonly<Record<string, string>>;
  /** More of the client's headers that go out, lower case; none that the adapter itself sets is replaced. */
  forwardHeaders?: readonly string[];
  signal: AbortSignal;
  timeouts?: Partial<Timeouts>;
  /** To which the answer is charged while it is read, and as long as it is there. Absent: nobody counts it. */
  memory?: MemoryLease | undefined;
  /** A circuit breaker for this call's credential and model. Absent: none. */
  breaker?: BreakerPolicy;
  /** A batch line: where a live call is refused it waits, until this moment (epoch milliseconds). Absent: a live call. */
  backgroundUntil?: number;
  /** A background call waits through this, so that its permit is free meanwhile. Absent: it keeps what it holds. */
  waitWithoutPermit?: WaitWithoutPermit;
};

/** What a call is waiting for. */
export type Wait = {
  /**
   * `rate_limited`: the provider said not now. `circuit_open`: its circuit breaker. `provider_busy`: a place among the
   * calls of its credential. `retry`: the next of its attempts, which are counted. `gateway`: the database of the gateway.
   */
  reason: 'rate_limited' | 'circuit_open' | 'provider_busy' | 'retry' | 'gateway';
  /** How messages name the target; null: not known yet. */
  label: string | null;
  model: string | null;
  /** In epoch milliseconds; null: when there is room, or an answer. */
  untilMs: number | null;
};

/**
 * Releases the call's permit, runs `wait` with the signal that ends it, and resolves when the call has a permit again. Throws
 * GatewayError `call_aborted`, which is never retried, when the call must not go on.
 */
export type WaitWithoutPermit = (what: Wait, wait: (signal: AbortSignal) => Promise<void>) => Promise<void>;

/** Input tokens include cached ones, output tokens include reasoning. */
export type Usage = { inputTokens: number; cachedTokens: number; outputTokens: number; reasoningTokens: number };

/** One call to the provider. `durationMs` ends with the whole answer, of a stream with its first event. */
export type Attempt = { startedAt: number; durationMs: number; status: number | null; errorCode: string | null };

export type StreamSummary = {
  usage: Usage | null;
  model: string | null;
  /** Of the first choice. */
  finishReason: string | null;
  /** Every choice was finished, or the provider said `[DONE]`. */
  complete: boolean;
  /** From the start of the attempt to its first event. */
  firstEventMs: number;
  /** Why the stream is incomplete. */
  error: GatewayError | null;
};

type AnswerHead = {
  status: number;
  /** Allow-listed, lower case, fit to be sent to the client. */
  headers: Record<string, string>;
  providerRequestId: string | null;
  /** Every call made for this answer, the last one its own. */
  attempts: readonly Attempt[];
  /** null of a stream: see `done`. */
  usage: Usage | null;
  model: string | null;
  finishReason: string | null;
  /** The provider's own, of an answer that is an error. */
  errorCode?: string | null;
};

/** A whole body. With a status of 400 or more it is an error in OpenAI's four keys, without any trace of the credential. */
export type JsonAnswer = AnswerHead & { kind: 'json'; body: Buffer; contentType: string };

/**
 * A stream whose first event is there. `events` yields payload texts as the provider wrote them (a payload may hold
 * newlines: each of its lines needs its own `data:`), in batches as they arrive, without the final `[DONE]`. It throws a
 * GatewayError when the stream dies: the client is then told by an error event, and no `[DONE]`. Leaving the loop cancels
 * the call. `done` never rejects.
 */
export type StreamAnswer = AnswerHead & {
  kind: 'stream';
  events: AsyncIterable<readonly string[]>;
  done: Promise<StreamSummary>;
};

/**
 * The answer of a pass-through call, whose headers are there. `body` has the provider's bytes as they come, with
 * back-pressure; destroying it cancels the call. Of an error it is a whole body, in OpenAI's four keys. `done` says what the
 * body told of usage when it has ended, however, and never rejects.
 */
export type RelayedAnswer = AnswerHead & {
  kind: 'relayed';
  body: Readable;
  done: Promise<Pick<StreamSummary, 'usage' | 'model' | 'error'>>;
};

export type Answer = JsonAnswer | StreamAnswer | RelayedAnswer;

/** No answer: unreachable, timed out, unreadable, refused here, or the caller left. */
export type Failure = {
  kind: 'failed';
  error: GatewayError;
  attempts: readonly Attempt[];
  /** What the provider had answered, and was paid for, when something failed after it. */
  lostAnswer?: JsonAnswer;
};

export type Outcome = Answer | Failure;

export type Limits = {
  /** A body that must be held whole to be checked. Embeddings of 2,048 texts are about 60 MB. */
  jsonBytesMax: number;
  /** What is read of an error's body. */
  errorBytesMax: number;
  /** One event of a stream: images come as one event of several MB. */
  eventCharsMax: number;
  /** A whole stream. */
  streamBytesMax: number;
  /** Payloads waiting for a slow reader; past it the provider's socket is not read. */
  bufferedCharsMax: number;
};

export const defaultLimits: Limits = {
  jsonBytesMax: 67_108_864,
  errorBytesMax: 262_144,
  eventCharsMax: 16_777_216,
  streamBytesMax: 1_073_741_824,
  bufferedCharsMax: 262_144,
};

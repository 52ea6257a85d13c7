import type { Readable } from 'node:stream';
import type { BreakerPolicy } from '#libs/contracts/configs/circuit-breaker.ts';
import type { CallSignal } from '#libs/kernel/call-signal.ts';
import type { GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { OwnPrice } from '#libs/prices/price-table.ts';
import type { Price } from '#libs/prices/price-usage.ts';
import type { Units, Usage } from '#libs/prices/usage.ts';
import type { Operation, RelayArea, RelayCall, Settings } from '#libs/providers/provider.ts';
import type { Timeouts } from './timeouts.ts';

/** The models that can be called with a credential. */
export type AllowedModels = {
  /** Whether models that are not listed can be called. */
  readonly allowsOthers: boolean;
  /** By name; false: it cannot be called. */
  readonly listed: ReadonlyMap<string, boolean>;
  /** Models that the provider does not necessarily list itself. */
  readonly custom: readonly string[];
  /** The base models of fine-tuned models, which determine their prices. */
  readonly bases: ReadonlyMap<string, string>;
};

/** Where a call goes. Messages name it by its `label` (the slug of the virtual key, or the provider). */
export type Target = {
  /** The provider's id in the registry. */
  provider: string;
  baseUrl: URL;
  apiKey: Secret | null;
  settings: Settings;
  secrets: Readonly<Record<string, Secret>>;
  /**
   * For a stored credential, the only origin that it can be sent to. null: the credential came with this call and can
   * be sent wherever the call asks.
   */
  secretOrigin: string | null;
  /** Replaces the model of the body. */
  model?: string;
  label: string;
  /**
   * The ID of the credential for rate-limit waits, circuit breakers and queues: the ID of the virtual key, or a digest
   * of a key that came with the call. Absent: none of them applies.
   */
  credentialId?: string;
  workspaceId?: string;
  /** The slug of the integration that holds the credential. Absent: no integration holds it. */
  integration?: string;
  /**
   * The ID of the organisation's integration, if several workspaces use its account at the provider and each can name
   * only the objects that it stored there. Absent: the account is the workspace's own, or its objects are shared.
   */
  sharedAccount?: string;
  /** Absent: all. */
  models?: AllowedModels;
  /** The price of the public model that was called, which replaces the listed one. Absent: it has none. */
  ownPrice?: OwnPrice;
  /**
   * For a credential in a secret manager: fetches it again, because the provider has refused it. null: it has not
   * changed. Limited in time. Never rejects if the secret is unavailable.
   */
  renewCredential?: () => Promise<RenewedCredential | null>;
};

/** The parts of a target that a rotated secret changes. */
export type RenewedCredential = Pick<Target, 'apiKey' | 'settings' | 'secrets'>;

/** The area of a pass-through call. */
export type CallOperation = Operation | RelayArea;

/** A call of a pass-through area: sent unchanged, once, and answered with the provider's own bytes. */
export type Relayed = Pick<RelayCall, 'method' | 'path' | 'accept'> & {
  /** Returns the body with its model replaced by this one. A body that is a stream can be read only once. */
  send: (model: string | null) => Pick<RelayCall, 'body' | 'contentType' | 'contentLength'>;
};

export type ForwardRequest = {
  operation: CallOperation;
  /** The call runs no model: it lists, reads or changes stored objects, and uses no budget. */
  isFree?: boolean;
  relayed?: Relayed;
  /** The client's own JSON, already checked. Empty for `models`, and for a pass-through call without a body. */
  body: Buffer;
  /**
   * The body as the caller parsed it, for adapters that translate it. If it is absent, it is parsed here when an
   * adapter needs it.
   */
  parsed?: Readonly<Record<string, unknown>> | undefined;
  /** Top-level members to set (raw JSON) or to remove before the request is sent: a config's overrides and defaults. */
  edits?: MemberEdits;
  model: string | null;
  stream: boolean;
  /** Whether the client asked for usage in the stream. If not, the usage chunk is removed. */
  includeUsage: boolean;
  /** Whether the answer can contain only members that OpenAI's answers have. Default true. */
  strict?: boolean;
  /**
   * Parameters that the provider does not support are either removed and named in `x-gateway-dropped-params`, or
   * refused. Default: removed.
   */
  unsupportedParams?: 'drop' | 'refuse';
  /** Whether a request to Claude gets cache breakpoints if the client has set none. Absent: no. */
  cacheBreakpoints?: boolean | undefined;
  /** The trace that the call belongs to, for the feedback of guardrails. */
  traceId?: string | null;
  /** The W3C Trace Context header for the provider. Absent: the trace ends at this gateway. */
  traceparent?: string | undefined;
  /** The client's headers, in lower case. Only those that the provider's adapter allows are sent. */
  headers?: Readonly<Record<string, string>>;
  /** More headers of the client to send, in lower case. They never replace a header that the adapter sets. */
  forwardHeaders?: readonly string[];
  signal: CallSignal;
  timeouts?: Partial<Timeouts>;
  /** The answer is charged to this lease while it is read and held. Absent: its memory is not counted. */
  memory?: MemoryLease | undefined;
  /** The circuit breaker for the credential and model of this call. Absent: none. */
  breaker?: BreakerPolicy;
  /**
   * For a batch line: it waits where a live call is refused, until its signal or `waitWithoutPermit` ends it. Absent: a
   * live call.
   */
  isBackground?: boolean;
  /** The workspace of a background call. Workspaces take turns when calls wait for the limit of their provider. */
  turn?: string;
  /** The place that was held for a background call before it began. Absent: it waits for one if it must. */
  place?: HeldPlace | undefined;
  /** A background call waits through this, so that its permit is free meanwhile. Absent: it keeps its permit. */
  waitWithoutPermit?: WaitWithoutPermit;
};

/** A place among the calls that a provider accepts at a time, which is held for a background call. */
export type HeldPlace = {
  /** Gives the place back if its call has not taken it. Idempotent. A call with another credential or model does so. */
  release: () => void;
  /** Whether a call has taken it. */
  isTaken: () => boolean;
};

/** The reason why a call is waiting. */
export type Wait = {
  /**
   * `rate_limited`: the provider answered 429, or a rate limit of ours spreads the calls. `circuit_open`: its circuit is open. `provider_busy`: all permits of its
   * credential are in use. `budget_used_up`: one of our budgets, until it is reset or raised. `retry`: the next
   * attempt, which counts. `gateway`: the gateway's database. `secret_unavailable`: the secret manager that holds its
   * credential.
   */
  reason:
    | 'rate_limited'
    | 'budget_used_up'
    | 'circuit_open'
    | 'provider_busy'
    | 'retry'
    | 'gateway'
    | 'secret_unavailable';
  /** The name of the target in messages; null while it is not known. */
  label: string | null;
  model: string | null;
  /** In epoch milliseconds; null if the wait ends with a free permit or with an answer. */
  untilMs: number | null;
  /** For `budget_used_up`: the sentences that name the budget. */
  budget?: string;
  /**
   * For `provider_busy`: waits for a place for a similar call, which can then begin without this wait. Throws the reason
   * of the signal if that aborts first.
   */
  hold?: (signal: AbortSignal) => Promise<HeldPlace>;
};

/**
 * Releases the call's permit, runs `wait` with the signal that ends it, and resolves when the call has a permit again.
 * Throws GatewayError `call_aborted`, which is never retried, when the call must not continue.
 */
export type WaitWithoutPermit = (what: Wait, wait: (signal: AbortSignal) => Promise<void>) => Promise<void>;

/** One call to the provider. `durationMs` covers the whole answer, or for a stream the time to its first event. */
export type Attempt = {
  startedAt: number;
  durationMs: number;
  status: number | null;
  errorCode: string | null;
  /** Where it was sent, with the model that was requested. Absent: the call was made elsewhere. */
  to?: { target: Target; model: string | null };
  /** The usage of a whole answer, even if the answer was rejected and another attempt followed. */
  paid?: PaidAnswer;
  /** The request was sent, and the provider may have worked for it, although no answer came. */
  isLost?: true;
};

/** `price` is set when it is first needed (price-answer.ts); null: it is not known. */
export type PaidAnswer = { responseModel: string | null; usage: Usage; price?: Price | null };

/** When the guardrails of a call were evaluated, and their results. `startedAt` in epoch milliseconds. */
export type GuardrailRun = {
  kind: 'input_guardrails' | 'output_guardrails';
  startedAt: number;
  durationMs: number;
  outcome: GuardrailOutcome;
  /** The result of each guardrail. Only stored guardrails have a slug and a version. */
  verdicts: readonly { id: string; slug: string | null; version: number | null; verdict: GuardrailOutcome }[];
};

/** `failed`: it is only reported. `denied`: the call is refused. */
type GuardrailOutcome = 'passed' | 'failed' | 'denied';

export type StreamSummary = {
  usage: Usage | null;
  /**
   * Whether `usage` is an estimate from the length of the request and the stream, because the provider did not report
   * it.
   */
  isEstimate?: boolean;
  model: string | null;
  /** The finish reason of the first choice. */
  finishReason: string | null;
  /** Whether every choice was finished, or the provider sent `[DONE]`. */
  complete: boolean;
  /** From the start of the attempt to its first event. */
  firstEventMs: number;
  /** Why the stream is incomplete. */
  error: GatewayError | null;
  /** For the record: replaces the status that was sent, because the guardrails were evaluated after it. */
  status?: number;
};

type AnswerHead = {
  status: number;
  /** The allowed headers, in lower case, safe to send to the client. */
  headers: Record<string, string>;
  providerRequestId: string | null;
  /** Every call made for this answer; the last one produced it. */
  attempts: readonly Attempt[];
  /** null for a stream; see `done`. */
  usage: Usage | null;
  model: string | null;
  finishReason: string | null;
  /** The provider's own error code, if the answer is an error. */
  errorCode?: string | null;
};

/**
 * A whole body. If the status is 400 or more, it is an error in OpenAI's format, without any trace of the credential.
 */
export type JsonAnswer = AnswerHead & {
  kind: 'json';
  body: Buffer;
  contentType: string;
  /** The ID of a stored object whose usage can be read later. */
  objectId?: string;
  /**
   * Frees the memory of a large body, which is empty afterwards. Call it when the body will not be read again. Otherwise
   * V8 collects the whole heap for every 40 MB of such bodies, which delays other calls by 10 to 40 ms.
   */
  freeBody?: () => void;
};

/**
 * A stream whose first content has arrived. `events` yields the payload texts as the provider wrote them, in batches as
 * they arrive, without the final `[DONE]`. (A payload can contain newlines; each of its lines needs its own `data:`.)
 * It throws a GatewayError when the stream breaks off; then the client gets an error event and no `[DONE]`. Leaving the
 * loop cancels the call. `done` never rejects.
 */
export type StreamAnswer = AnswerHead & {
  kind: 'stream';
  events: AsyncIterable<readonly string[]>;
  done: Promise<StreamSummary>;
};

/** Other findings from the body of a pass-through call. `objectId` is the ID of the object that it contains. */
export type RelayedSummary = { units?: Units | null; objectId?: string | null };

/**
 * The answer of a pass-through call whose headers have arrived. `body` yields the provider's bytes as they arrive, with
 * back-pressure; destroying it cancels the call. The body of an error is read whole and has OpenAI's format. `done`
 * resolves with the usage that the body reported, however the body ended, and never rejects.
 */
export type RelayedAnswer = AnswerHead & {
  kind: 'relayed';
  body: Readable;
  done: Promise<Pick<StreamSummary, 'usage' | 'model' | 'error'> & RelayedSummary>;
};

export type Answer = JsonAnswer | StreamAnswer | RelayedAnswer;

/**
 * No answer: the provider was unreachable, timed out or sent something unreadable, the call was refused here, or the
 * caller left.
 */
export type Failure = {
  kind: 'failed';
  error: GatewayError;
  attempts: readonly Attempt[];
  /** The provider's answer, which has to be paid for, when a later step failed. */
  lostAnswer?: JsonAnswer;
};

export type Outcome = Answer | Failure;

export type Limits = {
  /** The largest body that is held whole to be checked. Embeddings of 2,048 texts are about 60 MB. */
  jsonBytesMax: number;
  /** How much is read of an error's body. */
  errorBytesMax: number;
  /** The largest event of a stream. Images arrive as one event of several MB. */
  eventCharsMax: number;
  /** The largest whole stream. */
  streamBytesMax: number;
  /**
   * How long the first events of a stream are held if they have no content (a role, `message_start`): a stream that
   * breaks off meanwhile has failed like any call, and can be repeated elsewhere. A longer time would leave the client of
   * a model that thinks unseen without headers.
   */
  heldMs: number;
  /** Payloads that can wait for a slow reader. Beyond that, the provider's socket is not read. */
  bufferedCharsMax: number;
};

export const defaultLimits: Limits = {
  jsonBytesMax: 67_108_864,
  errorBytesMax: 262_144,
  eventCharsMax: 16_777_216,
  streamBytesMax: 1_073_741_824,
  heldMs: 5_000,
  bufferedCharsMax: 262_144,
};

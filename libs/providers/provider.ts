import type { MemberEdits } from '#libs/kernel/json-members.ts';
import type { Secret } from '#libs/kernel/secret.ts';

export type Operation = 'chat' | 'completions' | 'embeddings' | 'models';

/** Where a call goes, and with what. `baseUrl` holds neither credentials nor a fragment. */
export type Upstream = { baseUrl: URL; apiKey: Secret | null };

/**
 * One call, in OpenAI's terms. `body` is the client's own JSON (empty for `models`); `edits` are the top-level members to
 * set or remove on the way, the target's model among them.
 */
export type Call = {
  operation: Operation;
  body: Buffer;
  edits: MemberEdits;
  /** The body parsed, edits applied. Parsing happens on the first call: a translation that passes bytes never pays. */
  json: () => Readonly<Record<string, unknown>>;
  stream: boolean;
  /** The client asked for usage in its stream. The core wants it always, for accounting. */
  includeUsage: boolean;
  /** Headers of the client that the provider's `clientHeaders` admit. */
  headers: Readonly<Record<string, string>>;
};

/** `headers` is flat (name, value, name, value), as the wire has it. `path` is origin-form: path and query. */
export type OutboundRequest = {
  method: 'GET' | 'POST' | 'DELETE';
  origin: string;
  path: string;
  headers: string[];
  body: Uint8Array | null;
};

export type StreamEvent = { event?: string | undefined; data: string };

/** OpenAI's four keys. `status` and `retryAfterMs` only where the body itself tells them. */
export type ProviderError = {
  error: { message: string; type: string | null; param: string | null; code: string | null };
  status?: number;
  retryAfterMs?: number;
};

/** Cuts a response body into events: SSE in the core, another framing (Bedrock's binary one) in an adapter. */
export interface Framing {
  /** May throw: the stream then ends as `upstream_invalid_response`. */
  push(chunk: Buffer): void;
  end(): void;
}

/** State of one stream: events in, payloads in OpenAI's chunk shape out. `done` ends the stream, as `[DONE]` does. */
export interface StreamDecoder {
  push(event: StreamEvent): { payloads: readonly string[]; done?: boolean; error?: ProviderError };
}

/**
 * One operation of one provider, as pure translations. The forwarding core owns sockets, retries, timeouts, size limits,
 * scrubbing and accounting; whatever it has no translation for passes byte for byte.
 */
export interface Translation {
  encode(call: Call, upstream: Upstream): OutboundRequest;
  /** A successful JSON body to OpenAI's shape. Absent: it already is, and its bytes go out untouched. */
  decode?(body: unknown, call: Call): unknown;
  /** One decoder a stream. Absent: each payload passes unchanged and `[DONE]` ends the stream. */
  openStream?(call: Call): StreamDecoder;
  /** Absent: server-sent events. `eventBytesMax` bounds what may be kept of an unfinished event. */
  openFraming?(onEvent: (event: StreamEvent) => void, eventBytesMax: number): Framing;
  /** Never throws: an unreadable body still becomes an error that says what is known. Need not scrub. */
  decodeError(status: number, body: string): ProviderError;
}

/** An absent operation means "this provider cannot": answered `unsupported_operation` before any network call. */
export type Provider = {
  readonly id: string;
  /** null: the caller must name a host (a self-hosted server, the simulator). */
  readonly defaultBaseUrl: URL | null;
  /** Request headers of a client that may reach this provider; all others stay here. Lower case. */
  readonly clientHeaders: readonly string[];
  /** Response headers that hold the provider's id of the call, in order of preference. Lower case. */
  readonly requestIdHeaders: readonly string[];
  readonly operations: Readonly<Partial<Record<Operation, Translation>>>;
};

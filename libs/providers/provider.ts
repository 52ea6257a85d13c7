import type { IncomingHttpHeaders } from 'node:http';
import type { Readable } from 'node:stream';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { UsageDetails } from '#libs/prices/usage.ts';
import type { StreamJoiner } from './turns/stream-joiner.ts';
import type { AnswerHead, Choice, StreamWriter, TokenCounts } from './turns/answer.ts';
import type { Json } from './turns/json-value.ts';
import type { Resource } from './turns/media.ts';
import type { TurnRequest } from './turns/turn-request.ts';

/**
 * The path of each operation below `/v1`. `messages` and `count_tokens` are Anthropic's, the others are OpenAI's; `moderations`
 * and `images` belong to pass-through areas, and so do the other paths of `responses`. For Google's operations, it is the end
 * of their paths.
 */
export const operationPaths = {
  chat: '/chat/completions',
  completions: '/completions',
  embeddings: '/embeddings',
  messages: '/messages',
  count_tokens: '/messages/count_tokens',
  generate_content: ':generateContent',
  count_content_tokens: ':countTokens',
  models: '/models',
  responses: '/responses',
  moderations: '/moderations',
  images: '/images/generations',
} as const;
export type Operation = keyof typeof operationPaths;

/** A provider's own settings by the names of their headers in snake case (CONF-6, `aws_region`), as virtual keys store them. */
export type Settings = Readonly<Record<string, string>>;

/**
 * One of a provider's own settings. It has the same name everywhere: as a member of a virtual key or of a config's target,
 * and with hyphens in a header (`x-gateway-aws-region`). The value is text.
 */
export type SettingField = {
  /** A credential: it is stored encrypted and never shown again. */
  secret?: true;
  /** A JSON document (a key file), given as its text or as the object itself. It is never sent in a header. */
  json?: true;
  /** It authenticates the caller, so that no `key` is needed. */
  authenticates?: true;
  /**
   * It selects the server that a credential is sent to. To change it, the credential must be given again: otherwise, anyone
   * who can edit a virtual key could have its key sent to their own server (CVE-2026-41487).
   */
  destination?: true;
  /** A shorter name that Portkey's configs use. */
  alias?: string;
  /** The name that Portkey's virtual keys use. */
  portkeyName?: string;
  /** One credential can serve several deployments: `name` names the deployment, and each can have its own `detail`. */
  ofDeployment?: 'name' | 'detail';
  /**
   * A secret reference can fill it although it is not a secret, because it changes whenever the secret does. It is sent as
   * part of a longer text, so only letters, digits and underscores are accepted from a reference.
   */
  mappable?: true;
  /** Accepted because clients of Portkey's API store it. It has no effect. */
  unused?: true;
};
/** The part that request schemas depend on. libs/providers/setting-fields.ts is generated from it. */
export type SettingForm = Pick<
  SettingField,
  'secret' | 'json' | 'authenticates' | 'alias' | 'portkeyName' | 'ofDeployment'
>;
export type SettingFields = Readonly<Record<string, SettingField>>;

/**
 * The settings of another provider, for one that serves the same models. Clients can store them, but they have no
 * effect.
 */
export const unused = (fields: SettingFields = {}): SettingFields =>
  Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, { ...field, unused: true }]));

/** Where a call goes, and its credentials. `baseUrl` has no credentials and no fragment. */
export type Upstream = {
  baseUrl: URL;
  apiKey: Secret | null;
  settings: Settings;
  /** Credentials other than `apiKey`, by setting name (`aws_secret_access_key`). */
  secrets: Readonly<Record<string, Secret>>;
};

/**
 * One call in the client's format. `body` is the client's own JSON (empty for `models`). `edits` are top-level members to set
 * or remove, including the target's model.
 */
export type Call = {
  operation: Operation;
  /** The client's format, for operations that ask for the next turn of a conversation; for others that of chat. */
  dialect: Dialect;
  /** The target's model; '' if there is none. */
  model: string;
  body: Buffer;
  edits: MemberEdits;
  /** The parsed body with edits applied. It is parsed on the first use, so pass-through translations never pay for it. */
  json: () => Readonly<Record<string, unknown>>;
  stream: boolean;
  /** Whether the client asked for usage in its stream. The core always needs it for accounting. */
  includeUsage: boolean;
  /**
   * false: answers may have members that OpenAI's do not have (`content_blocks`, the provider's own finish reasons). Other
   * dialects are never strict.
   */
  strict: boolean;
  /** Whether a request to Claude gets cache breakpoints if the client has set none. Absent: no. */
  cacheBreakpoints?: boolean | undefined;
  /** The content of every URL that `resourcesOf` returned. */
  resources: ReadonlyMap<string, Resource>;
  /** The client's headers that the provider's `clientHeaders` allow. */
  headers: Readonly<Record<string, string>>;
  /**
   * Charges memory that a stream's writer retains until the end of the call. Throws GatewayError if there is no room. Absent:
   * it is not counted.
   */
  retain?: ((bytes: number) => void) | undefined;
};

/**
 * A format in which clients ask for the next turn of a conversation. Adapters read the request from `decodeRequest` and
 * return the parts of the answer, so that each dialect works with each of them. Pure functions.
 */
export type Dialect = {
  readonly operation: Operation;
  /**
   * Reads a request that the dialect's contract has checked. `model` is the one of the target. Throws invalid_request, naming
   * the param, for input that no provider accepts, and `unsupported_parameter` for what only the dialect's own provider has.
   */
  decodeRequest(body: Json, model: string): TurnRequest;
  /**
   * The edits of a config for bodies whose members have other places than those of chat completions. `edits` have the names of
   * either. Absent: they are top-level members.
   */
  adaptEdits?(body: Buffer, edits: MemberEdits): MemberEdits;
  /** The body of a whole answer. `usage` is null if the provider sent none. */
  encodeAnswer(head: AnswerHead, choices: readonly Choice[], usage: TokenCounts | null, call: Call): Json;
  /** Begins a stream. */
  openAnswer(head: AnswerHead, call: Call): StreamWriter;
  /** A whole answer as the payloads of a stream, for a provider that did not stream, and for the cache. */
  splitAnswer(answer: Json, includeUsage: boolean): string[];
  /** Joins streams of several targets, because the first one broke off. */
  openJoiner(): StreamJoiner;
  /** The members of a request that ask for the rest of an answer, of which the client has this text. */
  askForRest(body: Json, text: string): Json;
};

/** `headers` is flat (name, value, name, value), as undici takes it. `path` includes the query. */
export type OutboundRequest = {
  method: 'GET' | 'POST' | 'DELETE';
  origin: string;
  path: string;
  headers: string[];
  /** A stream can be sent only once, so such a request is never retried. */
  body: Uint8Array | Readable | null;
  /**
   * The client's parameters that the provider does not support and that were dropped (`logit_bias`, `messages[2].name`).
   * The core reports them to the client, or rejects the call if the caller asked for that.
   */
  dropped?: readonly string[];
};

export type StreamEvent = { event?: string | undefined; data: string };

/** OpenAI's four members. `status` and `retryAfterMs` are present only if the body itself contains them. */
export type ProviderError = {
  error: { message: string; type: string | null; param: string | null; code: string | null };
  status?: number;
  retryAfterMs?: number;
};

/** Splits a response body into events: SSE in the core, any other framing (Bedrock's is binary) in an adapter. */
export interface Framing {
  /** Can throw. The stream then fails with `upstream_invalid_response`. */
  push(chunk: Buffer): void;
  end(): void;
}

/**
 * The state of one stream: receives events, returns payloads in the client's format. `done` ends the stream like `[DONE]`.
 */
export interface StreamDecoder {
  push(event: StreamEvent): { payloads: readonly string[]; done?: boolean; error?: ProviderError };
  /** What follows the last event of a stream that has ended; nothing if the answer has not finished. */
  end?(): readonly string[];
  /** Like `detailsOf` of a translation, for the events so far. */
  details?(): UsageDetails | null;
}

/**
 * One operation of one provider, as pure functions. The core does the I/O, retries, timeouts, size limits, scrubbing
 * and accounting. An answer without a translation passes byte for byte.
 */
export interface Translation {
  /** Bytes pass unchanged in both directions, except where the provider's format differs from OpenAI's in details. */
  readonly passThrough?: true;
  /**
   * Whether the provider has this format for the model. Otherwise the call is translated to the provider's chat. Absent: for
   * all models.
   */
  serves?(model: string): boolean;
  /**
   * Throws GatewayError invalid_request, naming the param, for input for which the provider has no equivalent (a
   * message with an unknown role), and `unsupported_parameter` if dropping it would change the answer's shape (`n`
   * above 1).
   */
  encode(call: Call, upstream: Upstream): OutboundRequest;
  /**
   * Whether the call wants a JSON object of any shape from a model without a mode for it. `encode` then adds an instruction;
   * the core calls without streaming and rejects a finished answer that is not a JSON object. Absent: never.
   */
  asksForJsonInWords?(call: Call): boolean;
  /** URLs (of images in messages) whose content must be sent with the request, because the provider does not fetch URLs. */
  resourcesOf?(call: Call): readonly string[];
  /**
   * Converts a successful JSON body to OpenAI's format. Returns the same object if nothing changes, so that its bytes
   * are sent on untouched, as they are when this is absent. Throws GatewayError provider_failed or provider_timeout
   * (`upstream_error`: retryable) for an answer that reports a failure. Need not scrub.
   */
  decode?(body: unknown, call: Call): unknown;
  /**
   * Returns the usage in a successful JSON body that has a separate price and no place in OpenAI's format. It is used
   * for the cost of the call and not sent to the client. null or absent: there is none.
   */
  detailsOf?(body: unknown): UsageDetails | null;
  /** Creates the decoder of one stream. Absent: each payload passes unchanged and `[DONE]` ends the stream. */
  openStream?(call: Call): StreamDecoder;
  /** Absent: server-sent events. `eventBytesMax` limits the buffer for an unfinished event. */
  openFraming?(onEvent: (event: StreamEvent) => void, eventBytesMax: number): Framing;
  /** Never throws: an unreadable body still gives an error with everything that is known. Need not scrub. */
  decodeError(status: number, body: string): ProviderError;
}

/** Areas of OpenAI's API that are forwarded unchanged. Only the model's name is read. */
export const relayAreas = [
  'moderations',
  'images',
  'audio',
  'responses',
  'conversations',
  'rerank',
  'assistants',
  'threads',
  'vector_stores',
] as const;
/** An area that has its own routes and scopes. */
export type ScopedRelayArea = (typeof relayAreas)[number];

/**
 * The areas that a provider can support. `stored_objects`: files, batches, fine-tuning jobs and models that are stored
 * there, by their IDs, on our own routes.
 */
export type RelayArea = ScopedRelayArea | 'stored_objects';
export const allRelayAreas: readonly RelayArea[] = [...relayAreas, 'stored_objects'];

/** One call of such an area. `path` is the one of OpenAI's API below `/v1`, with its query: `/audio/speech`. */
export type RelayCall = {
  area: RelayArea;
  method: 'GET' | 'POST' | 'DELETE';
  path: string;
  contentType: string | null;
  /** The length of a streamed body; null if the client did not send it. */
  contentLength: number | null;
  accept: string | null;
  body: Uint8Array | Readable | null;
  /** The model in a JSON body. */
  model: string | null;
  headers: Readonly<Record<string, string>>;
};

/** The areas that a provider offers in OpenAI's format, and how they are addressed. */
export type Relay = {
  areas: readonly RelayArea[];
  encode(call: RelayCall, upstream: Upstream): OutboundRequest;
};

/**
 * The address and the authorisation headers of a request in OpenAI's format. `path` begins below the version segment
 * (`/fine_tuning/jobs?limit=20`); `headers` is flat.
 */
export type Addressing = (path: string, upstream: Upstream) => { origin: string; path: string; headers: string[] };

/** The functions that the core offers to `authorize`. */
export type AuthorizeTools = {
  /** Epoch milliseconds. */
  now: number;
  /** Makes one request through the same egress, with an answer of at most 1 MiB. Throws GatewayError. Only for tokens. */
  fetch: (request: OutboundRequest) => Promise<{ status: number; body: Buffer }>;
  /** Registers text (a fetched token) that must not appear in any error or log of this call. */
  keepSecret: (text: string) => void;
};

/**
 * Everything that the platform knows about a provider. An absent operation is rejected as `unsupported_operation`
 * before any call.
 */
export type Provider = {
  readonly id: string;
  /** Other names for it, which clients of Portkey's API send. */
  readonly aliases?: readonly string[];
  /** Its own settings, by name. Those in the braces of `address` are required. */
  readonly settings?: SettingFields;
  /**
   * Its base URL, with setting names in braces, for docs and errors. Absent: the caller must specify a `custom_host`.
   */
  readonly address?: string;
  /**
   * Builds the base URL from the settings; null if the provider has none or a setting is missing. Throws GatewayError
   * invalid_request for a setting that cannot be part of a URL.
   */
  readonly baseUrlOf: (settings: Settings) => URL | null;
  /** false: a server that does not always require a key (self-hosted ones, the simulator). */
  readonly needsCredential: boolean;
  /**
   * Request headers other than `authorization` that hold its credential; a client's header of that name is never forwarded.
   * A name that ends with a hyphen is a prefix. Lower case.
   */
  readonly credentialHeaders?: readonly string[];
  /** The client's request headers that are forwarded to this provider. Lower case. */
  readonly clientHeaders: readonly string[];
  /** Its name in OpenTelemetry's semantic conventions (`gen_ai.provider.name`). Absent: its id. */
  readonly semanticName?: string;
  /** Response headers with the provider's id of the call, in order of preference. Lower case. */
  readonly requestIdHeaders: readonly string[];
  /** Returns its rate limits as OpenAI's `x-ratelimit-*`, which pace later calls. Absent: it uses those names. Never throws. */
  readonly readRateHeaders?: (headers: IncomingHttpHeaders) => Record<string, string>;
  readonly operations: Readonly<Partial<Record<Operation, Translation>>>;
  /** Absent: no pass-through areas. */
  readonly relay?: Relay;
  /** The changes that pass-through calls make nevertheless, for docs/providers.md. */
  readonly differences?: readonly string[];
  /** Other information for users, in whole sentences, for docs/providers.md. */
  readonly notes?: readonly string[];
  /** How its files and fine-tuning jobs are addressed. Absent: it has no fine-tuning API in OpenAI's format. */
  readonly fineTuning?: Addressing;
  /**
   * Signs a request, or fetches a token for it, just before each attempt, and adds headers in place. Absent: `encode` adds
   * the key. Throws GatewayError: invalid_request for an unusable credential, provider_failed otherwise.
   */
  readonly authorize?: (request: OutboundRequest, upstream: Upstream, tools: AuthorizeTools) => Promise<void>;
};

import type { Readable } from 'node:stream';
import type { MemberEdits } from '#libs/kernel/json-members.ts';
import type { Secret } from '#libs/kernel/secret.ts';

/** Where each operation is in OpenAI's interface, below `/v1`. The last three are of areas that are forwarded whole. */
export const operationPaths = {
  chat: '/chat/completions',
  completions: '/completions',
  embeddings: '/embeddings',
  models: '/models',
  responses: '/responses',
  moderations: '/moderations',
  images: '/images/generations',
} as const;
export type Operation = keyof typeof operationPaths;

/** A provider's own settings by the names of their headers in snake case (CONF-6, `aws_region`), as virtual keys store them. */
export type Settings = Readonly<Record<string, string>>;

/**
 * What is known of one of a provider's own settings. The name is the same everywhere: a member of a virtual key or of a
 * config's target, and with hyphens in a header (`x-gateway-aws-region`). The value is text.
 */
export type SettingField = {
  /** A credential: stored encrypted, never shown again. */
  secret?: true;
  /** A JSON document (a key file), given as its text or as the object itself. It is never sent in a header. */
  json?: true;
  /** The provider knows its caller by this setting, without a `key`. */
  authenticates?: true;
  /**
   * It chooses the server that a credential is sent to. A change asks for the credential again: otherwise whoever may edit
   * a virtual key could have its key sent to a server of their own (CVE-2026-41487).
   */
  destination?: true;
  /** A shorter name, which Portkey's configs use. */
  alias?: string;
  /** Accepted because clients of Portkey's API store it. Nothing reads it. */
  unused?: true;
};
/** What the forms of requests depend on: plain data, from which libs/providers/setting-fields.ts is made. */
export type SettingForm = Pick<SettingField, 'secret' | 'json' | 'authenticates' | 'alias'>;
export type SettingFields = Readonly<Record<string, SettingField>>;

/** Another provider's settings, for one that stands in for it: clients store them all the same, and nothing reads them. */
export const unused = (fields: SettingFields = {}): SettingFields =>
  Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, { ...field, unused: true }]));

/** Where a call goes, and with what. `baseUrl` holds neither credentials nor a fragment. */
export type Upstream = {
  baseUrl: URL;
  apiKey: Secret | null;
  settings: Settings;
  /** Credentials beside `apiKey`, by the names of their settings (`aws_secret_access_key`). */
  secrets: Readonly<Record<string, Secret>>;
};

/** What the core fetched for a translation that cannot pass a URL on. */
export type Resource = { contentType: string; bytes: Buffer };

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
  /** false: answers may hold what OpenAI's do not (`content_blocks`, the provider's own finish reasons). */
  strict: boolean;
  /** By URL, every one that `resourcesOf` named. */
  resources: ReadonlyMap<string, Resource>;
  /** Headers of the client that the provider's `clientHeaders` admit. */
  headers: Readonly<Record<string, string>>;
};

/** `headers` is flat (name, value, name, value), as the wire has it. `path` is origin-form: path and query. */
export type OutboundRequest = {
  method: 'GET' | 'POST' | 'DELETE';
  origin: string;
  path: string;
  headers: string[];
  /** A stream is sent as it comes, once: such a request is never repeated. */
  body: Uint8Array | Readable | null;
  /**
   * Names of the client's parameters that this provider cannot take and that were left out, as `param` names them
   * (`logit_bias`, `messages[2].name`). The core tells the client, or refuses the call where the caller asked for that.
   */
  dropped?: readonly string[];
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
  /** Bytes go through in both directions, but for what the provider writes otherwise than OpenAI in places. */
  readonly passThrough?: true;
  /**
   * Throws GatewayError invalid_request with the param at fault for what has no meaning there at all (a message of an
   * unknown role), and `unsupported_parameter` where leaving it out would change the answer's shape (`n` above 1).
   */
  encode(call: Call, upstream: Upstream): OutboundRequest;
  /**
   * Whether the call wants a JSON object of any shape from a model that has no mode for it. `encode` then asks for one in
   * words; the core calls without a stream, and takes no answer that is finished and none. Absent: never.
   */
  asksForJsonInWords?(call: Call): boolean;
  /** URLs (images of messages) whose bytes the request must hold, because the provider fetches none itself. */
  resourcesOf?(call: Call): readonly string[];
  /**
   * A successful JSON body to OpenAI's shape; the same object where it already is, so that its bytes go out untouched, as
   * they do when this is absent. Throws GatewayError provider_failed or provider_timeout (`upstream_error`: may be tried
   * again) for an answer that is a failure; need not scrub.
   */
  decode?(body: unknown, call: Call): unknown;
  /** One decoder a stream. Absent: each payload passes unchanged and `[DONE]` ends the stream. */
  openStream?(call: Call): StreamDecoder;
  /** Absent: server-sent events. `eventBytesMax` bounds what may be kept of an unfinished event. */
  openFraming?(onEvent: (event: StreamEvent) => void, eventBytesMax: number): Framing;
  /** Never throws: an unreadable body still becomes an error that says what is known. Need not scrub. */
  decodeError(status: number, body: string): ProviderError;
}

/** Areas of OpenAI's interface that are forwarded whole, with nothing read but the model's name. */
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
export type RelayArea = (typeof relayAreas)[number];

/** One call of such an area. `path` is that of OpenAI's interface below `/v1`, with its query: `/audio/speech`. */
export type RelayCall = {
  area: RelayArea;
  method: 'GET' | 'POST' | 'DELETE';
  path: string;
  contentType: string | null;
  /** Of a body that is a stream; null when the client did not say. */
  contentLength: number | null;
  accept: string | null;
  body: Uint8Array | Readable | null;
  /** Of a JSON body. */
  model: string | null;
  headers: Readonly<Record<string, string>>;
};

/** The areas that a provider has in OpenAI's own shape, and where they are. */
export type Relay = {
  areas: readonly RelayArea[];
  encode(call: RelayCall, upstream: Upstream): OutboundRequest;
};

/**
 * Where a request of OpenAI's own dialect goes at a provider and what authorises it. `path` begins below the version
 * segment (`/fine_tuning/jobs?limit=20`); `headers` is flat.
 */
export type Addressing = (path: string, upstream: Upstream) => { origin: string; path: string; headers: string[] };

/** What `authorize` may use of the core. */
export type AuthorizeTools = {
  /** Epoch milliseconds. */
  now: number;
  /** One call through the same egress, answer bounded to 1 MiB; throws GatewayError. Nothing but tokens is fetched so. */
  fetch: (request: OutboundRequest) => Promise<{ status: number; body: Buffer }>;
  /** Text that no error or log of this call may repeat: a token that was fetched. */
  keepSecret: (text: string) => void;
};

/** All that the platform knows of a provider. An absent operation is refused as `unsupported_operation` before any call. */
export type Provider = {
  readonly id: string;
  /** Other names of it, which clients of Portkey's API send. */
  readonly aliases?: readonly string[];
  /** Its own settings, by name; those that the address is made of are required. */
  readonly settings?: SettingFields;
  /** Where it is, with the names of settings in braces, for people to read. Absent: the caller must name a host. */
  readonly address?: string;
  /**
   * The address, made of the settings; null where there is none or one of its settings is missing. Throws GatewayError
   * invalid_request for a setting that no address can hold.
   */
  readonly baseUrlOf: (settings: Settings) => URL | null;
  /** false: a server that may ask for no key (self-hosted, the simulator). */
  readonly needsCredential: boolean;
  /**
   * Request headers that hold its credential beside `authorization`; no client's header of that name goes out. A name that
   * ends with a hyphen stands for all that begin with it. Lower case.
   */
  readonly credentialHeaders?: readonly string[];
  /** Request headers of a client that may reach this provider; all others stay here. Lower case. */
  readonly clientHeaders: readonly string[];
  /** Response headers that hold the provider's id of the call, in order of preference. Lower case. */
  readonly requestIdHeaders: readonly string[];
  readonly operations: Readonly<Partial<Record<Operation, Translation>>>;
  /** Absent: none of the pass-through areas. */
  readonly relay?: Relay;
  /** What a pass-through changes all the same, for people to read (docs/providers.md). */
  readonly differences?: readonly string[];
  /** What else its users should know, in whole sentences (docs/providers.md). */
  readonly notes?: readonly string[];
  /** How its files and fine-tuning jobs are reached; absent: it trains nothing, or not in OpenAI's dialect. */
  readonly fineTuning?: Addressing;
  /**
   * Signs a request, or fetches a token for it, just before each attempt; adds headers in place. Absent: `encode` has put
   * the key in. Throws GatewayError: invalid_request for a credential that cannot be used, provider_failed otherwise.
   */
  readonly authorize?: (request: OutboundRequest, upstream: Upstream, tools: AuthorizeTools) => Promise<void>;
};

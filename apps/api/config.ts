import { z } from 'zod';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { parseNetworks } from '#libs/http/client-address.ts';
import type { CorsOrigins } from '#libs/http/cors.ts';
import { email } from '#libs/contracts/people.ts';
import { platformFields } from '../platform/config.ts';

/** Addresses and networks, separated by commas. */
const networks = () =>
  z
    .string()
    .default('')
    .transform((text, context) => {
      try {
        return parseNetworks(text);
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        context.addIssue(error.message);
        return z.NEVER;
      }
    });

// URL does not return the origins of other schemes (`tauri://localhost`, browser extensions).
const isOrigin = (text: string): boolean =>
  /^[a-z][a-z0-9+.-]*:\/\/[^\s/?#]+$/.test(text) && (!/^https?:/.test(text) || URL.parse(text)?.origin === text);

/** `https://app.example,http://localhost:3000`, in the form in which browsers send `Origin`; or `*`. */
const corsOrigins = () =>
  z.string().transform((text, context): CorsOrigins => {
    if (text.trim() === '*') return 'any';
    const origins = text.split(',').map((origin) => origin.trim());
    if (origins.every(isOrigin)) return new Set(origins);
    context.addIssue('must be * or a list of origins like https://app.example,http://localhost:3000, without paths');
    return z.NEVER;
  });

/** Configuration of the API process. Read once, in main.ts. */
export const ApiConfig = z.object({
  ...platformFields,
  PORT: wholeNumber(8787, { min: 0, max: 65_535 }),
  HOST: z.string().default('127.0.0.1'),
  /**
   * A separate port for /metrics and the details of /health/ready. PORT then has no /metrics, and its readiness is only a
   * status. Absent: PORT serves everything. 0 picks a free port.
   */
  SLUICE_OPERATIONS_PORT: z.coerce.number().int().min(0).max(65_535).optional(),
  /** Absent: HOST. */
  SLUICE_OPERATIONS_HOST: z.string().optional(),
  /** An admin key that is valid from the first start; npm start generates one. Without any key nobody can call the API. */
  SLUICE_BOOTSTRAP_KEY: z.string().optional(),
  /** The e-mail address of the user who owns the organisation, created at the first start. */
  SLUICE_OWNER_EMAIL: email().default('owner@localhost'),
  /** How long an invite can be accepted: a week, so that it outlasts a short absence. */
  SLUICE_INVITE_TTL: duration('7d', { minMs: 60_000, maxMs: 90 * 86_400_000 }),
  /**
   * Where clients reach the API: the address of the proxy in front of it, also with a path. Links of invites and exports
   * begin with it. Absent: HOST and PORT.
   */
  SLUICE_PUBLIC_URL: z
    .url({ protocol: /^https?$/ })
    .refine((url) => !/[?#]/.test(url) && !/\/v1\/?$/.test(url), 'must not have a query or a fragment, or end in /v1')
    .transform((url) => url.replace(/\/+$/, ''))
    .optional(),
  /** The page that an invite links to, which sends the token on. Absent: the API's own page. */
  SLUICE_INVITE_URL: z.url({ protocol: /^https?$/ }).optional(),
  /** Users of the organisation. Each process has them in memory, about 300 bytes each. */
  SLUICE_USERS_MAX: wholeNumber(10_000, { min: 1, max: 1_000_000 }),
  /** Invites that are pending at the same time. */
  SLUICE_INVITES_MAX: wholeNumber(1_000, { min: 1, max: 100_000 }),
  /** Members of one workspace. Deleting it ends all memberships in one transaction. */
  SLUICE_MEMBERS_MAX: wholeNumber(1_000, { min: 1, max: 10_000 }),
  /** Keeps a virtual key `simulator` that points to this address in the first workspace, and gives one to each new workspace; set by npm start and docker-compose. */
  SLUICE_SIMULATOR_URL: z.url({ protocol: /^https?$/ }).optional(),
  /** The JSON body of a live request: a conversation with images. */
  SLUICE_BODY_MAX: byteSize('10MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /** The JSON of one version of a prompt or partial. Those in use are in the memory of every process. */
  SLUICE_PROMPT_MAX: byteSize('256KiB', { minBytes: 1_024, maxBytes: 1_048_576 }),
  /** Prompts of a workspace, and as many partials, collections and labels. */
  SLUICE_PROMPTS_MAX: wholeNumber(2_000, { min: 1, max: 100_000 }),
  /**
   * Records of one kind in a workspace: configs, guardrails, virtual keys, integrations or providers. All of them are in the
   * memory of every process, and more than this is rarely made by hand.
   */
  SLUICE_RECORDS_MAX: wholeNumber(1_000, { min: 1, max: 1_000_000 }),
  /** API keys of a workspace. They are in memory too, but small, and some installations have one for each user. */
  SLUICE_API_KEYS_MAX: wholeNumber(10_000, { min: 1, max: 1_000_000 }),
  /**
   * Memory that the records of one workspace take up in every process: 10,000 API keys take up about 30 MiB. Records of all
   * workspaces together get half of SLUICE_MEMORY_MAX; if they need more, the largest workspace is left out.
   */
  SLUICE_RECORDS_MEMORY_MAX: byteSize('48MiB', { minBytes: 65_536, maxBytes: 1_099_511_627_776 }),
  /**
   * How far a form is read to find its part `model`, if nothing else says where it goes. Some SDKs send the file first, and
   * OpenAI accepts audio of 25 MB.
   */
  SLUICE_FORM_READ_MAX: byteSize('32MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /** An uploaded file. OpenAI allows 512 MB; here uploads are streamed, so larger ones cost no memory. */
  SLUICE_UPLOAD_MAX: byteSize('4GiB', { minBytes: 1_024, maxBytes: 1_099_511_627_776 }),
  /** All files of one workspace. High because it may be the only one; with several, set it below the size of the disk. */
  SLUICE_STORED_MAX: byteSize('1024GiB', { minBytes: 1_048_576, maxBytes: Number.MAX_SAFE_INTEGER }),
  /**
   * The lowest rate at which a form must arrive, in bytes per second over half a minute: files, and relayed audio and images. A
   * JSON body has 30 s in total.
   */
  SLUICE_UPLOAD_RATE_MIN: byteSize('1KiB', { minBytes: 0, maxBytes: 1_048_576 }),
  /** A client that reads no 256 KiB of its answer, or not its rest, for this long is disconnected: the answer holds memory. */
  SLUICE_CLIENT_STALL_TIMEOUT: duration('60s', { minMs: 100, maxMs: 3_600_000 }),
  /** The longest that one analytics query may take; most take milliseconds, those that read every call of a month do not. */
  SLUICE_ANALYTICS_TIMEOUT: duration('10s', { minMs: 10, maxMs: 25_000 }),
  /** Analytics queries and searches of this process that run at once, half of them of one workspace: live calls need connections too. */
  SLUICE_ANALYTICS_QUERIES: wholeNumber(4, { min: 1, max: 100 }),
  /** Those of one workspace that wait. A dashboard asks for twenty graphs at once. */
  SLUICE_ANALYTICS_WAITING: wholeNumber(64, { min: 0, max: 10_000 }),
  /** Exports of the request log in progress in one workspace; more are refused, so that no workspace takes all workers. */
  SLUICE_EXPORTS_RUNNING_MAX: wholeNumber(2, { min: 1, max: 1_000 }),
  /** How long the download link of an export works. It needs no API key, so it should not last long. */
  SLUICE_EXPORT_LINK_TTL: duration('15m', { minMs: 1_000, maxMs: 7 * 86_400_000 }),
  /** How long a browser stays signed in to the console: a working day. */
  SLUICE_SESSION_TTL: duration('12h', { minMs: 1_000, maxMs: 30 * 86_400_000 }),
  /** Streams of events (GET /v1/events/stream) that this process has open at once; each console has one. */
  SLUICE_EVENT_STREAMS_MAX: wholeNumber(1_000, { min: 1, max: 100_000 }),
  /** Those of one workspace, so that none takes all of them. */
  SLUICE_EVENT_STREAMS_OF_WORKSPACE: wholeNumber(100, { min: 1, max: 100_000 }),
  /** How long recorded bodies of calls are kept, unless their workspace says otherwise. */
  SLUICE_RECORDING_RETENTION: duration('30d', { minMs: 60_000, maxMs: 3_650 * 86_400_000 }),
  /** Recorded bodies of one workspace, compressed. Beyond it none is recorded until older ones have expired. */
  SLUICE_RECORDING_MAX: byteSize('10GiB', { minBytes: 0, maxBytes: 1_125_899_906_842_624 }),
  /** Web pages of these origins may call the API; `*` allows all. None by default: everyone can read the key in a page. */
  SLUICE_CORS_ORIGINS: corsOrigins().optional(),
  /**
   * Addresses and networks of proxies in front of the API, separated by commas. Only their entries in X-Forwarded-For are
   * trusted. None by default, because any client can send that header with someone else's address.
   */
  SLUICE_TRUSTED_PROXIES: networks(),
  /** Policies of each kind in a workspace: every call of it is compared with all of them. */
  SLUICE_POLICIES_MAX: wholeNumber(100, { min: 1, max: 10_000 }),
  /**
   * How many requests with a wrong key an address may send per minute before they get 429 without being checked; valid keys
   * still work. A person mistypes a few times; a script with a revoked key calls every second. 0: no limit.
   */
  SLUICE_WRONG_KEYS_PER_MINUTE: wholeNumber(60, { min: 0, max: 1_000_000 }),
  /**
   * Signs people in by the JWTs of an identity provider: the address of its public keys (its JSON Web Key Set). With it,
   * SLUICE_JWT_ISSUER and SLUICE_JWT_AUDIENCE are required, or the tokens of other customers of the provider would do.
   */
  SLUICE_JWKS_URL: z.url({ protocol: /^https?$/, error: 'must be an http:// or https:// URL' }).optional(),
  /** `iss` of the tokens, letter by letter. */
  SLUICE_JWT_ISSUER: z.string().optional(),
  /** `aud` of the tokens: one of these, separated by commas. */
  SLUICE_JWT_AUDIENCE: z
    .string()
    .transform((text) => text.split(',').map((audience) => audience.trim()))
    .optional(),
  /** By how much the clocks of the identity provider and the database may differ. */
  SLUICE_JWT_CLOCK_TOLERANCE: duration('30s', { minMs: 0, maxMs: 300_000 }),
  /** Who the user is: the subject, an id of a user here, or an e-mail address (`email`) that the provider has verified. */
  SLUICE_JWT_CLAIM_USER: z.string().default('sub'),
  /** Id or slug. Without the claim: the only workspace of the user. */
  SLUICE_JWT_CLAIM_WORKSPACE: z.string().default('workspace'),
  /** admin, manager or member, if the token is to allow less than the user's role does. */
  SLUICE_JWT_CLAIM_ROLE: z.string().default('role'),
  /** Likewise: scopes as API keys have them. */
  SLUICE_JWT_CLAIM_SCOPES: z.string().default('scopes'),
  /** Of a user who is made on first sign-in. */
  SLUICE_JWT_CLAIM_EMAIL: z.string().default('email'),
  /**
   * Whether users are found by addresses without the claim `email_verified`. Off, because at some identity providers anybody can
   * enter any address.
   */
  SLUICE_JWT_TRUST_EMAIL: z.stringbool().default(false),
  /** Whether somebody with a valid token becomes a user. Off, because it admits everyone whom the provider knows. */
  SLUICE_JWT_CREATE_USERS: z.stringbool().default(false),
  /**
   * How long new requests are still served after SIGTERM, while /health/ready is already 503: long enough for a proxy to
   * notice. That is three probes at the usual interval of HAProxy or Traefik, and one of Kubernetes.
   */
  SLUICE_STOP_DELAY: duration('15s', { minMs: 0, maxMs: 600_000 }),
  /** How long running requests may take to finish after that. */
  SLUICE_STOP_DEADLINE: duration('25s', { minMs: 100, maxMs: 3_600_000 }),
});
export type ApiConfig = z.output<typeof ApiConfig>;

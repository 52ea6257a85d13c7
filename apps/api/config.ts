import { availableParallelism } from 'node:os';
import { z } from 'zod';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { parseNetworks } from '#libs/http/client-address.ts';
import type { CorsOrigins } from '#libs/http/cors.ts';
import { email } from '#libs/contracts/people/people.ts';
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
    context.addIssue('must be * or a list of origins such as https://app.example,http://localhost:3000, without paths');
    return z.NEVER;
  });

const processesMax = 64;

/** A number of processes, or `auto` for one per core, at most 8. */
const processCount = () =>
  z
    .string()
    .default('1')
    .transform((text, context) => {
      if (text.trim() === 'auto') return Math.min(8, availableParallelism());
      const count = /^\d+$/.test(text.trim()) ? Number(text) : 0;
      if (count >= 1 && count <= processesMax) return count;
      context.addIssue(`must be auto or a whole number from 1 to ${processesMax}`);
      return z.NEVER;
    })
    .meta({ range: `\`auto\`, 1 to ${processesMax}` });

/** Configuration of the API process. Read once, in main.ts. */
export const ApiConfig = z.object({
  ...platformFields,
  PORT: wholeNumber(8787, { min: 0, max: 65_535 }).describe('Port of the API. 0 picks a free one.'),
  HOST: z.string().default('127.0.0.1').describe('Address that the API listens on.'),
  SLUICE_API_PROCESSES: processCount().describe(
    'API processes that share `PORT`; `auto` is one per core, at most 8. They divide bounds such as `SLUICE_MEMORY_MAX` among ' +
      'them. See [sizing](sizing.md#several-api-processes).',
  ),
  SLUICE_PUBLIC_URL: z
    .url({ protocol: /^https?$/ })
    .refine((url) => !/[?#]/.test(url) && !/\/v1\/?$/.test(url), 'must not have a query or a fragment, or end in /v1')
    .transform((url) => url.replace(/\/+$/, ''))
    .optional()
    .meta({ fallback: '`HOST` and `PORT`' })
    .describe(
      'Where clients reach the API, such as `https://llm.example.com`. Links in invites and exports start with it.',
    ),
  SLUICE_BOOTSTRAP_KEY: z
    .string()
    .optional()
    .meta({ fallback: 'none; `npm start` generates one' })
    .describe(
      'An admin key that is valid from the first start: 16 to 512 printable ASCII characters. Without any key, no one can call the API.',
    ),
  SLUICE_OWNER_EMAIL: email()
    .default('owner@localhost')
    .describe('E-mail address of the first user, who owns the organisation.'),
  SLUICE_SIMULATOR_URL: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({ fallback: 'none; set by `npm start`' })
    .describe('Address of a simulator. Every workspace gets a virtual key for it.'),
  SLUICE_OPERATIONS_PORT: z.coerce
    .number()
    .int()
    .min(0)
    .max(65_535)
    .optional()
    .meta({ range: '0 to 65535' })
    .describe(
      'A separate port for `/metrics` and the details of `/health/ready`. `PORT` then serves no metrics and answers ' +
        'readiness with a status only. 0 picks a free port. `npm start` ignores it.',
    ),
  SLUICE_OPERATIONS_HOST: z
    .string()
    .optional()
    .meta({ fallback: '`HOST`' })
    .describe('Address that this port listens on.'),
  SLUICE_TRUSTED_PROXIES: networks().describe(
    'Addresses and networks of proxies in front of the API, separated by commas, whose `X-Forwarded-For` is trusted. Any ' +
      'other client could send a false address.',
  ),
  SLUICE_CORS_ORIGINS: corsOrigins()
    .optional()
    .describe(
      'Web pages that can call the API: `*`, or origins like `https://app.example`, separated by commas. Everyone who opens ' +
        'such a page can read the key in it.',
    ),
  SLUICE_STOP_DELAY: duration('15s', { minMs: 0, maxMs: 600_000 })
    .meta({ fallback: '15s (`npm start`: 0ms)' })
    .describe(
      'How long new requests are still served after SIGTERM, while `/health/ready` already returns 503. A proxy needs this ' +
        'time to notice: three probes at the usual interval of HAProxy or Traefik, one of Kubernetes.',
    ),
  SLUICE_STOP_DEADLINE: duration('25s', { minMs: 100, maxMs: 3_600_000 }).describe(
    'How long running requests can take to finish after that.',
  ),
  SLUICE_BODY_MAX: byteSize('10MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }).describe('Largest JSON body.'),
  SLUICE_FORM_READ_MAX: byteSize('32MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }).describe(
    'How far a form is read to find its part `model` if no header names the virtual key. Some SDKs send the file first.',
  ),
  SLUICE_UPLOAD_MAX: byteSize('4GiB', { minBytes: 1_024, maxBytes: 1_099_511_627_776 }).describe(
    'Largest uploaded file. Uploads are streamed, so large ones cost no memory.',
  ),
  SLUICE_STORED_MAX: byteSize('1024GiB', { minBytes: 1_048_576, maxBytes: 1_125_899_906_842_624 }).describe(
    'All files of one workspace. Uploads beyond that get 429. With several workspaces, set it below the size of the disk.',
  ),
  SLUICE_UPLOAD_RATE_MIN: byteSize('1KiB', { minBytes: 0, maxBytes: 1_048_576 }).describe(
    'Slowest upload, in bytes per second, measured over half a minute. A JSON body has 30 s in total.',
  ),
  SLUICE_CLIENT_STALL_TIMEOUT: duration('60s', { minMs: 100, maxMs: 3_600_000 }).describe(
    'How long a client can stop reading its answer before it is disconnected.',
  ),
  SLUICE_WRONG_KEYS_PER_MINUTE: wholeNumber(60, { min: 0, max: 1_000_000 }).describe(
    'Requests with a wrong key that one address (IPv6: one /64) can send per minute before it gets 429. Valid keys still ' +
      'work. 0 disables the limit.',
  ),
  SLUICE_RECORDS_MAX: wholeNumber(1_000, { min: 1, max: 1_000_000 }).describe(
    'Records of each kind in a workspace: configs, guardrails, virtual keys, integrations and providers. Every process ' +
      'holds all of them in memory.',
  ),
  SLUICE_API_KEYS_MAX: wholeNumber(10_000, { min: 1, max: 1_000_000 }).describe('API keys of a workspace.'),
  SLUICE_RECORDS_MEMORY_MAX: byteSize('48MiB', { minBytes: 65_536, maxBytes: 1_099_511_627_776 }).describe(
    'Memory that the records of one workspace take in every process; 10,000 API keys take about 30 MiB. The records of all ' +
      'workspaces together get half of `SLUICE_MEMORY_MAX`.',
  ),
  SLUICE_PROMPT_MAX: byteSize('256KiB', { minBytes: 1_024, maxBytes: 1_048_576 }).describe(
    'JSON of one version of a prompt or partial.',
  ),
  SLUICE_PROMPTS_MAX: wholeNumber(2_000, { min: 1, max: 100_000 }).describe(
    'Prompts of a workspace; the same limit applies to partials, collections and labels.',
  ),
  SLUICE_POLICIES_MAX: wholeNumber(100, { min: 1, max: 10_000 }).describe(
    'Policies of each kind in a workspace. Every call is checked against all of them.',
  ),
  SLUICE_USERS_MAX: wholeNumber(10_000, { min: 1, max: 1_000_000 }).describe(
    'Users of the organisation. Each takes about 300 bytes of memory in every process.',
  ),
  SLUICE_MEMBERS_MAX: wholeNumber(1_000, { min: 1, max: 10_000 }).describe('Members of one workspace.'),
  SLUICE_INVITES_MAX: wholeNumber(1_000, { min: 1, max: 100_000 }).describe('Pending invites.'),
  SLUICE_INVITE_TTL: duration('7d', { minMs: 60_000, maxMs: 90 * 86_400_000 }).describe(
    'How long an invite can be accepted.',
  ),
  SLUICE_INVITE_URL: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({ fallback: 'a page of the console' })
    .describe('Your own page for invites. It receives the token as `?token=…`.'),
  SLUICE_SESSION_TTL: duration('12h', { minMs: 1_000, maxMs: 30 * 86_400_000 }).describe(
    'How long a browser stays signed in to the console.',
  ),
  SLUICE_EVENT_STREAMS_MAX: wholeNumber(1_000, { min: 1, max: 100_000 }).describe(
    'Event streams (`GET /v1/events/stream`) open in one process. Each console uses one.',
  ),
  SLUICE_EVENT_STREAMS_OF_WORKSPACE: wholeNumber(100, { min: 1, max: 100_000 }).describe(
    'Event streams of one workspace, per process.',
  ),
  SLUICE_RECORDING_RETENTION: duration('30d', { minMs: 60_000, maxMs: 3_650 * 86_400_000 }).describe(
    'How long recorded bodies of calls are kept, unless their workspace sets another time.',
  ),
  SLUICE_RECORDING_MAX: byteSize('10GiB', { minBytes: 0, maxBytes: 1_125_899_906_842_624 }).describe(
    'Recorded bodies of one workspace, compressed. Beyond that, recording stops until older bodies expire.',
  ),
  SLUICE_ANALYTICS_TIMEOUT: duration('10s', { minMs: 10, maxMs: 25_000 }).describe('Longest analytics query.'),
  SLUICE_ANALYTICS_QUERIES: wholeNumber(4, { min: 1, max: 100 }).describe(
    'Analytics queries and log searches that run at the same time in one process. One workspace gets half of them.',
  ),
  SLUICE_ANALYTICS_WAITING: wholeNumber(64, { min: 0, max: 10_000 }).describe(
    'Queries of one workspace that wait. A dashboard sends about twenty.',
  ),
  SLUICE_EXPORTS_RUNNING_MAX: wholeNumber(2, { min: 1, max: 1_000 }).describe(
    'Exports of the request log in progress in one workspace. More are rejected.',
  ),
  SLUICE_EXPORT_LINK_TTL: duration('15m', { minMs: 1_000, maxMs: 7 * 86_400_000 }).describe(
    'How long the download link of an export works. It needs no API key.',
  ),
  SLUICE_JWKS_URL: z
    .url({ protocol: /^https?$/, error: 'must be an http:// or https:// URL' })
    .optional()
    .describe(
      'JSON Web Key Set of your identity provider. Turns on sign-in by token; issuer and audience are then required. See ' +
        '[sign-in](sign-in.md).',
    ),
  SLUICE_JWT_ISSUER: z.string().optional().describe('`iss` of the tokens, exactly.'),
  SLUICE_JWT_AUDIENCE: z
    .string()
    .transform((text) => text.split(',').map((audience) => audience.trim()))
    .optional()
    .describe('`aud` of the tokens: one of these, separated by commas.'),
  SLUICE_JWT_CLOCK_TOLERANCE: duration('30s', { minMs: 0, maxMs: 300_000 }).describe(
    'Tolerated difference between the clocks of the identity provider and the database.',
  ),
  SLUICE_JWT_CLAIM_USER: z
    .string()
    .default('sub')
    .describe('Claim that identifies the user: a subject, a user ID, or `email`.'),
  SLUICE_JWT_CLAIM_WORKSPACE: z
    .string()
    .default('workspace')
    .describe("Claim with the workspace's ID or slug. Without the claim, the user's only workspace is used."),
  SLUICE_JWT_CLAIM_ROLE: z
    .string()
    .default('role')
    .describe("Claim that restricts the token to `admin`, `manager` or `member`; it cannot exceed the user's role."),
  SLUICE_JWT_CLAIM_SCOPES: z.string().default('scopes').describe('Claim that restricts the token to these scopes.'),
  SLUICE_JWT_CLAIM_EMAIL: z
    .string()
    .default('email')
    .describe('Claim with the e-mail address of a user who is created on first sign-in.'),
  SLUICE_JWT_TRUST_EMAIL: z
    .stringbool()
    .default(false)
    .meta({ fallback: 'false' })
    .describe(
      'Whether addresses in tokens without `email_verified` identify users. At some identity providers anyone can enter ' +
        'any address.',
    ),
  SLUICE_JWT_CREATE_USERS: z
    .stringbool()
    .default(false)
    .meta({ fallback: 'false' })
    .describe('Whether a valid token of an unknown person creates a user. It admits everyone the provider knows.'),
});
export type ApiConfig = z.output<typeof ApiConfig>;

import { availableParallelism } from 'node:os';
import path from 'node:path';
import { z } from 'zod';
import { defaultMemoryBytesMax } from '#libs/kernel/memory-budget.ts';
import { byteSize, ConfigurationError, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { Secret } from '#libs/kernel/secret.ts';
import type { AlertWebhook } from '#libs/policies/deliver-alert.ts';

/** Origins like `https://vault.example:8200`, separated by commas. */
const origins = () =>
  z
    .string()
    .default('')
    .transform((text, context): ReadonlySet<string> => {
      const parts = text.split(/[\s,]+/).filter((part) => part !== '');
      if (parts.every((part) => /^https?:/.test(part) && URL.parse(part)?.origin === part)) return new Set(parts);
      context.addIssue('must be a list of origins like https://vault.example:8200, without paths');
      return z.NEVER;
    });

/** Variables that both the API and the worker read. Each app adds its own in its config.ts. */
export const platformFields = {
  /** A Postgres database of Sluice's own; `npm start` sets it to the embedded server. */
  DATABASE_URL: z
    .string({ error: 'is required: postgres://user:password@host:port/database' })
    .regex(/^postgres(ql)?:\/\//, 'must be a postgres:// URL'),
  /** Parent of the blob folder if SLUICE_BLOBS is absent. */
  SLUICE_DATA_DIR: z.string().default('.data'),
  /** `file:` and a folder that all api and worker processes share. */
  SLUICE_BLOBS: z
    .string()
    .regex(/^file:/, 'must be file: and a folder, like file:/var/lib/sluice/blobs')
    .optional(),
  /** 32 bytes, base64 or hex; the new and the old key while it is replaced. If it is lost, provider secrets are lost too. */
  SLUICE_MASTER_KEY: z.string({ error: 'is required: 32 random bytes as base64 or hex (openssl rand -base64 32)' }),
  /** Private addresses that calls may reach: `host:port` or CIDR entries, separated by commas. */
  SLUICE_EGRESS_ALLOW: z.string().default(''),
  // OpenTelemetry's own names (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
  OTEL_SDK_DISABLED: z.string().optional(),
  OTEL_SERVICE_NAME: z.string().optional(),
  /** The collector's address, for OTLP over HTTP; absent: nothing is exported. */
  OTEL_EXPORTER_OTLP_ENDPOINT: z
    .string()
    .regex(/^https?:/, 'must be an http:// or https:// URL')
    .optional(),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: z
    .string()
    .regex(/^https?:/, 'must be an http:// or https:// URL')
    .optional(),
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: z
    .string()
    .regex(/^https?:/, 'must be an http:// or https:// URL')
    .optional(),
  OTEL_TRACES_EXPORTER: z.enum(['otlp', 'none']).optional(),
  OTEL_METRICS_EXPORTER: z.enum(['otlp', 'none']).optional(),
  OTEL_TRACES_SAMPLER: z
    .enum([
      'always_on',
      'always_off',
      'traceidratio',
      'parentbased_always_on',
      'parentbased_always_off',
      'parentbased_traceidratio',
    ])
    .default('parentbased_always_on'),
  OTEL_TRACES_SAMPLER_ARG: z.coerce.number().min(0).max(1).optional(),
  SLUICE_LOG_LEVEL: z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']).default('info'),
  /** Ten short transactions at a time saturate a small Postgres; more would only queue inside it. */
  SLUICE_DB_POOL_MAX: wholeNumber(10, { min: 2, max: 200 }),
  /**
   * How long all steps of a start together wait for an unavailable database. A killed Postgres first replays its log, which
   * takes up to minutes. After that, an exited process is easier to notice than one that waits.
   */
  SLUICE_DATABASE_WAIT: duration('5m', { minMs: 0, maxMs: 86_400_000 }),
  /**
   * How long the last known keys are used while the database does not answer; after that, live calls get 503. Long enough for
   * a failover or an operator. A key that is revoked in the meantime stays valid for that long.
   */
  SLUICE_KEYS_STALE_AFTER: duration('15m', { minMs: 1_000, maxMs: 86_400_000 }),
  /** Connecting to a provider is either quick or does not work. */
  SLUICE_CONNECT_TIMEOUT: duration('10s', { minMs: 100, maxMs: 120_000 }),
  /** Until the first byte of an answer: a long reasoning answer that is not streamed takes minutes. */
  SLUICE_HEADERS_TIMEOUT: duration('10m', { minMs: 100, maxMs: 3_600_000 }),
  /** Between two events of a stream, or two pieces of a body. */
  SLUICE_IDLE_TIMEOUT: duration('2m', { minMs: 100, maxMs: 3_600_000 }),
  /** From the start of a call to its last byte. */
  SLUICE_TOTAL_TIMEOUT: duration('30m', { minMs: 100, maxMs: 86_400_000 }),
  /** Calls in flight with one credential, per process. A thousand streams at once bring an API to 280 MB. */
  SLUICE_CALLS_PER_CREDENTIAL: wholeNumber(1_024, { min: 1, max: 10_000 }),
  /**
   * Calls in flight with all providers, per process, each with its own socket. A workspace gets at most three times as many as
   * are free, so a single workspace gets three quarters of them: three credentials at their limit.
   */
  SLUICE_CONNECTIONS: wholeNumber(4_096, { min: 4, max: 100_000 }),
  /**
   * Live calls that wait for one credential: as many as may be in flight with it. Further ones are refused at once (503),
   * because a client that waits longer has often disconnected by the time it would be served.
   */
  SLUICE_PROVIDER_QUEUE: wholeNumber(1_024, { min: 0, max: 100_000 }),
  /** How long such a call waits. */
  SLUICE_PROVIDER_QUEUE_WAIT: duration('10s', { minMs: 1, maxMs: 600_000 }),
  /** Response cache in the memory of one process: about ten thousand typical answers. */
  SLUICE_CACHE_MEMORY: byteSize('64MiB', { minBytes: 65_536, maxBytes: 64 * 1_073_741_824 }),
  /**
   * Threads of one process for work that would block other calls: this many each for guardrails and conditions, for large
   * bodies and for large answers. At least two, because one workspace never gets all of them.
   */
  SLUICE_CHECK_THREADS: wholeNumber(Math.max(2, availableParallelism() - 1), { min: 1, max: 64 }),
  /**
   * Request-log rows that may wait in memory, if the database is unavailable and the disk has no room for them. Beyond that,
   * new calls are refused rather than not logged.
   */
  SLUICE_REQUEST_LOG_QUEUE: wholeNumber(20_000, { min: 100, max: 1_000_000 }),
  /**
   * Request-log rows that wait on disk while the database is unavailable, about half a kilobyte each: 15 minutes at 1,000 calls
   * per second, which is as long as live calls continue without it. 0: none.
   */
  SLUICE_REQUEST_LOG_DISK: byteSize('512MiB', { minBytes: 0, maxBytes: 1_099_511_627_776 }),
  /**
   * Memory of one process for bodies, parsed values, answers, lines and results. When it is full, new calls get 503, answers
   * wait in their sockets, and lines wait to be called.
   */
  SLUICE_MEMORY_MAX: byteSize(String(defaultMemoryBytesMax()), { minBytes: 4_194_304, maxBytes: 1_099_511_627_776 }),
  /**
   * Bytes per second of one workspace's JSON bodies above 256 KiB that one API process reads, and the same for large answers of
   * its providers: 64 MiB take a fifth of the event loop. A worker has no such limit.
   */
  SLUICE_BODY_RATE_MAX: byteSize('64MiB', { minBytes: 1_048_576, maxBytes: 1_099_511_627_776 }),
  /** The largest answer that is not streamed. */
  SLUICE_RESPONSE_MAX: byteSize('64MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /** The texts of one rendered prompt: as large as any model reads, and rendered in some 20 ms at most. */
  SLUICE_PROMPT_OUTPUT_MAX: byteSize('1MiB', { minBytes: 1_024, maxBytes: 67_108_864 }),
  /** Compiled versions of prompts and partials that a process keeps, by the size of their JSON. */
  SLUICE_PROMPT_CACHE: byteSize('32MiB', { minBytes: 65_536, maxBytes: 4_294_967_296 }),
  /** How long a secret of a secret manager is used before it has been fetched again: rotated keys overlap for longer. */
  SLUICE_SECRETS_TTL: duration('5m', { minMs: 1_000, maxMs: 86_400_000 }),
  /** How much longer while its manager does not answer, or refuses: long enough for an operator to repair it. */
  SLUICE_SECRETS_STALE: duration('1h', { minMs: 0, maxMs: 7 * 86_400_000 }),
  /** The folder of secrets in files, such as a mounted secret of Kubernetes. Absent: there are none. */
  SLUICE_SECRETS_FOLDER: z.string().optional(),
  /** The token by which this process signs in to Vault in Kubernetes; this is where Kubernetes puts it. */
  SLUICE_SECRETS_KUBERNETES_TOKEN: z.string().default('/var/run/secrets/kubernetes.io/serviceaccount/token'),
  /** The Vaults that this token may be sent to, separated by commas. Any other server could use it as this process. */
  SLUICE_SECRETS_KUBERNETES_VAULTS: origins(),
  /** When unfinished lines of a batch expire, counted from its creation. For both windows; shorter in tests. */
  SLUICE_BATCH_EXPIRY: duration('24h', { minMs: 1_000, maxMs: 30 * 86_400_000 }),
  /** Open batches of one workspace: more than anyone needs, and few enough to count them at each create. */
  SLUICE_OPEN_BATCHES_MAX: wholeNumber(10_000, { min: 1, max: 1_000_000 }),
  /** Lines of one batch. Absent: no limit. */
  SLUICE_BATCH_LINES_MAX: z.coerce.number().int().min(1).optional(),
  /** Lines without a result in the open batches of one workspace. */
  SLUICE_QUEUED_LINES_MAX: wholeNumber(100_000_000, { min: 1, max: Number.MAX_SAFE_INTEGER }),
  /**
   * What becomes of calls whose price is not known, under a budget of money. `refuse`: a budget that does not count some calls
   * bounds nothing. `admit`: they are made, and counted beside the budget as unpriced.
   */
  SLUICE_UNPRICED_CALLS: z.enum(['refuse', 'admit']).default('refuse'),
  /** Where the alerts of budgets are sent, by a POST that the secret signs. Absent: they are events and log lines only. */
  SLUICE_ALERT_WEBHOOK: z.url({ protocol: /^https?$/, error: 'must be an http:// or https:// URL' }).optional(),
  /** The secret of Standard Webhooks: 24 to 64 bytes, which the receiver has too. */
  SLUICE_ALERT_WEBHOOK_SECRET: z
    .string()
    .regex(/^whsec_(?:[A-Za-z0-9+/]{4}){8,21}[A-Za-z0-9+/=]{0,4}$/, {
      error: "must be 'whsec_' and 24 to 64 random bytes as base64 (echo whsec_$(openssl rand -base64 32))",
    })
    .transform((text) => new Secret(text))
    .optional(),
  /** Values that one limit counts apart, such as users: more than that would be a mistake, or an attack. */
  SLUICE_LIMIT_ENTITIES_MAX: wholeNumber(100_000, { min: 1, max: 10_000_000 }),
  /** Free disk space that uploads leave for results, so that running batches can end. */
  SLUICE_DISK_RESERVE: byteSize('1GiB', { minBytes: 0, maxBytes: Number.MAX_SAFE_INTEGER }),
} as const;

/** The blob folder: SLUICE_BLOBS, or `blobs` in the data directory. */
export function blobFolder(config: { SLUICE_BLOBS?: string | undefined; SLUICE_DATA_DIR: string }): string {
  return config.SLUICE_BLOBS === undefined
    ? path.resolve(config.SLUICE_DATA_DIR, 'blobs')
    : path.resolve(config.SLUICE_BLOBS.slice('file:'.length));
}

/** The webhook of alerts, or null. Throws ConfigurationError if its address or its secret is missing. */
export function alertWebhookOf(config: {
  SLUICE_ALERT_WEBHOOK?: string | undefined;
  SLUICE_ALERT_WEBHOOK_SECRET?: Secret | undefined;
}): AlertWebhook | null {
  const { SLUICE_ALERT_WEBHOOK: url, SLUICE_ALERT_WEBHOOK_SECRET: secret } = config;
  if (url !== undefined && secret !== undefined) return { url: new URL(url), secret };
  if (url === undefined && secret === undefined) return null;
  throw new ConfigurationError(
    'SLUICE_ALERT_WEBHOOK and SLUICE_ALERT_WEBHOOK_SECRET belong together: set both, or neither.',
  );
}

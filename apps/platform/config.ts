import { availableParallelism } from 'node:os';
import { z } from 'zod';
import { defaultMemoryBytesMax } from '#libs/kernel/sharing/memory-budget.ts';
import { byteSize, ConfigurationError, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { AlertWebhook } from '#libs/policies/deliver-alert.ts';

/** Origins like `https://vault.example:8200`, separated by commas. */
const origins = () =>
  z
    .string()
    .default('')
    .transform((text, context): ReadonlySet<string> => {
      const parts = text.split(/[\s,]+/).filter((part) => part !== '');
      if (parts.every((part) => /^https?:/.test(part) && URL.parse(part)?.origin === part)) return new Set(parts);
      context.addIssue('must be a list of origins such as https://vault.example:8200, without paths');
      return z.NEVER;
    });

/** The address of an OpenTelemetry collector. */
const otlpAddress = () =>
  z
    .string()
    .regex(/^https?:/, 'must be an http:// or https:// URL')
    .optional();

/** Variables that both the API and the worker read. Each app adds its own in its config.ts. */
export const platformFields = {
  DATABASE_URL: z
    .string({ error: 'is required: postgres://user:password@host:port/database' })
    .regex(/^postgres(ql)?:\/\//, 'must be a postgres:// URL')
    .meta({ fallback: 'required; `npm start` runs an embedded Postgres' })
    .describe(
      'A dedicated database on Postgres 15 or later. `DATABASE_URL_FILE` can name a file with the value instead.',
    ),
  SLUICE_DATABASE_DIRECT_URL: z
    .string()
    .regex(/^postgres(ql)?:\/\//, 'must be a postgres:// URL')
    .optional()
    .describe(
      'Address of Postgres itself, if `DATABASE_URL` is that of a pooler in transaction mode. See ' +
        '[deploy](deploy.md#pgbouncer). `SLUICE_DATABASE_DIRECT_URL_FILE` can name a file with the value instead.',
    ),
  SLUICE_MASTER_KEY: z
    .string({ error: 'is required: 32 random bytes as base64 or hex (openssl rand -base64 32)' })
    .meta({ fallback: 'required; `npm start` generates one' })
    .describe(
      '32 random bytes, as base64 or hex, that encrypt stored provider keys. If you lose it, those keys are lost. To replace ' +
        'it, list several keys, separated by commas, with the new one first. `SLUICE_MASTER_KEY_FILE` can name a file with ' +
        'the value instead.',
    ),
  SLUICE_AUDIT_KEY: z
    .string()
    .transform((text) => new Secret(text))
    .optional()
    .meta({ fallback: 'derived from the master key' })
    .describe(
      'Ed25519 private key in PEM that signs checkpoints of the event log. To replace it, list both keys for some time: each ' +
        'of them signs. `SLUICE_AUDIT_KEY_FILE` can name a file with the value instead. See [audit](audit.md#keys).',
    ),
  SLUICE_AUDIT_ORIGIN: z
    .string()
    .regex(/^[^\s+]{1,200}$/, 'must be a name such as audit.example.com/sluice, without spaces and +')
    .optional()
    .meta({ fallback: '`sluice/` and the ID of the blob store' })
    .describe('Name of the log in its checkpoints. It applies from the first checkpoint on, and to later trees.'),
  SLUICE_DATA_DIR: z
    .string()
    .default('.data')
    .describe(
      'Folder of `npm start`: embedded database, blobs, logs and key files. Parent of the default blob folder. If files are ' +
        'in S3, its folder `request-log` has the request-log rows that wait on disk.',
    ),
  SLUICE_BLOBS: z
    .string()
    .regex(
      /^(?:file:|s3:\/\/[a-z0-9][a-z0-9.-]+(?:\/|$))/,
      'must be a folder such as file:/var/lib/sluice/blobs, or a bucket such as s3://bucket/prefix',
    )
    .optional()
    .meta({ fallback: '`blobs` in the data folder' })
    .describe(
      'Where files are stored: a folder, written `file:/path`, or a bucket of S3 or a compatible server, written ' +
        '`s3://bucket/prefix`. All API and worker processes share it. See [deploy](deploy.md#files-in-s3).',
    ),
  SLUICE_S3_ENDPOINT: z
    .string()
    .regex(/^https?:\/\//, 'must be an http:// or https:// URL')
    .optional()
    .meta({ fallback: 'AWS' })
    .describe('Address of an S3-compatible server. Used only if `SLUICE_BLOBS` is a bucket.'),
  SLUICE_S3_REGION: z.string().default('us-east-1').describe('Region of the bucket.'),
  SLUICE_S3_PATH_STYLE: z
    .stringbool()
    .default(false)
    .meta({ fallback: 'false' })
    .describe(
      '`true` puts the bucket into the path of URLs instead of the host name. Most S3-compatible servers need it.',
    ),
  SLUICE_LOG_LEVEL: z
    .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'])
    .default('info')
    .describe(
      'Minimum severity of log lines. Requests have the level `info`, except successful calls, which are in the request ' +
        'log, and probes: their lines have the level `debug`. See [monitoring](monitoring.md#logs).',
    ),
  SLUICE_DB_POOL_MAX: wholeNumber(10, { min: 2, max: 200 }).describe(
    'Database connections per process. Ten short transactions at a time saturate a small Postgres.',
  ),
  SLUICE_DATABASE_WAIT: duration('5m', { minMs: 0, maxMs: 86_400_000 }).describe(
    'How long a starting process waits for an unavailable database. A Postgres that was killed first replays its log, ' +
      'which can take minutes. A wrong password or database name ends the start immediately.',
  ),
  SLUICE_KEYS_STALE_AFTER: duration('15m', { minMs: 1_000, maxMs: 86_400_000 }).describe(
    'How long live calls use the last known keys and records while the database is unavailable. After that they get 503. ' +
      'A key that is revoked in the meantime stays valid for that long.',
  ),
  SLUICE_EGRESS_ALLOW: z
    .string()
    .default('')
    .describe(
      'Private addresses that Sluice is allowed to call: `host:port` or CIDR entries, separated by commas. All other ' +
        'private, loopback, link-local and metadata addresses are rejected.',
    ),
  SLUICE_CONNECT_TIMEOUT: duration('10s', { minMs: 100, maxMs: 120_000 }).describe('Time to connect to a provider.'),
  SLUICE_HEADERS_TIMEOUT: duration('10m', { minMs: 100, maxMs: 3_600_000 }).describe(
    'Time until the first byte of an answer. A long reasoning answer that is not streamed takes minutes.',
  ),
  SLUICE_IDLE_TIMEOUT: duration('2m', { minMs: 100, maxMs: 3_600_000 }).describe(
    'Time between two events of a stream, or two pieces of a body.',
  ),
  SLUICE_TOTAL_TIMEOUT: duration('30m', { minMs: 100, maxMs: 86_400_000 }).describe(
    'Time from the start of a call to its last byte.',
  ),
  SLUICE_CALLS_PER_CREDENTIAL: wholeNumber(2_048, { min: 1, max: 10_000 }).describe(
    'Calls in flight with one credential, per process. A thousand concurrent streams take an API process to 280 MB.',
  ),
  SLUICE_CONNECTIONS: wholeNumber(4_096, { min: 4, max: 100_000 }).describe(
    'Calls in flight with all providers, per process; each has its own socket. One workspace gets at most three times as ' +
      'many as are free, so a single workspace gets three quarters. A worker has at least twice `SLUICE_CALLS_MAX`.',
  ),
  SLUICE_PROVIDER_QUEUE: wholeNumber(1_024, { min: 0, max: 100_000 }).describe(
    'Live calls that wait for one credential. Further calls get 503 immediately.',
  ),
  SLUICE_PROVIDER_QUEUE_WAIT: duration('10s', { minMs: 1, maxMs: 600_000 }).describe(
    'How long such a call waits before it gets 503.',
  ),
  SLUICE_RESPONSE_MAX: byteSize('64MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }).describe(
    'Largest answer that is not streamed.',
  ),
  SLUICE_CACHE_MEMORY: byteSize('64MiB', { minBytes: 65_536, maxBytes: 64 * 1_073_741_824 }).describe(
    'Response cache in the memory of one process: about ten thousand typical answers.',
  ),
  SLUICE_CHECK_THREADS: wholeNumber(Math.max(2, availableParallelism() - 1), { min: 1, max: 64 })
    .meta({ fallback: 'cores − 1, at least 2' })
    .describe(
      'Threads per process for work that would block other calls: this many each for guardrails and conditions, for large ' +
        'bodies and for large answers. One workspace never gets all of them.',
    ),
  SLUICE_MEMORY_MAX: byteSize(String(defaultMemoryBytesMax()), { minBytes: 4_194_304, maxBytes: 1_099_511_627_776 })
    .meta({ fallback: 'a third of the heap limit' })
    .describe(
      'Memory of one process for bodies, parsed values, answers, batch lines and results. When it is full, new calls get ' +
        '503, answers wait in their sockets, and lines wait to be called.',
    ),
  SLUICE_BODY_RATE_MAX: byteSize('64MiB', { minBytes: 1_048_576, maxBytes: 1_099_511_627_776 }).describe(
    "Bytes per second of one workspace's JSON bodies above 256 KiB that an API process reads. The same limit applies to " +
      'large provider answers. 64 MiB take a fifth of the event loop. Workers have no such limit.',
  ),
  SLUICE_REQUEST_LOG_DISK: byteSize('512MiB', { minBytes: 0, maxBytes: 1_099_511_627_776 }).describe(
    'Request-log rows that wait on disk while the database is unavailable, about half a kilobyte each: enough for 15 ' +
      'minutes at 1,000 calls per second. 0 disables it.',
  ),
  SLUICE_REQUEST_LOG_QUEUE: wholeNumber(20_000, { min: 100, max: 1_000_000 }).describe(
    'Request-log rows that wait in memory once the disk allowance is used up. When both are full, new calls get 503.',
  ),
  SLUICE_PROMPT_OUTPUT_MAX: byteSize('1MiB', { minBytes: 1_024, maxBytes: 67_108_864 }).describe(
    'Total text of one rendered prompt.',
  ),
  SLUICE_PROMPT_CACHE: byteSize('32MiB', { minBytes: 65_536, maxBytes: 4_294_967_296 }).describe(
    'Compiled prompts and partials that a process keeps, measured by their JSON.',
  ),
  SLUICE_SECRETS_TTL: duration('5m', { minMs: 1_000, maxMs: 86_400_000 }).describe(
    'How long a secret from a secret manager is used before it is fetched again.',
  ),
  SLUICE_SECRETS_STALE: duration('1h', { minMs: 0, maxMs: 7 * 86_400_000 }).describe(
    'How much longer it is used while the secret manager fails.',
  ),
  SLUICE_SECRETS_FOLDER: z
    .string()
    .optional()
    .describe('Folder with one secret per file, such as a mounted Kubernetes secret.'),
  SLUICE_SECRETS_KUBERNETES_TOKEN: z
    .string()
    .default('/var/run/secrets/kubernetes.io/serviceaccount/token')
    .describe('File with the token that Sluice signs in to Vault with when it runs in Kubernetes.'),
  SLUICE_SECRETS_KUBERNETES_VAULTS: origins().describe(
    'Origins of the Vaults that this token can be sent to, separated by commas. Any server that receives it can act as ' +
      'this process.',
  ),
  SLUICE_SIEM_FOLDER: z
    .string()
    .optional()
    .describe(
      'Folder for the events of [SIEM destinations](siem.md) of the type `folder`, which only the organisation can have. Set ' +
        'it for API and workers; workers on several hosts need a shared one.',
    ),
  SLUICE_BATCH_EXPIRY: duration('24h', { minMs: 1_000, maxMs: 30 * 86_400_000 }).describe(
    'Time after which unfinished lines of a batch end as `batch_expired`, for both completion windows.',
  ),
  SLUICE_OPEN_BATCHES_MAX: wholeNumber(10_000, { min: 1, max: 1_000_000 }).describe(
    'Open batches per workspace. Beyond that, creating a batch gets 429.',
  ),
  SLUICE_QUEUED_LINES_MAX: wholeNumber(100_000_000, { min: 1, max: 1_000_000_000_000 }).describe(
    'Lines without a result in the open batches of a workspace. Beyond that, creating a batch gets 429.',
  ),
  SLUICE_BATCH_LINES_MAX: z.coerce
    .number()
    .int()
    .min(1)
    .optional()
    .meta({ fallback: 'no limit' })
    .describe('Lines of one batch.'),
  SLUICE_DISK_RESERVE: byteSize('1GiB', { minBytes: 0, maxBytes: 1_125_899_906_842_624 }).describe(
    'Free disk space that uploads leave for results, so that running batches can finish. Uploads beyond that get 507.',
  ),
  SLUICE_UNPRICED_CALLS: z
    .enum(['refuse', 'admit'])
    .default('refuse')
    .describe(
      'What happens to a call without a known price that counts towards a cost budget: `refuse` rejects it, `admit` makes it and reports it as unpriced instead of counting it.',
    ),
  SLUICE_LIMIT_ENTITIES_MAX: wholeNumber(100_000, { min: 1, max: 10_000_000 }).describe(
    'Values that one limit counts separately, such as users. Calls with further values are rejected.',
  ),
  SLUICE_ALERT_WEBHOOK: z
    .url({ protocol: /^https?$/, error: 'must be an http:// or https:// URL' })
    .optional()
    .describe('URL that budget alerts are sent to. Without it, alerts are only events and log lines.'),
  SLUICE_ALERT_WEBHOOK_SECRET: z
    .string()
    .regex(/^whsec_(?:[A-Za-z0-9+/]{4}){8,21}[A-Za-z0-9+/=]{0,4}$/, {
      error: "must be 'whsec_' and 24 to 64 random bytes as base64 (echo whsec_$(openssl rand -base64 32))",
    })
    .transform((text) => new Secret(text))
    .optional()
    .describe('Secret that signs these alerts, as Standard Webhooks define it: `whsec_` and 24 to 64 bytes as base64.'),
  // OpenTelemetry's own names (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
  OTEL_EXPORTER_OTLP_ENDPOINT: otlpAddress().describe(
    'Address of the collector, for OTLP over HTTP. Without an address, nothing is exported.',
  ),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: otlpAddress().describe('Full address for traces, if it differs.'),
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: otlpAddress().describe('Full address for metrics, if it differs.'),
  OTEL_SDK_DISABLED: z.string().optional().describe('`true` turns OpenTelemetry off.'),
  OTEL_TRACES_EXPORTER: z
    .enum(['otlp', 'none'])
    .optional()
    .meta({ fallback: 'otlp' })
    .describe('`none` exports no traces.'),
  OTEL_METRICS_EXPORTER: z
    .enum(['otlp', 'none'])
    .optional()
    .meta({ fallback: 'otlp' })
    .describe('`none` exports no metrics.'),
  OTEL_SERVICE_NAME: z
    .string()
    .optional()
    .meta({ fallback: '`sluice-api` or `sluice-worker`' })
    .describe('Name of the service in traces and metrics.'),
  OTEL_TRACES_SAMPLER: z
    .enum([
      'always_on',
      'always_off',
      'traceidratio',
      'parentbased_always_on',
      'parentbased_always_off',
      'parentbased_traceidratio',
    ])
    .default('parentbased_always_on')
    .describe('Which traces are exported.'),
  OTEL_TRACES_SAMPLER_ARG: z.coerce
    .number()
    .min(0)
    .max(1)
    .optional()
    .meta({ fallback: '1' })
    .describe('Share of traces for the `traceidratio` samplers.'),
} as const;

/** The address for work that needs a database session: LISTEN, migrations, and what must not wait for a pooler. */
export const sessionUrl = (config: { DATABASE_URL: string; SLUICE_DATABASE_DIRECT_URL?: string | undefined }): string =>
  config.SLUICE_DATABASE_DIRECT_URL ?? config.DATABASE_URL;

/** The webhook of alerts, or null. Throws ConfigurationError if its address or its secret is missing. */
export function readAlertWebhook(config: {
  SLUICE_ALERT_WEBHOOK?: string | undefined;
  SLUICE_ALERT_WEBHOOK_SECRET?: Secret | undefined;
}): AlertWebhook | null {
  const { SLUICE_ALERT_WEBHOOK: url, SLUICE_ALERT_WEBHOOK_SECRET: secret } = config;
  if (url !== undefined && secret !== undefined) return { url: new URL(url), secret };
  if (url === undefined && secret === undefined) return null;
  throw new ConfigurationError(
    'SLUICE_ALERT_WEBHOOK and SLUICE_ALERT_WEBHOOK_SECRET must be set together. Set both, or neither.',
  );
}

import { availableParallelism } from 'node:os';
import path from 'node:path';
import { z } from 'zod';
import { defaultMemoryBytesMax } from '#libs/kernel/memory-budget.ts';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';

/** What the API and the worker read alike; each app adds its own fields in its config.ts. */
export const platformFields = {
  /** A Postgres database of Sluice's own; `npm start` sets it to the embedded server. */
  DATABASE_URL: z
    .string({ error: 'is required: postgres://user:password@host:port/database' })
    .regex(/^postgres(ql)?:\/\//, 'must be a postgres:// URL'),
  /** Where blobs lie when SLUICE_BLOBS does not say. */
  SLUICE_DATA_DIR: z.string().default('.data'),
  /** `file:` and a folder that all api and worker processes share. */
  SLUICE_BLOBS: z
    .string()
    .regex(/^file:/, 'must be file: and a folder, like file:/var/lib/sluice/blobs')
    .optional(),
  /** 32 bytes, base64 or hex; while it is replaced, the new one and the old one. Losing it loses provider secrets. */
  SLUICE_MASTER_KEY: z.string({ error: 'is required: 32 random bytes as base64 or hex (openssl rand -base64 32)' }),
  /** `host:port` or CIDR entries, separated by commas, that calls may reach although they are private. */
  SLUICE_EGRESS_ALLOW: z.string().default(''),
  SLUICE_LOG_LEVEL: z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']).default('info'),
  /** Ten short transactions at a time saturate a small Postgres; more only queue inside it. */
  SLUICE_DB_POOL_MAX: wholeNumber(10, { min: 2, max: 200 }),
  /**
   * How long a start waits for a database that is away, all its steps together. A Postgres that was killed first replays
   * its log, up to minutes; past that, a process that ends is seen by more people than one that waits.
   */
  SLUICE_DATABASE_WAIT: duration('5m', { minMs: 0, maxMs: 86_400_000 }),
  /**
   * How long keys are honoured as they were last known while the database does not answer; then live calls get 503. Long
   * enough for a failover or an operator. A key that is revoked, or expires early, meanwhile is honoured as long.
   */
  SLUICE_KEYS_STALE_AFTER: duration('15m', { minMs: 1_000, maxMs: 86_400_000 }),
  /** Connecting to a provider is quick or it does not happen. */
  SLUICE_CONNECT_TIMEOUT: duration('10s', { minMs: 100, maxMs: 120_000 }),
  /** Until the first byte of an answer: a long reasoning answer that is not streamed takes minutes. */
  SLUICE_HEADERS_TIMEOUT: duration('10m', { minMs: 100, maxMs: 3_600_000 }),
  /** Between two events of a stream, or two pieces of a body. */
  SLUICE_IDLE_TIMEOUT: duration('2m', { minMs: 100, maxMs: 3_600_000 }),
  /** From the start of a call to its last byte. */
  SLUICE_TOTAL_TIMEOUT: duration('30m', { minMs: 100, maxMs: 86_400_000 }),
  /** Calls under way with one credential from one process. A thousand streams at once take an API to 280 MB. */
  SLUICE_CALLS_PER_CREDENTIAL: wholeNumber(1_024, { min: 1, max: 10_000 }),
  /**
   * Calls under way with all providers from one process, each with a socket of its own. A workspace has at most three times
   * as many as are free, so one alone has three quarters of them: three credentials at their bound.
   */
  SLUICE_CONNECTIONS: wholeNumber(4_096, { min: 4, max: 100_000 }),
  /**
   * Live calls that wait while as many calls with one credential are under way as may be: as many again. More are refused
   * at once (503), because a caller who waits long has left by the time it is his turn.
   */
  SLUICE_PROVIDER_QUEUE: wholeNumber(1_024, { min: 0, max: 100_000 }),
  /** How long such a call waits. */
  SLUICE_PROVIDER_QUEUE_WAIT: duration('10s', { minMs: 1, maxMs: 600_000 }),
  /** Answers of the response cache in the memory of one process; some ten thousand usual ones. */
  SLUICE_CACHE_MEMORY: byteSize('64MiB', { minBytes: 65_536, maxBytes: 64 * 1_073_741_824 }),
  /**
   * Threads in which one process does what would hold up other calls: as many for tenants' guardrails and conditions, for
   * large bodies and for large answers. As many as cores less one, and two at least, because one workspace never has all of them.
   */
  SLUICE_CHECK_THREADS: wholeNumber(Math.max(2, availableParallelism() - 1), { min: 1, max: 64 }),
  /**
   * Rows that may wait in memory, before new calls are refused instead of going unlogged: while the database is away those
   * for which the disk has no room.
   */
  SLUICE_REQUEST_LOG_QUEUE: wholeNumber(20_000, { min: 100, max: 1_000_000 }),
  /**
   * Rows that wait on the disk while the database is away, about half a kilobyte each: 15 minutes, which is as long as live
   * calls go on without it, at 1,000 calls a second. 0: none do.
   */
  SLUICE_REQUEST_LOG_DISK: byteSize('512MiB', { minBytes: 0, maxBytes: 1_099_511_627_776 }),
  /**
   * What bodies, parsed values, answers under way, lines and results may take together in one process. Beyond it new calls
   * get 503, answers wait in their sockets, and lines wait to be called.
   */
  SLUICE_MEMORY_MAX: byteSize(String(defaultMemoryBytesMax()), { minBytes: 4_194_304, maxBytes: 1_099_511_627_776 }),
  /**
   * How fast one API process reads the JSON bodies above 256 KiB of one workspace, a second, and as fast its providers' larger
   * answers: 64 MiB take a fifth of the event loop. A worker reads as fast as it can.
   */
  SLUICE_BODY_RATE_MAX: byteSize('64MiB', { minBytes: 1_048_576, maxBytes: 1_099_511_627_776 }),
  /** The largest answer that is read whole (not streamed). */
  SLUICE_RESPONSE_MAX: byteSize('64MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /** How long after creation the unfinished lines of a batch expire. Both windows; shrunk in tests. */
  SLUICE_BATCH_EXPIRY: duration('24h', { minMs: 1_000, maxMs: 30 * 86_400_000 }),
  /** Batches of one workspace that have not ended: more than anybody has met, and few enough to count at each create. */
  SLUICE_OPEN_BATCHES_MAX: wholeNumber(10_000, { min: 1, max: 1_000_000 }),
  /** Lines of one workspace's open batches that have no result yet. */
  SLUICE_QUEUED_LINES_MAX: wholeNumber(100_000_000, { min: 1, max: Number.MAX_SAFE_INTEGER }),
  /** Free space of the blob folder that uploads leave to results: batches that run must be able to end. */
  SLUICE_DISK_RESERVE: byteSize('1GiB', { minBytes: 0, maxBytes: Number.MAX_SAFE_INTEGER }),
} as const;

/** The blob folder: SLUICE_BLOBS, or `blobs` in the data directory. */
export function blobFolder(config: { SLUICE_BLOBS?: string | undefined; SLUICE_DATA_DIR: string }): string {
  return config.SLUICE_BLOBS === undefined
    ? path.resolve(config.SLUICE_DATA_DIR, 'blobs')
    : path.resolve(config.SLUICE_BLOBS.slice('file:'.length));
}

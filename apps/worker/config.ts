import { availableParallelism } from 'node:os';
import { z } from 'zod';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { platformFields } from '../platform/config.ts';

/** Configuration of a worker process. Read once, in main.ts. */
export const WorkerConfig = z.object({
  ...platformFields,
  /** Port of the worker's /health and /metrics. 0 picks a free port; absent serves none. */
  SLUICE_WORKER_PORT: z.coerce.number().int().min(0).max(65_535).optional(),
  HOST: z.string().default('127.0.0.1'),
  /** Calls in flight in this process. A workspace that has none may start one more, up to twice as many in total. */
  SLUICE_CALLS_MAX: wholeNumber(128, { min: 1, max: 10_000 }),
  /**
   * Bytes of the ranges of input files that this process works on, shared by workspaces like SLUICE_MEMORY_MAX, which bounds
   * lines and answers. One range may exceed it.
   */
  SLUICE_IN_FLIGHT_MAX: byteSize('64MiB', { minBytes: 65_536, maxBytes: 8 * 1_073_741_824 }),
  /** Chunks of one batch that this process runs at once. */
  SLUICE_CHUNKS_MAX: wholeNumber(4, { min: 1, max: 256 }),
  /**
   * Chunks of all batches that this process runs at once, at least as many as per batch. Up to four times as many are allowed
   * if they are the first of their batch here. While a batch waits for its provider, its chunks only cost the memory of their
   * ranges, which SLUICE_IN_FLIGHT_MAX bounds too.
   */
  SLUICE_CHUNKS_TOTAL: wholeNumber(32, { min: 1, max: 1_024 }),
  /** Lines of a chunk: the most that a lost lease repeats, and how quickly a cancel takes effect. */
  SLUICE_CHUNK_LINES: wholeNumber(250, { min: 1, max: 5_000 }),
  /** Bytes of a chunk, so that chunks of lines with images stay small. */
  SLUICE_CHUNK_BYTES: byteSize('4MiB', { minBytes: 1_024, maxBytes: 268_435_456 }),
  /** One input line. Longer ones are errors of that line. */
  SLUICE_LINE_MAX: byteSize('4MiB', { minBytes: 1_024, maxBytes: 268_435_456 }),
  /** Threads that validate input files. One core is left for the calls. */
  SLUICE_VALIDATION_THREADS: wholeNumber(Math.max(1, availableParallelism() - 1), { min: 1, max: 64 }),
  /** Attempts of a line after 408, 409, 5xx or a network error. A 429 is waited for until the batch expires. */
  SLUICE_LINE_ATTEMPTS: wholeNumber(5, { min: 1, max: 100 }),
  SLUICE_RETRY_BASE: duration('500ms', { minMs: 1, maxMs: 60_000 }),
  SLUICE_RETRY_MAX: duration('30s', { minMs: 1, maxMs: 3_600_000 }),
  /** Wait between two polls of a fine-tuning job if there was something new; otherwise each wait doubles. */
  SLUICE_FINE_TUNING_POLL_MIN: duration('2s', { minMs: 10, maxMs: 3_600_000 }),
  /** The longest wait between two polls. Training takes minutes to hours. */
  SLUICE_FINE_TUNING_POLL_MAX: duration('60s', { minMs: 10, maxMs: 3_600_000 }),
  /** How long a provider may be unavailable before a fine-tuning job that it has not accepted fails. */
  SLUICE_FINE_TUNING_START_WINDOW: duration('24h', { minMs: 1_000, maxMs: 30 * 86_400_000 }),
  /** Result rows are deleted this long after the day of their batch; the files keep the results. */
  SLUICE_RESULTS_RETENTION: duration('3d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }),
  /** Rows of the request log are deleted after this, a day at a time. */
  SLUICE_REQUEST_LOG_RETENTION: duration('30d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }),
  /** Records of one export of the request log, whose file they fill: ten million are about 4 GB of NDJSON. */
  SLUICE_EXPORT_ROWS_MAX: wholeNumber(10_000_000, { min: 1, max: 1_000_000_000 }),
  /** The file of an export is deleted this long after it was written. */
  SLUICE_EXPORT_RETENTION: duration('7d', { minMs: 60_000, maxMs: 3_650 * 86_400_000 }),
  /** Exports that this process writes at once: each reads the log as fast as it can. */
  SLUICE_EXPORTS_AT_ONCE: wholeNumber(2, { min: 1, max: 64 }),
  /** Between two passes that roll up the request log: how old analytics may be. A minute is read again in each pass. */
  SLUICE_ANALYTICS_INTERVAL: duration('5s', { minMs: 10, maxMs: 3_600_000 }),
  /** How long minutes are kept: graphs of a day have points of minutes, and nobody looks at those of last month. */
  SLUICE_ANALYTICS_MINUTES: duration('7d', { minMs: 3_600_000, maxMs: 3_650 * 86_400_000 }),
  /** How long hours are kept, but never less than the request log. */
  SLUICE_ANALYTICS_HOURS: duration('90d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }),
  /** How long days are kept, and feedback: a year can be compared with the one before. */
  SLUICE_ANALYTICS_DAYS: duration('400d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }),
  /** Response cache in the database, per workspace. Every minute the oldest answers beyond it are deleted. */
  SLUICE_CACHE_WORKSPACE_MAX: byteSize('1GiB', { minBytes: 1_048_576, maxBytes: 1_099_511_627_776 }),
  /** How long running lines may take to finish after SIGTERM. */
  SLUICE_DRAIN: duration('20s', { minMs: 0, maxMs: 3_600_000 }),
});
export type WorkerConfig = z.output<typeof WorkerConfig>;

import { availableParallelism } from 'node:os';
import { z } from 'zod';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { platformFields } from '../platform/config.ts';

/** Configuration of a worker process. Read once, in main.ts. */
export const WorkerConfig = z.object({
  ...platformFields,
  /** Where /health and /metrics of the worker answer; 0 picks a free port, absent serves none. */
  SLUICE_WORKER_PORT: z.coerce.number().int().min(0).max(65_535).optional(),
  HOST: z.string().default('127.0.0.1'),
  /** Calls to providers in flight in this process; a workspace that has none may begin one beyond it, up to as many again. */
  SLUICE_CALLS_MAX: wholeNumber(128, { min: 1, max: 10_000 }),
  /**
   * Bytes of the ranges of input files that this process works on, shared by workspaces as SLUICE_MEMORY_MAX is, which
   * bounds lines and answers; one range may come beyond it.
   */
  SLUICE_IN_FLIGHT_MAX: byteSize('64MiB', { minBytes: 65_536, maxBytes: 8 * 1_073_741_824 }),
  /** Chunks of one batch that this process works on at once. */
  SLUICE_CHUNKS_MAX: wholeNumber(4, { min: 1, max: 256 }),
  /**
   * Chunks of all batches that this process works on at once, at least as many as of one; beyond it, up to four times as
   * many, first chunks of batches that have none here. Those of a batch that waits for its provider cost memory alone, the
   * ranges of the input file, which are bounded by SLUICE_IN_FLIGHT_MAX too.
   */
  SLUICE_CHUNKS_TOTAL: wholeNumber(32, { min: 1, max: 1_024 }),
  /** Lines of a chunk: what a lost claim does again at most, and how quickly a cancel takes effect. */
  SLUICE_CHUNK_LINES: wholeNumber(250, { min: 1, max: 5_000 }),
  /** Bytes of a chunk: lines of images make small chunks. */
  SLUICE_CHUNK_BYTES: byteSize('4MiB', { minBytes: 1_024, maxBytes: 268_435_456 }),
  /** Lines of one batch; absent is no limit. */
  SLUICE_BATCH_LINES_MAX: z.coerce.number().int().min(1).optional(),
  /** One input line; longer ones are errors of that line. */
  SLUICE_LINE_MAX: byteSize('4MiB', { minBytes: 1_024, maxBytes: 268_435_456 }),
  /** Threads that check input files: as many as cores, less one for the calls. */
  SLUICE_VALIDATION_THREADS: wholeNumber(Math.max(1, availableParallelism() - 1), { min: 1, max: 64 }),
  /** Tries of a line that meets 408, 409, 5xx or a network error; 429 is waited out until the batch expires. */
  SLUICE_LINE_ATTEMPTS: wholeNumber(5, { min: 1, max: 100 }),
  SLUICE_RETRY_BASE: duration('500ms', { minMs: 1, maxMs: 60_000 }),
  SLUICE_RETRY_MAX: duration('30s', { minMs: 1, maxMs: 3_600_000 }),
  /** Between two looks at a fine-tuning job of which something was new; while nothing is, each wait is twice the last. */
  SLUICE_FINE_TUNING_POLL_MIN: duration('2s', { minMs: 10, maxMs: 3_600_000 }),
  /** The longest of these waits. Training takes minutes to hours. */
  SLUICE_FINE_TUNING_POLL_MAX: duration('60s', { minMs: 10, maxMs: 3_600_000 }),
  /** How long a provider may be away before a fine-tuning job that it has not accepted fails. */
  SLUICE_FINE_TUNING_START_WINDOW: duration('24h', { minMs: 1_000, maxMs: 30 * 86_400_000 }),
  /** Result rows are dropped so long after the day of their batch; its lines are in the files then. */
  SLUICE_RESULTS_RETENTION: duration('3d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }),
  /** Rows of the request log are dropped, a day at a time, after this. */
  SLUICE_REQUEST_LOG_RETENTION: duration('30d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }),
  /** Answers of the response cache in the database, of one workspace; beyond, the oldest are dropped every minute. */
  SLUICE_CACHE_WORKSPACE_MAX: byteSize('1GiB', { minBytes: 1_048_576, maxBytes: 1_099_511_627_776 }),
  /** How long lines in flight may finish after SIGTERM. */
  SLUICE_DRAIN: duration('20s', { minMs: 0, maxMs: 3_600_000 }),
});
export type WorkerConfig = z.output<typeof WorkerConfig>;

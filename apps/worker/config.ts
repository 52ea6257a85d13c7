import { availableParallelism } from 'node:os';
import { z } from 'zod';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { platformFields } from '../platform/config.ts';

/** Configuration of a worker process. Read once, in main.ts. */
export const WorkerConfig = z.object({
  ...platformFields,
  SLUICE_WORKER_PORT: z.coerce
    .number()
    .int()
    .min(0)
    .max(65_535)
    .optional()
    .meta({ range: '0 to 65535' })
    .describe("Port of the worker's `/health` and `/metrics`. 0 picks a free one."),
  HOST: z.string().default('127.0.0.1').describe('Address that this port listens on.'),
  SLUICE_CALLS_MAX: wholeNumber(2_000, { min: 1, max: 10_000 }).describe(
    'Calls in flight per worker, a bound for its memory; how many a provider takes is learned. Waiting lines do not ' +
      'count. One batch or credential gets at most 7/8 of them, one ' +
      'workspace 15/16. A workspace without any can start one more, up to twice the number in total.',
  ),
  SLUICE_CHUNKS_MAX: wholeNumber(8, { min: 1, max: 256 })
    .removeDefault()
    .optional()
    .meta({ range: '1 to 256', fallback: '`SLUICE_CALLS_MAX` / `SLUICE_CHUNK_LINES`, at least 8' })
    .describe('Chunks of one batch that a worker runs.'),
  SLUICE_CHUNKS_TOTAL: wholeNumber(64, { min: 1, max: 1_024 }).describe(
    'Chunks of all batches that a worker runs. Workspaces below their share can exceed it, and so can the first chunks ' +
      'of batches.',
  ),
  SLUICE_IN_FLIGHT_MAX: byteSize('64MiB', { minBytes: 65_536, maxBytes: 8 * 1_073_741_824 }).describe(
    'Bytes of input that a worker has read for its chunks, shared fairly among workspaces. One chunk can exceed it.',
  ),
  SLUICE_CHUNK_LINES: wholeNumber(250, { min: 1, max: 5_000 }).describe(
    'Lines of a chunk. Fewer lines mean fewer repeated calls after a lost lease, and faster cancellation.',
  ),
  SLUICE_CHUNK_BYTES: byteSize('4MiB', { minBytes: 1_024, maxBytes: 268_435_456 }).describe('Bytes of a chunk.'),
  SLUICE_LINE_MAX: byteSize('4MiB', { minBytes: 1_024, maxBytes: 268_435_456 }).describe(
    'Largest input line. A batch with a longer line fails its validation.',
  ),
  SLUICE_LINE_ATTEMPTS: wholeNumber(5, { min: 1, max: 100 }).describe(
    'Attempts per line after 408, 409, 5xx and network errors. A 429 does not count: the line waits as long as the ' +
      'provider asks, and expires with its batch.',
  ),
  SLUICE_RETRY_BASE: duration('500ms', { minMs: 1, maxMs: 60_000 }).describe(
    'Longest wait before the second attempt. It doubles with each further attempt.',
  ),
  SLUICE_RETRY_MAX: duration('30s', { minMs: 1, maxMs: 3_600_000 }).describe('Longest wait between two attempts.'),
  SLUICE_VALIDATION_THREADS: wholeNumber(Math.max(1, availableParallelism() - 1), { min: 1, max: 64 })
    .meta({ fallback: 'cores − 1, at least 1' })
    .describe(
      'Threads that validate input files, one more for the first part of each file, and as many that check answers against their JSON Schema.',
    ),
  SLUICE_DRAIN: duration('10m', { minMs: 0, maxMs: 3_600_000 }).describe(
    'How long running lines can take to finish after SIGTERM. Those that are cut off are called, and paid for, again.',
  ),
  SLUICE_RESULTS_RETENTION: duration('3d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }).describe(
    'Result rows are deleted this long after the day of their batch, unless their workspace sets another time. The files ' +
      'keep the results. See [retention](retention.md).',
  ),
  SLUICE_REQUEST_LOG_RETENTION: duration('200d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }).describe(
    'Request-log rows are deleted after this time, a day at a time, unless their workspace sets another time. See ' +
      '[retention](retention.md) and [sizing](sizing.md#disk).',
  ),
  SLUICE_CACHE_WORKSPACE_MAX: byteSize('1GiB', { minBytes: 1_048_576, maxBytes: 1_099_511_627_776 }).describe(
    'Response cache of one workspace in the database. The oldest answers beyond it are deleted every minute.',
  ),
  SLUICE_FINE_TUNING_POLL_MIN: duration('2s', { minMs: 10, maxMs: 3_600_000 }).describe(
    'Shortest wait between two polls of a fine-tuning job. It doubles while nothing changes.',
  ),
  SLUICE_FINE_TUNING_POLL_MAX: duration('60s', { minMs: 10, maxMs: 3_600_000 }).describe('Longest such wait.'),
  SLUICE_FINE_TUNING_START_WINDOW: duration('24h', { minMs: 1_000, maxMs: 30 * 86_400_000 }).describe(
    'How long a provider can be unavailable before a fine-tuning job that it has not accepted fails.',
  ),
  SLUICE_EXPORT_ROWS_MAX: wholeNumber(10_000_000, { min: 1, max: 1_000_000_000 }).describe(
    'Records of one export of the request log. Ten million are about 4 GB of NDJSON.',
  ),
  SLUICE_EXPORT_RETENTION: duration('7d', { minMs: 60_000, maxMs: 3_650 * 86_400_000 }).describe(
    'How long the file of an export is kept.',
  ),
  SLUICE_EXPORTS_AT_ONCE: wholeNumber(2, { min: 1, max: 64 }).describe('Exports that one worker writes at a time.'),
  SLUICE_AUDIT_PUBLISH: z
    .string()
    .regex(/^(?:file:\/|https:\/\/)/, 'must be a folder such as file:/mnt/audit, or an https:// URL')
    .optional()
    .meta({ fallback: 'nowhere' })
    .describe(
      'Where each new checkpoint of the event log is kept outside of Sluice: a folder, written `file:/path`, or an https:// ' +
        'URL that gets it as the body of a POST. See [audit](audit.md#publish-checkpoints).',
    ),
  SLUICE_ANALYTICS_INTERVAL: duration('5s', { minMs: 10, maxMs: 3_600_000 }).describe(
    'Time between two passes that roll up the request log: how old analytics can be.',
  ),
  SLUICE_ANALYTICS_MINUTES: duration('7d', { minMs: 3_600_000, maxMs: 3_650 * 86_400_000 }).describe(
    'How long analytics keeps data by minute.',
  ),
  SLUICE_ANALYTICS_HOURS: duration('90d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }).describe(
    'How long analytics keeps data by hour; never less than the request log is kept.',
  ),
  SLUICE_ANALYTICS_DAYS: duration('400d', { minMs: 86_400_000, maxMs: 3_650 * 86_400_000 }).describe(
    'How long analytics keeps data by day, and feedback.',
  ),
});
export type WorkerConfig = z.output<typeof WorkerConfig>;

/** Chunks of one batch that a worker runs. One batch alone can have as many lines as there are calls. */
export const chunksPerBatchMax = ({ SLUICE_CHUNKS_MAX, SLUICE_CALLS_MAX, SLUICE_CHUNK_LINES }: WorkerConfig): number =>
  SLUICE_CHUNKS_MAX ?? Math.max(8, Math.min(256, Math.ceil(SLUICE_CALLS_MAX / SLUICE_CHUNK_LINES)));

/**
 * Connections of a worker, so many that its calls never exceed the share of a workspace: a refused call is made again a
 * second later, which costs more than the call.
 */
export const connectionsMax = ({ SLUICE_CONNECTIONS, SLUICE_CALLS_MAX }: WorkerConfig): number =>
  Math.max(SLUICE_CONNECTIONS, 2 * SLUICE_CALLS_MAX);

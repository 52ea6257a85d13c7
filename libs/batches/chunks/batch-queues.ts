import { z } from 'zod';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';

const BatchPayload = z.object({ batch_id: z.string() });
const ChunkPayload = z.object({ batch_id: z.string(), chunk: z.number().int(), generation: z.number().int() });

export type BatchPayload = z.infer<typeof BatchPayload>;
export type ChunkPayload = z.infer<typeof ChunkPayload>;

/**
 * Retries forever and without delay. If pg-boss gave up on a job, its batch would never end, which would happen with
 * the defaults (two retries, no heartbeat). A dead worker is noticed after its heartbeat and a monitor pass.
 */
const durable = {
  retryLimit: 10_000,
  retryDelay: 0,
  heartbeatSeconds: 10,
  expireInSeconds: 86_399, // pg-boss requires less than a day.
  retentionSeconds: 60 * 86_400,
  deleteAfterSeconds: 3_600, // The event log is the history, and a small job table is fast.
};

/** pg-boss delays retries after errors and after crashes alike. A crash must be repaired within 30 s, heartbeat included. */
const withBackoff = { retryDelay: 1, retryBackoff: true, retryDelayMax: 10 };

/**
 * The `priority` of validate and finalise jobs of small batches. Workers have separate slots for these jobs and for those of
 * large batches, which take minutes, so that neither kind blocks the other.
 */
export const smallBatchPriority = 1;
/** Input files up to this size count as small: validating them takes well under a second. */
export const smallInputBytes = 1_048_576;

/** Reads the input file, checks every line, and cuts it into chunks. */
export const validateQueue: QueueDefinition<BatchPayload> = {
  name: 'batch-validate',
  payload: BatchPayload,
  // A validation that fails for an internal reason (no blob store) is retried, but not in a tight loop.
  options: { ...durable, ...withBackoff, notify: true },
};

/** One chunk of lines to call and settle. */
export const chunkQueue: QueueDefinition<ChunkPayload> = {
  name: 'batch-chunk',
  payload: ChunkPayload,
  options: { ...durable, notify: true },
};

/** Writes the output and error files of a `finalizing` batch. */
export const finaliseQueue: QueueDefinition<BatchPayload> = {
  name: 'batch-finalise',
  payload: BatchPayload,
  // While the disk is full the batch stays `finalizing`. It completes when there is space again.
  options: { ...durable, ...withBackoff, notify: true },
};

/** Checks whether a batch has to stop taking results: because of its deadline or a cancel. */
export const closeQueue: QueueDefinition<BatchPayload> = {
  name: 'batch-close',
  payload: BatchPayload,
  options: { ...durable, ...withBackoff, notify: true },
};

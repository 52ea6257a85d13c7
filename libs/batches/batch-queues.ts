import { z } from 'zod';
import type { QueueDefinition } from '#libs/queue/job-queue.ts';

const BatchPayload = z.object({ batch_id: z.string() });
const ChunkPayload = z.object({ batch_id: z.string(), chunk: z.number().int(), generation: z.number().int() });

export type BatchPayload = z.infer<typeof BatchPayload>;
export type ChunkPayload = z.infer<typeof ChunkPayload>;

/**
 * Never give up and never wait: a job that pg-boss drops would leave a batch standing for ever. The defaults (two
 * retries, no heartbeat) do just that. A dead worker is noticed after its heartbeat and one monitor pass.
 */
const durable = {
  retryLimit: 10_000,
  retryDelay: 0,
  heartbeatSeconds: 10,
  expireInSeconds: 86_399, // pg-boss wants less than a day
  retentionSeconds: 60 * 86_400,
  deleteAfterSeconds: 3_600, // the log is the history; a small table is a quick table
};

/** pg-boss waits alike after an error and after a crash, and a crash must be made good within 30 s, heartbeat included. */
const patient = { retryDelay: 1, retryBackoff: true, retryDelayMax: 10 };

/**
 * The `priority` of validate and finalise jobs of small batches. Workers have room for them that large batches, whose jobs
 * take minutes, cannot take; and those have room of their own, so that many small ones do not keep them out either.
 */
export const smallBatchPriority = 1;
/** An input file that is checked in a moment. */
export const smallInputBytes = 1_048_576;

/** Reads the input file, checks every line, and cuts it into chunks. */
export const validateQueue: QueueDefinition<BatchPayload> = {
  name: 'batch-validate',
  payload: BatchPayload,
  // A file whose validation fails for a reason of ours (blob store away) is tried again, but not in a tight loop.
  options: { ...durable, ...patient, notify: true },
};

/** One chunk of lines to call and settle. */
export const chunkQueue: QueueDefinition<ChunkPayload> = {
  name: 'batch-chunk',
  payload: ChunkPayload,
  options: { ...durable, notify: true },
};

/** Writes the output and error file of a batch that takes no more results. */
export const finaliseQueue: QueueDefinition<BatchPayload> = {
  name: 'batch-finalise',
  payload: BatchPayload,
  // A full disk is waited out: the batch stays `finalizing` and completes when there is space again.
  options: { ...durable, ...patient, notify: true },
};

/** Looks whether a batch has a reason to stop taking results: its deadline, or a cancel. */
export const closeQueue: QueueDefinition<BatchPayload> = {
  name: 'batch-close',
  payload: BatchPayload,
  options: { ...durable, ...patient, notify: true },
};

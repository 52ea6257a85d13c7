import { z } from 'zod';
import type { QueueDefinition } from '#libs/queue/job-queue.ts';

const StartPayload = z.object({ job_id: z.string(), attempt: z.number().int() });
const FollowPayload = z.object({
  job_id: z.string(),
  /** What the last wait was allowed to be. */
  wait_ms: z.number(),
  /** Looks still to be made, of those that a command asked for beside the others; null: until the job ends. */
  left: z.number().int().nullable(),
  /** Looks in a row that found no such job at the provider. */
  misses: z.number().int(),
  /** Looks in a row that failed, for whatever reason. */
  failures: z.number().int(),
  /** Looks that found the job's end and put it off, because a result file could not be read. */
  postponed: z.number().int(),
});

export type StartPayload = z.infer<typeof StartPayload>;
export type FollowPayload = z.infer<typeof FollowPayload>;

// As those of batches: a job that pg-boss drops would leave a fine-tuning job standing for ever. What the provider may
// be the cause of is waited out by the handlers; a retry here is for a killed worker and for faults of our own.
const durable = {
  retryLimit: 10_000,
  retryDelay: 1,
  retryBackoff: true,
  retryDelayMax: 60,
  heartbeatSeconds: 10,
  expireInSeconds: 86_399,
  retentionSeconds: 60 * 86_400,
  deleteAfterSeconds: 3_600,
  notify: true,
};

/** Uploads the files of a job and creates it at the provider. */
export const startQueue: QueueDefinition<StartPayload> = {
  name: 'fine-tuning-start',
  payload: StartPayload,
  options: durable,
};

/** Carries out what was requested of a job, and records what is new at the provider; then waits for its next turn. */
export const followQueue: QueueDefinition<FollowPayload> = {
  name: 'fine-tuning-follow',
  payload: FollowPayload,
  options: durable,
};

/** The first of `left` looks, of all when null. */
export const firstLook = (jobId: string, left: number | null): FollowPayload => ({
  job_id: jobId,
  wait_ms: 0,
  left,
  misses: 0,
  failures: 0,
  postponed: 0,
});

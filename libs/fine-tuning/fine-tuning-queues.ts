import { z } from 'zod';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';

const StartPayload = z.object({
  job_id: z.string(),
  attempt: z.number().int(),
  /**
   * An earlier start may have sent everything, although the log does not show it, because its queue job or the log
   * itself was lost.
   */
  may_be_sent: z.boolean().default(false),
});
const FollowPayload = z.object({
  job_id: z.string(),
  /** The maximum of the last wait. */
  wait_ms: z.number(),
  /**
   * How many of the polls that a request added are left; null for the regular polls, which continue until the job ends.
   */
  left: z.number().int().nullable(),
  /** Polls in a row that did not find the job at the provider. */
  misses: z.number().int(),
  /** Polls in a row that failed, for whatever reason. */
  failures: z.number().int(),
  /** Polls that found the job's end but did not record it, because a result file could not be read. */
  postponed: z.number().int(),
});

export type StartPayload = z.infer<typeof StartPayload>;
export type FollowPayload = z.infer<typeof FollowPayload>;

// Like the queues of batches: if pg-boss gave up on a job, its fine-tuning job would never end. The handlers themselves wait
// when the provider fails; the queue's retries are for killed workers and for bugs of our own.
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

/** Sends the requests for a job to the provider, records the news from there, and enqueues the next poll. */
export const followQueue: QueueDefinition<FollowPayload> = {
  name: 'fine-tuning-follow',
  payload: FollowPayload,
  options: durable,
};

/** The payload of the first start of a job, or of one that follows a lost one. */
export const firstStart = (jobId: string, mayBeSent: boolean): StartPayload => ({
  job_id: jobId,
  attempt: 0,
  may_be_sent: mayBeSent,
});

/** The payload of the first of `left` polls, or of the regular polls when null. */
export const firstPoll = (jobId: string, left: number | null): FollowPayload => ({
  job_id: jobId,
  wait_ms: 0,
  left,
  misses: 0,
  failures: 0,
  postponed: 0,
});

import { z } from 'zod';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';

const StartPayload = z.object({
  job_id: z.string(),
  /** 0: no earlier start can have sent anything, unless the log was restored from a backup. */
  attempt: z.number().int(),
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
  policy: 'exclusive' as const,
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
  key: ({ job_id }) => job_id,
  options: durable,
};

/** Sends the requests for a job to the provider, records the news from there, and enqueues the next poll. */
export const followQueue: QueueDefinition<FollowPayload> = {
  name: 'fine-tuning-follow',
  payload: FollowPayload,
  // The chain of regular polls has one key. If the polls of two requests meet, one of them carries on for both.
  key: ({ job_id, left }) => (left === null ? job_id : `${job_id}/${left}`),
  options: durable,
};

/** The payload of the first start of a job. */
export const firstStart = (jobId: string): StartPayload => ({ job_id: jobId, attempt: 0 });

/** The payload of a start that follows a lost one. */
export const repeatedStart = (jobId: string): StartPayload => ({ job_id: jobId, attempt: 1 });

/** The payload of the first of `left` polls, or of the regular polls when null. */
export const firstPoll = (jobId: string, left: number | null): FollowPayload => ({
  job_id: jobId,
  wait_ms: 0,
  left,
  misses: 0,
  failures: 0,
  postponed: 0,
});

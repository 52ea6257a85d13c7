import type { QueueOptions } from 'pg-boss';
import type { z } from 'zod';

/** A queue: its name, the shape of its payload, and pg-boss's options for it. Payloads contain IDs, never data. */
export type QueueDefinition<Payload extends object> = {
  name: string;
  payload: z.ZodType<Payload>;
  /**
   * The key of a job. Enqueueing does nothing while another job with the key is open (policy `exclusive`) or waits
   * (`short`).
   */
  key?: (payload: Payload) => string;
  options: QueueOptions & { notify?: boolean; policy?: 'exclusive' | 'short' };
};

/**
 * A claimed job. `id` and `retryCount` identify the claim: once it is lost, completing the job under it has no effect.
 */
export type ClaimedJob<Payload> = {
  id: string;
  payload: Payload;
  /** Aborted when the claim was lost or the process is stopping. */
  signal: AbortSignal;
  retryCount: number;
  /**
   * Reports the outcome of the handler in a word, for listeners of ended jobs. Only present if there is a listener; the
   * last word counts.
   */
  note?: (outcome: string) => void;
};

import type { QueueOptions } from 'pg-boss';
import type { z } from 'zod';

/** A queue: its name, the shape of its payload, and pg-boss's options for it. Payloads hold ids, never data. */
export type QueueDefinition<Payload extends object> = {
  name: string;
  payload: z.ZodType<Payload>;
  options: QueueOptions & { notify?: boolean; policy?: 'standard' | 'exclusive' | 'short' };
};

/** A claimed job. `id` and `retryCount` name the claim: once it is lost, completing the job under it has no effect. */
export type ClaimedJob<Payload> = {
  id: string;
  payload: Payload;
  /** Aborted when the claim was lost or the process is told to stop. */
  signal: AbortSignal;
  retryCount: number;
  /**
   * Lets another job have the slot of this one, which goes on: only little of it is left. Only jobs in groups have it; beyond
   * a number of such jobs it has no effect. Returns true if a slot is free now that was not before.
   */
  freeSlot?: () => boolean;
  /** Says in a word what the handler did, for those who follow jobs. Only there if somebody does; the last word counts. */
  note?: (outcome: string) => void;
};

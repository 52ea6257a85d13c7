import { z } from 'zod';
import { integer } from '../scalars.ts';

/** When calls with one credential and model stop for a while. Frozen plain data: policies are equal if their JSON is equal. */
export type BreakerPolicy = {
  /** Failures in a row that open the circuit; null: not counted. */
  failuresInRow: number | null;
  /** Share of failures among the last calls (0 to 1) that opens it; null: not counted. */
  failureShare: number | null;
  /** The minimum number of calls for the share to count. */
  callsMin: number;
  cooldownMs: number;
  /** The statuses that are failures; null: 500 and above. A missing answer always is one, 429 never. */
  statuses: readonly number[] | null;
};

/**
 * `cb_config` of a config (CONF-3). An empty object is a good choice: 5 failures in a row, 30 s. With only a
 * percentage, only the percentage counts, as soon as there were 10 calls (`minimum_requests`).
 */
export const CircuitBreakerInput = z
  .strictObject({
    failure_threshold: integer({ min: 1, max: 10_000 }).optional(),
    failure_threshold_percentage: integer({ min: 1, max: 100 }).optional(),
    minimum_requests: integer({ min: 1, max: 1_000 }).default(10),
    cooldown_interval: integer({ min: 30_000, max: 3_600_000 }).default(30_000),
    failure_status_codes: z
      .array(integer({ min: 400, max: 599 }))
      .min(1)
      .max(100)
      .optional(),
  })
  .transform((given): BreakerPolicy => {
    const share = given.failure_threshold_percentage;
    return Object.freeze({
      failuresInRow: given.failure_threshold ?? (share === undefined ? 5 : null),
      failureShare: share === undefined ? null : share / 100,
      callsMin: given.minimum_requests,
      cooldownMs: given.cooldown_interval,
      statuses: given.failure_status_codes ?? null,
    });
  });

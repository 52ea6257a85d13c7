import { GatewayError } from '../errors.ts';
import { createFairPool } from './fair-pool.ts';

/** Limits how much heavy work runs at the same time, so that no workspace keeps the others waiting. */
export type Turns = {
  /**
   * Runs `work` when it is the workspace's turn. Throws rate_limited (`too_many_queries`) if too much of the workspace's
   * work is already waiting, and the reason of `signal` if it aborts first.
   */
  run<Result>(workspaceId: string, work: () => Promise<Result>, signal?: AbortSignal): Promise<Result>;
};

export type TurnLimits = {
  /** How much work this process runs at the same time. A workspace gets half of it, and at least one unit. */
  runningMax: number;
  /** How much work of one workspace can wait. */
  waitingMax: number;
  /**
   * For work that can run for minutes: a workspace gets as many units as it leaves free, so that two workspaces do not
   * hold everything. Short work needs no such reserve, because its units return soon.
   */
  isLong?: boolean;
};

/** `what`: names the work in errors, for example "searches". */
export function createTurns({ runningMax, waitingMax, isLong = false }: TurnLimits, what: string): Turns {
  const ownMax = Math.max(1, Math.floor(runningMax / 2));
  const refusal = (own: number): GatewayError =>
    new GatewayError(
      'rate_limited',
      'too_many_queries',
      `This workspace already has ${own} ${what} waiting, the maximum. Try again when some of them have been answered.`,
      { retryAfterMs: 1_000 },
    );
  const pool = createFairPool({
    units: runningMax,
    mayTake: (held, free) => held < (isLong ? free : ownMax),
    waitingMax: { ofGroup: waitingMax, refusal },
  });
  return {
    async run(workspaceId, work, signal) {
      await pool.take(workspaceId, signal);
      try {
        return await work();
      } finally {
        pool.give(workspaceId);
      }
    },
  };
}

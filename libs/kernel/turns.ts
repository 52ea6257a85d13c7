import { GatewayError } from './errors.ts';
import { createFairPool } from './fair-pool.ts';

/** Limits how much heavy work runs at once, so that no workspace keeps the others waiting. */
export type Turns = {
  /**
   * Runs `work` when it is the workspace's turn. Throws rate_limited (`too_many_queries`) if too much work of the workspace
   * waits already, and the reason of `signal` if it aborts first.
   */
  run<Result>(workspaceId: string, work: () => Promise<Result>, signal?: AbortSignal): Promise<Result>;
};

export type TurnLimits = {
  /** Work of this process that runs at once. A workspace gets half of it, and at least one. */
  runningMax: number;
  /** Work of one workspace that waits. */
  waitingMax: number;
};

/** `what`: names the work in errors, such as "searches". */
export function createTurns({ runningMax, waitingMax }: TurnLimits, what: string): Turns {
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
    mayTake: (held) => held < ownMax,
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

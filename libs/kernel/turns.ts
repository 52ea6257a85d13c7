import { GatewayError } from './errors.ts';

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

/** `what`: names the work in errors, such as "searches". Waiting workspaces take turns, however much each of them wants. */
export function createTurns({ runningMax, waitingMax }: TurnLimits, what: string): Turns {
  const ownMax = Math.max(1, Math.floor(runningMax / 2));
  const running = new Map<string, number>();
  /** In the order of turns: a workspace moves to the end when it gets one. */
  const waiting = new Map<string, Set<() => void>>();
  let runningAll = 0;

  const mayRun = (workspaceId: string): boolean => runningAll < runningMax && (running.get(workspaceId) ?? 0) < ownMax;

  const count = (workspaceId: string, change: 1 | -1): void => {
    runningAll += change;
    const own = (running.get(workspaceId) ?? 0) + change;
    if (own === 0) running.delete(workspaceId);
    else running.set(workspaceId, own);
  };

  const leave = (workspaceId: string, start: () => void): void => {
    const queue = waiting.get(workspaceId);
    queue?.delete(start);
    if (queue?.size === 0) waiting.delete(workspaceId);
  };

  async function take(workspaceId: string, signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted();
    if (mayRun(workspaceId)) return count(workspaceId, 1);
    const queue = waiting.get(workspaceId) ?? new Set();
    if (queue.size >= waitingMax) {
      const message = `This workspace already has ${queue.size} ${what} waiting, the maximum. Try again when some of them have been answered.`;
      throw new GatewayError('rate_limited', 'too_many_queries', message, { retryAfterMs: 1_000 });
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const onAbort = (): void => {
      leave(workspaceId, start);
      reject(signal?.reason as Error);
    };
    const start = (): void => {
      signal?.removeEventListener('abort', onAbort);
      resolve();
    };
    queue.add(start);
    waiting.set(workspaceId, queue);
    signal?.addEventListener('abort', onAbort, { once: true });
    await promise;
  }

  function release(workspaceId: string): void {
    count(workspaceId, -1);
    for (const [next, queue] of waiting) {
      const [start] = queue;
      if (start === undefined || !mayRun(next)) continue;
      count(next, 1);
      leave(next, start);
      if (waiting.delete(next)) waiting.set(next, queue);
      start();
      return;
    }
  }

  return {
    async run(workspaceId, work, signal) {
      await take(workspaceId, signal);
      try {
        return await work();
      } finally {
        release(workspaceId);
      }
    },
  };
}

import { createBackgroundLoop } from './background-loop.ts';
import type { Part } from './lifecycle.ts';
import type { Logger } from './logging/logger.ts';

type Turn = { id: string; workspaceId: string };

const pollMs = 1_000;
/** How long turns can continue after the stop. */
const stopWaitMs = 5_000;

/**
 * Looks every second for receivers with work, and takes turns with them in the background: one at a time for each receiver,
 * `turnsMax` in total and `workspaceTurnsMax` for a workspace. A receiver that does not answer therefore delays only
 * itself. `find` returns receivers in random order. `take` must have an end, and throws if its work is repeated.
 */
export function createTurnsByOwner(deps: {
  name: string;
  turnsMax: number;
  workspaceTurnsMax: number;
  find: () => Promise<readonly Turn[]>;
  take: (id: string, signal: AbortSignal) => Promise<void>;
  logger: Logger;
}): Part {
  const { name, turnsMax, workspaceTurnsMax, find, take, logger } = deps;
  const stopping = new AbortController();
  const turns = new Map<string, { workspaceId: string; ended: Promise<void> }>();

  const loop = createBackgroundLoop({
    name,
    periodMs: pollMs,
    logger,
    async run() {
      for (const { id, workspaceId } of await find()) {
        const ofWorkspace = turns.values().filter((turn) => turn.workspaceId === workspaceId);
        const isFull = turns.size >= turnsMax || ofWorkspace.toArray().length >= workspaceTurnsMax;
        if (!isFull && !turns.has(id)) turns.set(id, { workspaceId, ended: takeTurn(id) });
      }
    },
  });

  async function takeTurn(id: string): Promise<void> {
    try {
      await take(id, stopping.signal);
      void loop.wake();
    } catch (error) {
      if (!stopping.signal.aborted) logger.warn({ err: error, loop: name, id }, 'a turn failed and is repeated');
    } finally {
      turns.delete(id);
    }
  }

  return {
    name,
    start: loop.start,
    async stop() {
      await loop.stop();
      const timer = setTimeout(() => stopping.abort(), stopWaitMs);
      await Promise.all(Array.from(turns.values(), ({ ended }) => ended));
      clearTimeout(timer);
    },
  };
}

import { setTimeout as wait } from 'node:timers/promises';
import { ApiError, UnreachableError } from '../server/cli-error.ts';
import { note } from '../terminal/output.ts';

const firstWaitMs = 500;
const longestWaitMs = 15_000;

/** What a command that follows a server does while that is away: it says so once, waits longer each time, and goes on. */
export function createAway() {
  let waitMs = firstWaitMs;
  let isAway = false;
  let wasThere = false;
  return {
    /** Whether an error says that a server that was there is away, rather than that it refuses, or that its address is wrong. */
    isExpected(error: unknown): boolean {
      if (!wasThere) return false;
      const { status } = error instanceof ApiError ? error : { status: 0 };
      if (!(error instanceof UnreachableError) && status < 500 && status !== 429) return false;
      if (!isAway) note('The server is away. Waiting for it.');
      isAway = true;
      return true;
    },
    async pause(signal: AbortSignal): Promise<void> {
      await wait(waitMs, undefined, { signal });
      waitMs = Math.min(waitMs * 2, longestWaitMs);
    },
    /** `what` ends the sentence that says so. */
    isBack(what: string): void {
      if (isAway) note(`The server is back; ${what}.`);
      isAway = false;
      wasThere = true;
      waitMs = firstWaitMs;
    },
  };
}

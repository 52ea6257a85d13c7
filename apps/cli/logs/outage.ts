import { setTimeout as wait } from 'node:timers/promises';
import { ApiError, UnreachableError } from '../server/cli-error.ts';
import { note } from '../terminal/output.ts';

const firstWaitMs = 500;
const longestWaitMs = 15_000;

/** Lets a command that follows a server survive its restarts: reports an outage once, and retries at growing intervals. */
export function createOutage() {
  let waitMs = firstWaitMs;
  let isUnavailable = false;
  let hasAnswered = false;
  return {
    /** Whether an error means that a server that has answered before is unavailable; false for refusals and wrong addresses. */
    isExpected(error: unknown): boolean {
      if (!hasAnswered) return false;
      const { status } = error instanceof ApiError ? error : { status: 0 };
      if (!(error instanceof UnreachableError) && status < 500 && status !== 429) return false;
      if (!isUnavailable) note('The server is unavailable. Waiting for it.');
      isUnavailable = true;
      return true;
    },
    async pause(signal: AbortSignal): Promise<void> {
      await wait(waitMs, undefined, { signal });
      waitMs = Math.min(waitMs * 2, longestWaitMs);
    },
    /** `what` completes the message. */
    isOver(what: string): void {
      if (isUnavailable) note(`The server is available again; ${what}.`);
      isUnavailable = false;
      hasAnswered = true;
      waitMs = firstWaitMs;
    },
  };
}

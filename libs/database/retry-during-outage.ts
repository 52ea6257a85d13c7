import { sleep } from '#libs/kernel/sleep.ts';
import { isTransient } from './database-error.ts';

type RetryOptions = {
  /** How long to wait before the next attempt; `failures` counts from 1. undefined gives up. */
  delayMs: number | ((failures: number, error: unknown) => number | undefined);
  /** Which errors are worth a retry. Default `isTransient`. */
  isOutage?: (error: unknown) => boolean;
  /** Ends the wait: after it has aborted, `work` is attempted one last time. */
  signal?: AbortSignal | undefined;
  /** Waits before the next attempt. Default: a sleep that the signal ends. */
  wait?: (delayMs: number) => Promise<void>;
  /** Called before each wait, to log it. */
  onRetry?: (error: unknown) => void;
};

/**
 * Runs `work` until it succeeds, repeating it each time it fails because of the database. `work` must be repeatable as
 * a whole: its first attempt may have been committed. Throws the last error when it is of another kind, when `delayMs`
 * gives up, or once the signal has aborted.
 */
export async function retryDuringOutage<Result>(
  work: () => Promise<Result> | Result,
  { delayMs, isOutage = isTransient, signal, wait = (ms) => sleep(ms, signal), onRetry }: RetryOptions,
): Promise<Result> {
  for (let failures = 1; ; failures += 1) {
    try {
      return await work();
    } catch (error) {
      if (signal?.aborted === true || !isOutage(error)) throw error;
      const waitMs = typeof delayMs === 'number' ? delayMs : delayMs(failures, error);
      if (waitMs === undefined) throw error;
      onRetry?.(error);
      await wait(waitMs);
    }
  }
}

import { setTimeout as delay } from 'node:timers/promises';

// A timer that is set for longer fires at once.
const timerMsMax = 2_147_483_647;

/** Waits `ms` milliseconds, however many; returns early, without throwing, when the signal aborts. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  try {
    for (let left = ms; left > 0 || left === ms; left -= timerMsMax) {
      await delay(Math.min(left, timerMsMax), undefined, signal ? { signal } : undefined);
    }
  } catch {
    // Aborted: the caller looks at its own signal.
  }
}

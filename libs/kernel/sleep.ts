import { setTimeout as delay } from 'node:timers/promises';

// A timer set for longer than this fires immediately.
const timerMsMax = 2_147_483_647;

/** Waits `ms` milliseconds, however many. Returns early, without throwing, when the signal aborts. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  try {
    for (let left = ms; left > 0 || left === ms; left -= timerMsMax) {
      await delay(Math.min(left, timerMsMax), undefined, signal ? { signal } : undefined);
    }
  } catch {
    // Aborted. The caller checks its signal.
  }
}

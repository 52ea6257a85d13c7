import { setTimeout as delay } from 'node:timers/promises';

// A timer set for longer than this fires immediately.
const timerMsMax = 2_147_483_647;

/**
 * Waits `ms` milliseconds, however many, and never less: a timer counts in whole milliseconds and can fire up to one early. A
 * call that came back so early was refused, because its rate limit had not passed. A negative `ms` counts as 0. Returns early,
 * without throwing, when the signal aborts.
 */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  const end = performance.now() + ms;
  try {
    for (let left = ms; left > 0 || left === ms; left = end - performance.now()) {
      await delay(Math.min(Math.max(0, left), timerMsMax), undefined, signal ? { signal } : undefined);
    }
  } catch {
    // Aborted. The caller checks its signal.
  }
}

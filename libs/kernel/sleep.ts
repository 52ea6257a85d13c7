import { setTimeout as delay } from 'node:timers/promises';

/** Waits `ms` milliseconds; returns early, without throwing, when the signal aborts. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  try {
    await delay(ms, undefined, signal ? { signal } : undefined);
  } catch {
    // Aborted: the caller looks at its own signal.
  }
}

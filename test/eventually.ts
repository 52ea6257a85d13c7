import { inspect } from 'node:util';
import { sleep } from '#libs/kernel/sleep.ts';

const firstPauseMs = 20;
const longestPauseMs = 250;

/**
 * Reads again and again until the value is as expected. Rejects with the last value after `timeoutMs`. Without
 * `intervalMs` the pauses grow with the wait, to a tenth of it. Otherwise many tests that wait at the same time would
 * keep a slow machine busy with their polls alone.
 */
export async function eventually<Value>(
  read: () => Promise<Value> | Value,
  isAwaited: (value: Value) => boolean,
  { timeoutMs = 30_000, intervalMs }: { timeoutMs?: number; intervalMs?: number } = {},
): Promise<Value> {
  const startedAt = performance.now();
  for (;;) {
    const value = await read();
    if (isAwaited(value)) return value;
    const waitedMs = performance.now() - startedAt;
    if (waitedMs > timeoutMs) {
      throw new Error(`still not so after ${timeoutMs} ms: ${isAwaited.toString()}\nlast value: ${inspect(value)}`);
    }
    await sleep(intervalMs ?? Math.min(longestPauseMs, Math.max(firstPauseMs, waitedMs / 10)));
  }
}

import { inspect } from 'node:util';
import { sleep } from '#libs/kernel/sleep.ts';

/** Reads again and again until the value is as awaited; rejects with the last one after `timeoutMs`. */
export async function eventually<Value>(
  read: () => Promise<Value> | Value,
  isAwaited: (value: Value) => boolean,
  { timeoutMs = 30_000, intervalMs = 20 } = {},
): Promise<Value> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const value = await read();
    if (isAwaited(value)) return value;
    if (performance.now() > deadline) {
      throw new Error(`still not so after ${timeoutMs} ms: ${isAwaited.toString()}\nlast value: ${inspect(value)}`);
    }
    await sleep(intervalMs);
  }
}

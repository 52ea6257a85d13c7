import { setTimeout as delay } from 'node:timers/promises';

export type BoundedRead<Value> = () => Promise<{
  /** The last one that was read; undefined before the first. */
  value: Value | undefined;
  /** It comes from the read that was waited for, not from an earlier one. */
  isCurrent: boolean;
}>;

/**
 * A read of something that may hang, for people and probes who may ask as often as they like: one at a time, at most one
 * every `everyMs`, and nobody waits for it longer than `waitMs`. Never rejects.
 */
export function createBoundedRead<Value>(
  read: () => Promise<Value>,
  {
    everyMs,
    waitMs,
    monotonicMs = () => performance.now(),
  }: {
    everyMs: number;
    waitMs: number;
    monotonicMs?: () => number;
  },
): BoundedRead<Value> {
  let value: Value | undefined;
  let isCurrent = false;
  let begunMs = Number.NEGATIVE_INFINITY;
  let reading: Promise<void> | undefined;
  let waiting: Promise<void> = Promise.resolve();

  const begin = (): void => {
    begunMs = monotonicMs();
    const over = new AbortController();
    isCurrent = false;
    reading = read()
      .then(
        (found) => {
          value = found;
          isCurrent = true;
        },
        () => {}, // told by isCurrent
      )
      .finally(() => {
        reading = undefined;
        over.abort();
      });
    // One wait for all who ask: those who come late do not wait again for what hangs.
    const late = delay(waitMs, undefined, { signal: over.signal, ref: false }).catch(() => {});
    waiting = Promise.race([reading, late]);
  };

  return async () => {
    if (reading === undefined && monotonicMs() - begunMs >= everyMs) begin();
    await waiting;
    return { value, isCurrent };
  };
}

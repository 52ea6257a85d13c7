import { setTimeout as delay } from 'node:timers/promises';

export type BoundedRead<Value> = () => Promise<{
  /** The last value that was read; undefined before the first. */
  value: Value | undefined;
  /** The value comes from the current read and not from an earlier one. */
  isCurrent: boolean;
}>;

/**
 * Bounds a read that may hang and may be requested very often: one read at a time, at most one per `everyMs`, and a caller
 * waits at most `waitMs` for it. Never rejects.
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
        () => {}, // isCurrent stays false
      )
      .finally(() => {
        reading = undefined;
        over.abort();
      });
    // All callers share one wait, so that later ones do not wait for a hanging read again.
    const late = delay(waitMs, undefined, { signal: over.signal, ref: false }).catch(() => {});
    waiting = Promise.race([reading, late]);
  };

  return async () => {
    if (reading === undefined && monotonicMs() - begunMs >= everyMs) begin();
    await waiting;
    return { value, isCurrent };
  };
}

import { untilAborted } from '#libs/kernel/until-aborted.ts';

export type BoundedRead<Value> = () => Promise<{
  /** The last value that was read; undefined before the first read. */
  value: Value | undefined;
  /** Whether the value comes from the current read instead of an earlier one. */
  isCurrent: boolean;
}>;

/**
 * Limits a read that can hang and can be requested very often: one read at a time, at most one per `everyMs`, and a caller
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
    isCurrent = false;
    reading = read()
      .then(
        (found) => {
          value = found;
          isCurrent = true;
        },
        () => {}, // `isCurrent` stays false.
      )
      .finally(() => {
        reading = undefined;
      });
    // All callers share one wait, so that later ones do not wait for a hanging read again.
    waiting = untilAborted(reading, AbortSignal.timeout(waitMs), () => {});
  };

  return async () => {
    if (reading === undefined && monotonicMs() - begunMs >= everyMs) begin();
    await waiting;
    return { value, isCurrent };
  };
}

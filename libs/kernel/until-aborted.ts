/**
 * Waits for `work`, but only until the signal aborts. In that case it resolves with the result of `late`, or rejects
 * with its error. `work` itself continues, and its later result or error is ignored. For a time limit, pass
 * `AbortSignal.timeout(ms)`.
 */
export async function untilAborted<Result, Late>(
  work: Promise<Result>,
  signal: AbortSignal,
  late: () => Late,
): Promise<Result | Late> {
  const { promise: aborted, resolve } = Promise.withResolvers<null>();
  const onAbort = (): void => resolve(null);
  signal.addEventListener('abort', onAbort, { once: true });
  if (signal.aborted) onAbort();
  try {
    const first = await Promise.race([work.then((result) => ({ result })), aborted]);
    return first === null ? late() : first.result;
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

import { z } from 'zod';
import { sleep } from '#libs/kernel/sleep.ts';

const Answer = z.looseObject({
  status: z.string().optional(),
  checks: z.looseObject({ workers: z.string().optional() }).optional(),
  error: z.looseObject({ message: z.string() }).optional(),
});

type Options = {
  /** The API, without a path. */
  url: string;
  /** When it aborts, its reason is thrown. */
  signal: AbortSignal;
  /** Returns another missing condition, if there is one; called once the API is ready. */
  alsoMissing?: () => string | undefined;
  /**
   * Called with the missing condition, every `noticeMs`: a large migration or a long recovery of the database takes
   * time.
   */
  onWaiting: (why: string) => void;
  intervalMs?: number;
  noticeMs?: number;
};

/**
 * Returns when GET /health/ready reports that the API is ready and a worker is connected, so that a batch would run
 * immediately, and `alsoMissing` returns nothing: a worker connects before all of its parts have started, and the connected
 * one can belong to another start.
 */
export async function waitUntilReady({
  url,
  signal,
  alsoMissing = () => undefined,
  onWaiting,
  intervalMs = 100,
  noticeMs = 10_000,
}: Options): Promise<void> {
  let noticeAt = performance.now() + noticeMs;
  for (;;) {
    const missing = (await whatIsMissing(url, signal)) ?? alsoMissing();
    signal.throwIfAborted();
    if (missing === undefined) return;
    if (performance.now() >= noticeAt) {
      noticeAt = performance.now() + noticeMs;
      onWaiting(missing);
    }
    await sleep(intervalMs, signal);
  }
}

async function whatIsMissing(url: string, signal: AbortSignal): Promise<string | undefined> {
  try {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(5_000)]);
    const response = await fetch(`${url}/health/ready`, { signal: limit });
    const { status, checks, error } = Answer.parse(await response.json());
    if (status !== 'ready') return error?.message ?? 'the API is not ready';
    return checks?.workers === 'connected' ? undefined : 'no worker is connected';
  } catch {
    return 'the API is not responding yet';
  }
}

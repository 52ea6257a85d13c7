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
  /** Its reason is thrown when it aborts. */
  signal: AbortSignal;
  /** What else is missing, when something is; asked after the API has said yes. */
  alsoMissing?: () => string | undefined;
  /** Told what is missing, every `noticeMs`: a large migration or a long replay takes its time. */
  onWaiting: (why: string) => void;
  intervalMs?: number;
  noticeMs?: number;
};

/**
 * Returns when GET /health/ready says yes and names a connected worker, so that a batch would run at once, and when
 * nothing else is missing: a worker is connected before all of it is started, and it may be one of another start.
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
    return 'the API does not answer yet';
  }
}

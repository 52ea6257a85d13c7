import { AsyncLocalStorage } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Part } from './lifecycle.ts';
import type { Logger } from './logging/logger.ts';
import { untilAborted } from './until-aborted.ts';

type Options = {
  /** Names the part, and the loop in log lines and metrics. */
  name: string;
  /** The time from the end of a run to the start of the next one. */
  periodMs: number;
  /**
   * Does the work. `signal` aborts when the loop stops. Returns `idle` if there was no work: such a run does not prove that
   * an outage is over.
   */
  run: (signal: AbortSignal) => unknown;
  logger: Logger;
};

export type BackgroundLoop = Pick<Part, 'name'> & {
  start: () => void;
  stop: () => Promise<void>;
  /**
   * Starts a run soon, even before `start`, and resolves when that run has ended. The run begins after this call, so it sees
   * everything that the caller did before. Concurrent callers share it. Never rejects; has no effect after `stop`.
   */
  wake: () => Promise<void>;
  /** The error of the last run; undefined if it succeeded. */
  error: () => unknown;
  /** When a run last ended without a failure (monotonic). Until then, when the loop was created. */
  succeededMs: () => number;
};

/** How long a run can continue after the loop was stopped. */
const stopWaitMs = 10_000;

const started = new Set<BackgroundLoop>();

/** The states of this process's loops, each with its name. */
export function loopStates(): { name: string; isFailing: boolean; successAgeSeconds: number }[] {
  return Array.from(started, ({ name, error, succeededMs }) => ({
    name,
    isFailing: error() !== undefined,
    successAgeSeconds: (performance.now() - succeededMs()) / 1_000,
  }));
}

/**
 * Repeats work in the background, from `start` on. Runs never overlap. A failed run is repeated like any other; the first
 * failure of an outage and its end are logged. `stop` waits for the current run.
 */
export function createBackgroundLoop({ name, periodMs, run, logger }: Options): BackgroundLoop {
  const stopping = new AbortController();
  let running: Promise<void> | undefined;
  let next: Promise<void> | undefined;
  let timer: NodeJS.Timeout | undefined;
  let error: unknown;
  let succeededMs = performance.now();
  // The loop's runs belong to no request and no workspace, no matter which one wakes it.
  const inOwnContext = AsyncLocalStorage.snapshot();

  async function runOnce(): Promise<void> {
    clearTimeout(timer);
    try {
      if ((await run(stopping.signal)) !== 'idle') {
        if (error !== undefined) logger.info({ loop: name }, 'background loop works again');
        error = undefined;
      }
      succeededMs = performance.now();
    } catch (thrown) {
      if (error === undefined && !stopping.signal.aborted)
        logger.warn({ err: thrown, loop: name }, 'background loop fails and is retried');
      error = thrown;
    }
    if (started.has(loop)) timer = setTimeout(() => void loop.wake(), periodMs).unref();
  }

  async function runNext(): Promise<void> {
    // All callers that wake the loop in the same turn share a run.
    await (running ?? nextTurn());
    next = undefined;
    if (stopping.signal.aborted) return;
    const ended = Promise.withResolvers<void>();
    running = ended.promise;
    await runOnce();
    running = undefined;
    ended.resolve();
  }

  const loop: BackgroundLoop = {
    name,
    start() {
      started.add(loop);
      void loop.wake();
    },
    async stop() {
      started.delete(loop);
      stopping.abort();
      clearTimeout(timer);
      await untilAborted(Promise.all([running, next]), AbortSignal.timeout(stopWaitMs), () =>
        logger.warn({ loop: name }, 'background loop did not stop in time'),
      );
    },
    wake() {
      if (stopping.signal.aborted) return Promise.resolve();
      next ??= inOwnContext(runNext);
      return next;
    },
    error: () => error,
    succeededMs: () => succeededMs,
  };
  return loop;
}

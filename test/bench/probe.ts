import { performance } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';

/** Repeats a call, with a pause after each. `stop` returns how long each took in milliseconds, ascending. */
export function startProbe(call: () => Promise<unknown>, pauseMs: number): { stop(): Promise<number[]> } {
  const latencies: number[] = [];
  const stopped = new AbortController();
  const running = (async () => {
    while (!stopped.signal.aborted) {
      const startedMs = performance.now();
      await call();
      latencies.push(performance.now() - startedMs);
      await delay(pauseMs);
    }
  })();
  return {
    async stop() {
      stopped.abort();
      await running;
      return latencies.toSorted((left, right) => left - right);
    },
  };
}

import { collectDefaultMetrics, Registry } from 'prom-client';
import { FixedHistogram, type HistogramSeries } from '#libs/kernel/fixed-histogram.ts';
import type { RequestEnd } from './create-http-app.ts';

export type HttpMetrics = {
  /** The registry for the metrics of other parts of the process. */
  readonly registry: Registry;
  /** For `createHttpApp({ observe })`. */
  observeRequest: (end: RequestEnd) => void;
  /** The text of `GET /metrics` and its content type. */
  renderMetrics: () => Promise<{ contentType: string; body: string }>;
};

// In seconds, from a cache hit to the longest wait for a model.
const durationBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];

/**
 * The metrics of one process: request durations by method, route template and status class, and the default metrics of
 * prom-client (like `nodejs_eventloop_lag_p99_seconds`). The label is never the raw path, which has no bound.
 */
export function createMetrics(monotonicMs = (): number => performance.now()): HttpMetrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const duration = new FixedHistogram<'method' | 'route' | 'status'>({
    name: 'sluice_http_request_duration_seconds',
    help: 'Seconds from the arrival of the request headers to the end of the response, by method, route and status class.',
    buckets: durationBuckets,
  });
  duration.registerIn(registry);
  // One series per route template, method and status class, of which there are few.
  const byRoute = new Map<string, Map<string, HistogramSeries[]>>();
  return {
    registry,
    observeRequest: ({ method, route, status, durationMs }) => {
      const known = knownMethods.has(method) ? method : 'other';
      const statusClass = Math.floor(status / 100);
      let byMethod = byRoute.get(route);
      if (byMethod === undefined) byRoute.set(route, (byMethod = new Map()));
      let byClass = byMethod.get(known);
      if (byClass === undefined) byMethod.set(known, (byClass = []));
      byClass[statusClass] ??= duration.addSeries({ method: known, route, status: `${statusClass}xx` });
      byClass[statusClass].observe(durationMs / 1_000);
    },
    renderMetrics: paced(monotonicMs, async () => ({
      contentType: registry.contentType,
      body: await registry.metrics(),
    })),
  };
}

/** Rendering takes some milliseconds of the main thread, and anyone can request it. */
const rendersPerSecondMax = 10;

/** After this many results within a second, all callers get the last one until the second is over. */
export function paced<Result>(monotonicMs: () => number, make: () => Promise<Result>): () => Promise<Result> {
  let startMs = Number.NEGATIVE_INFINITY;
  let made = 0;
  let last: Promise<Result> | undefined;
  return () => {
    const nowMs = monotonicMs();
    if (nowMs - startMs >= 1_000) [startMs, made] = [nowMs, 0];
    if (last !== undefined && made >= rendersPerSecondMax) return last;
    made += 1;
    return (last = make());
  };
}

const knownMethods: ReadonlySet<string> = new Set(['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH']);

import { performance } from 'node:perf_hooks';
import { createBenchClient } from './bench-client.ts';
import type { LoadFigures, LoadOrder } from './load.ts';
import { percentile } from './statistics.ts';

// The load generator, a separate process. It takes orders from its parent one at a time and answers with figures.

type Client = ReturnType<typeof createBenchClient>;

const clients = new Map<string, Client>();

/** One client for each target and request, used in all rounds, so that connections are kept as by real clients. */
function clientFor(order: LoadOrder): Client {
  const key = JSON.stringify([order.origin, order.path, order.headers, order.body]);
  let client = clients.get(key);
  if (!client) clients.set(key, (client = createBenchClient(order)));
  return client;
}

type Result = { latencies: number[]; contentMs: number[]; failures: number };

function send(client: Client, result: Result, onEnd: () => void): void {
  const startedMs = performance.now();
  client.send((status, contentAtMs) => {
    if (status === 200) result.latencies.push(performance.now() - startedMs);
    else result.failures += 1;
    if (contentAtMs > 0) result.contentMs.push(contentAtMs - startedMs);
    onEnd();
  });
}

/** Starts a new request as soon as one has ended, with `concurrency` at a time. */
function runClosed(order: LoadOrder, seconds: number): Promise<Result> {
  const client = clientFor(order);
  const result: Result = { latencies: [], contentMs: [], failures: 0 };
  const endMs = performance.now() + seconds * 1_000;
  return new Promise((resolve) => {
    let open = order.concurrency;
    const next = (): void => {
      if (performance.now() < endMs) send(client, result, next);
      else if ((open -= 1) === 0) resolve(result);
    };
    for (let index = 0; index < order.concurrency; index += 1) next();
  });
}

/** Sends requests at a fixed rate, whether or not the earlier ones have been answered. */
function runOpen(order: LoadOrder, seconds: number, perSecond: number): Promise<Result> {
  const client = clientFor(order);
  const result: Result = { latencies: [], contentMs: [], failures: 0 };
  const total = Math.round(seconds * perSecond);
  const startedMs = performance.now();
  let sent = 0;
  let ended = 0;
  return new Promise((resolve) => {
    const timer = setInterval(() => {
      const due = Math.min(total, Math.floor(((performance.now() - startedMs) / 1_000) * perSecond));
      for (; sent < due; sent += 1) {
        send(client, result, () => {
          ended += 1;
          if (ended === total) resolve(result);
        });
      }
      if (sent === total) clearInterval(timer);
    }, 1);
  });
}

const run = (order: LoadOrder, seconds: number): Promise<Result> =>
  order.perSecond === null ? runClosed(order, seconds) : runOpen(order, seconds, order.perSecond);

process.on('message', (order: LoadOrder) => {
  void (async () => {
    if (order.warmUpSeconds > 0) await run(order, order.warmUpSeconds);
    process.send?.('warm');
    const startedMs = performance.now();
    const { latencies, contentMs, failures } = await run(order, order.seconds);
    const seconds = (performance.now() - startedMs) / 1_000;
    const sorted = Float64Array.from(latencies).sort();
    const contents = Float64Array.from(contentMs).sort();
    const figures: LoadFigures = {
      perSecond: latencies.length / seconds,
      requests: latencies.length,
      failures,
      p50Ms: percentile(sorted, 0.5),
      p99Ms: percentile(sorted, 0.99),
      contentP50Ms: contents.length === 0 ? 0 : percentile(contents, 0.5),
    };
    process.send?.(figures);
  })();
});
process.on('disconnect', () => process.exit(0));

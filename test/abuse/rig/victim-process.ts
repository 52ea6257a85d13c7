import { performance } from 'node:perf_hooks';
import { createBenchClient } from '#test/bench/bench-client.ts';
import { createSluiceClient } from '#test/bench/sluice-client.ts';
import { percentile } from '#test/bench/statistics.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { VictimFigures, VictimOrder } from './victim.ts';

// The other workspace. It is a separate process, so that no attack delays its timers. It takes orders from its parent
// one at a time, makes live calls at a steady rate and small batches one after the other, and answers with figures.

type Figures = { latencies: number[]; sent: number; failures: string[] };

const pollMs = 20;
const liveClients = new Map<string, ReturnType<typeof createBenchClient>>();

function liveClient({ origin, key }: VictimOrder): ReturnType<typeof createBenchClient> {
  const known = liveClients.get(origin);
  if (known !== undefined) return known;
  const client = createBenchClient({
    origin,
    path: '/v1/chat/completions',
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      'x-gateway-virtual-key': 'simulator',
    },
    body: JSON.stringify({ model: 'sim-small', messages: [{ role: 'user', content: 'Say hello.' }], max_tokens: 16 }),
  });
  liveClients.set(origin, client);
  return client;
}

/**
 * Makes live calls at fixed times, whether or not the earlier ones have been answered. Each is measured from its
 * planned time, so that a stall counts for all the calls that it delayed.
 */
async function callLive(order: VictimOrder): Promise<Figures> {
  const client = liveClient(order);
  const figures: Figures = { latencies: [], sent: 0, failures: [] };
  const total = Math.round(order.seconds * order.perSecond);
  const startedMs = performance.now();
  const calls: Promise<void>[] = [];
  for (let call = 0; call < total; call += 1) {
    const dueMs = startedMs + (call / order.perSecond) * 1_000;
    const early = dueMs - performance.now();
    if (early > 0) await sleep(early);
    figures.sent += 1;
    calls.push(
      new Promise((resolve) => {
        let isOver = false;
        const end = (failure: string | null): void => {
          if (isOver) return;
          isOver = true;
          clearTimeout(patience);
          const latencyMs = performance.now() - dueMs;
          if (failure !== null) figures.failures.push(failure);
          // An immediate refusal would make the figures look better, but one that was waited for belongs to them.
          if (failure === null || latencyMs >= order.patienceMs) figures.latencies.push(latencyMs);
          resolve();
        };
        const patience = setTimeout(() => end('a live call had no answer'), order.patienceMs);
        client.send((status) => {
          if (status === 200) end(null);
          else end(status === null ? 'a live call was cut off' : `a live call was answered ${status}`);
        });
      }),
    );
  }
  await Promise.all(calls);
  return figures;
}

/** Batches of ten lines, each measured from its upload to its end. If one does not end, no further one is started. */
async function runBatches(order: VictimOrder): Promise<Figures> {
  const { batchFile, batchBytes, batchPatienceMs } = order;
  const client = createSluiceClient(order.origin, order.key);
  const figures: Figures = { latencies: [], sent: 0, failures: [] };
  const endMs = performance.now() + order.seconds * 1_000;
  while (figures.sent === 0 || performance.now() < endMs) {
    const startedMs = performance.now();
    const given = AbortSignal.timeout(batchPatienceMs);
    figures.sent += 1;
    let stage = 'uploaded';
    const run = async (): Promise<void> => {
      const fileId = await client.upload(batchFile, batchBytes);
      stage = 'created';
      let batch = await client.createBatch(fileId);
      stage = 'ended';
      while (!finalStates.has(batch.status) && !given.aborted) {
        await sleep(pollMs, given);
        batch = await client.retrieveBatch(batch.id);
      }
      if (given.aborted) throw new Error(`${batch.request_counts.completed} of its lines were`);
      if (batch.request_counts.completed !== 10) throw new Error(`it is ${batch.status}`);
    };
    const outOfPatience = new Promise<never>((_resolve, reject) => {
      given.addEventListener('abort', () => setTimeout(() => reject(new Error('no answer')), 100), { once: true });
    });
    const failure = await Promise.race([run(), outOfPatience]).then(
      () => null,
      (error: unknown) => (error instanceof Error ? error.message : String(error)),
    );
    const latencyMs = performance.now() - startedMs;
    if (failure !== null) figures.failures.push(`a batch was not ${stage}: ${failure.slice(0, 120)}`);
    if (failure === null || given.aborted) figures.latencies.push(latencyMs);
    if (given.aborted) break;
    if (failure !== null) await sleep(200);
  }
  return figures;
}

const finalStates = new Set(['completed', 'failed', 'cancelled', 'expired']);

function describe({ latencies, sent, failures }: Figures): VictimFigures['live'] {
  const sorted = Float64Array.from(latencies).sort();
  const reasons: Record<string, number> = {};
  for (const failure of failures) reasons[failure] = (reasons[failure] ?? 0) + 1;
  const at = (share: number): number | null => (sorted.length === 0 ? null : percentile(sorted, share));
  return { sent, failed: failures.length, reasons, p50Ms: at(0.5), p99Ms: at(0.99), worstMs: at(1) };
}

process.on('message', (order: VictimOrder) => {
  void (async () => {
    const [live, batches] = await Promise.all([callLive(order), runBatches(order)]);
    const figures: VictimFigures = { live: describe(live), batches: describe(batches) };
    process.send?.(figures);
  })();
});
process.on('disconnect', () => process.exit(0));

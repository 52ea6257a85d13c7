import { Counter, Gauge, type Registry } from 'prom-client';
import type { LineWaits } from '#libs/batches/lines/line-waits.ts';
import type { PermitPool } from '#libs/batches/lines/permit-pool.ts';
import { createMetrics } from '#libs/http/metrics.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createReadinessCheck, type Phase } from '../platform/operations/check-readiness.ts';
import type { Platform } from '../platform/platform.ts';
import { registerPlatformMetrics } from '../platform/operations/metrics.ts';
import { createOperationsListener } from '../platform/operations/operations-listener.ts';

export type WorkerOperations = {
  /** Opens the port. It is the first part to start, so that a liveness probe passes while the worker waits for its database. */
  listener: Part;
  /** Reports the worker as ready. It is the last part to start. */
  readiness: Part;
  /** Counts a line whose call has ended. */
  countLine: (outcome: 'succeeded' | 'failed') => void;
  /** Counts a chunk that was claimed before. */
  countRedelivery: () => void;
  /** Counts a committed group of results. */
  countSettle: (results: number) => void;
};

/** The worker's /health and /metrics, if a port is configured. The worker has no other routes. */
export function createWorkerOperations(deps: {
  platform: Platform;
  permits: PermitPool;
  /** The budget for the byte ranges of chunks. */
  ranges: MemoryBudget;
  chunksActive: () => number;
  waits: Pick<LineWaits, 'counts'>;
  logger: Logger;
  port: number | undefined;
  host: string;
}): WorkerOperations {
  const { platform, permits, ranges, chunksActive, waits, logger, port, host } = deps;
  const metrics = createMetrics();
  const registers = [metrics.registry];
  registerPlatformMetrics(metrics.registry, platform);
  const redeliveries = new Counter({
    name: 'sluice_batch_redeliveries_total',
    help: 'Chunks that this worker took over after their claim was lost, for example because a worker was killed.',
    registers,
  });
  const settles = new Counter({
    name: 'sluice_batch_settles_total',
    help: 'Transactions in which this worker committed results of batch lines.',
    registers,
  });
  const settled = new Counter({
    name: 'sluice_batch_settled_lines_total',
    help: 'Results of batch lines that this worker wrote, including some that were already stored.',
    registers,
  });
  const inFlight: Gauge = new Gauge({
    name: 'sluice_worker_in_flight',
    help: 'Batch work in this worker: calls in flight, and lines waiting for a permit.',
    labelNames: ['what'],
    registers,
    collect() {
      const { calls, waiting } = permits.inFlight();
      inFlight.set({ what: 'calls' }, calls);
      inFlight.set({ what: 'waiting' }, waiting);
    },
  });
  const chunks: Gauge = new Gauge({
    name: 'sluice_worker_chunks',
    help: 'Chunks in this worker: active, or waiting for memory for their range of the input file.',
    labelNames: ['what'],
    registers,
    collect() {
      chunks.set({ what: 'active' }, chunksActive());
      chunks.set({ what: 'waiting' }, ranges.stats().waiting);
    },
  });
  const rangeBytes: Gauge = new Gauge({
    name: 'sluice_worker_ranges_bytes',
    help: 'Bytes of input files that this worker holds for its chunks.',
    registers,
    collect: () => rangeBytes.set(ranges.stats().heldBytes),
  });
  const waiting: Gauge = new Gauge({
    name: 'sluice_batch_lines_waiting',
    help: 'Number of batch lines in this worker that wait without a permit, by reason.',
    labelNames: ['reason'],
    registers,
    collect() {
      for (const [reason, lines] of Object.entries(waits.counts())) waiting.set({ reason }, lines);
    },
  });
  let phase: Phase = 'starting';
  return {
    countLine: createLineCounter(metrics.registry),
    countRedelivery: () => redeliveries.inc(),
    countSettle: (results) => {
      settles.inc();
      settled.inc(results);
    },
    listener: createOperationsListener({
      title: 'Sluice worker',
      metrics,
      checkReadiness: createReadinessCheck({ db: platform.db, snapshot: platform.access.snapshot, phase: () => phase }),
      logger,
      port,
      host,
    }),
    readiness: {
      name: 'worker readiness',
      start() {
        phase = 'ok';
      },
      stop() {
        phase = 'stopping';
      },
    },
  };
}

/** prom-client hashes the labels at each increment, which costs 1 % of the time for a line, so it only reads the counts. */
function createLineCounter(registry: Registry): WorkerOperations['countLine'] {
  const counts = { succeeded: 0, failed: 0 };
  const lines: Counter = new Counter({
    name: 'sluice_batch_lines_total',
    help: 'Batch lines whose call has ended in this worker, by outcome (succeeded, failed).',
    labelNames: ['outcome'],
    registers: [registry],
    collect() {
      lines.reset();
      for (const [outcome, count] of Object.entries(counts)) if (count > 0) lines.inc({ outcome }, count);
    },
  });
  return (outcome) => void (counts[outcome] += 1);
}

import { Counter, Gauge } from 'prom-client';
import type { LineWaits } from '#libs/batches/line-waits.ts';
import type { Slots } from '#libs/batches/slots.ts';
import { createMetrics } from '#libs/http/metrics.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { MemoryBudget } from '#libs/kernel/memory-budget.ts';
import { createReadinessCheck, type Phase } from '../platform/check-readiness.ts';
import type { Platform } from '../platform/compose.ts';
import { registerPlatformMetrics } from '../platform/metrics.ts';
import { createOperationsListener } from '../platform/operations-listener.ts';

export type WorkerOperations = {
  /** Listens; the first part, so that a probe sees a worker that waits for its database alive. */
  listener: Part;
  /** Tells that the worker is ready while it runs; the last part. */
  readiness: Part;
  /** Counts a line whose call is over. */
  countLine: (outcome: 'succeeded' | 'failed') => void;
};

/** The worker's own /health and /metrics, where a port is given for them. It serves nothing else. */
export function createWorkerOperations(deps: {
  platform: Platform;
  slots: Slots;
  /** Of the ranges of chunks. */
  ranges: MemoryBudget;
  chunksActive: () => number;
  waits: Pick<LineWaits, 'counts'>;
  logger: Logger;
  port: number | undefined;
  host: string;
}): WorkerOperations {
  const { platform, slots, ranges, chunksActive, waits, logger, port, host } = deps;
  const metrics = createMetrics();
  const registers = [metrics.registry];
  registerPlatformMetrics(metrics.registry, platform);
  const lines = new Counter({
    name: 'sluice_batch_lines_total',
    help: 'Batch lines called.',
    labelNames: ['outcome'],
    registers,
  });
  const inFlight: Gauge = new Gauge({
    name: 'sluice_worker_in_flight',
    help: 'What is in flight: calls, bytes of lines, answers and results, and lines that wait for a call.',
    labelNames: ['what'],
    registers,
    collect() {
      const bytes = platform.memory.stats().heldBytes;
      for (const [what, value] of Object.entries({ ...slots.inFlight(), bytes })) inFlight.set({ what }, value);
    },
  });
  const chunks: Gauge = new Gauge({
    name: 'sluice_worker_chunks',
    help: 'Chunks that are worked on, the bytes of their ranges, and chunks that wait for room in memory.',
    labelNames: ['what'],
    registers,
    collect() {
      const { heldBytes: bytes, waiting: waitingChunks } = ranges.stats();
      for (const [what, value] of Object.entries({ active: chunksActive(), bytes, waiting: waitingChunks }))
        chunks.set({ what }, value);
    },
  });
  const waiting: Gauge = new Gauge({
    name: 'sluice_batch_lines_waiting',
    help: 'Batch lines that wait, without a place among the calls, by what they wait for.',
    labelNames: ['reason'],
    registers,
    collect() {
      for (const [reason, lines] of Object.entries(waits.counts())) waiting.set({ reason }, lines);
    },
  });
  let phase: Phase = 'starting';
  return {
    countLine: (outcome) => lines.inc({ outcome }),
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

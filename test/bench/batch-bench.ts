import { performance } from 'node:perf_hooks';
import path from 'node:path';
import { rm } from 'node:fs/promises';
import { writeInputFile } from './input-file.ts';
import { startProbe } from './probe.ts';
import { readFamilyCpuSeconds, readUsage, resetPeak } from './process-usage.ts';
import { createSluiceClient, type BatchView, type SluiceClient } from './sluice-client.ts';
import type { Stack } from './stack.ts';
import { percentile } from './statistics.ts';

export type BatchFigures = {
  lines: number;
  fileBytes: number;
  /** From the first byte of the upload to the answer that says `completed`. */
  totalSeconds: number;
  uploadSeconds: number;
  /** From the answer of the create call until a poll finds the batch validated. */
  validationSeconds: number;
  /** Peak resident memory of each Node process, and processor seconds of each part. */
  peakBytes: Record<'api' | 'worker' | 'simulator', number>;
  cpuSeconds: Record<'api' | 'worker' | 'simulator' | 'postgres', number>;
  /** Whether the peak belongs to this batch alone. */
  peakIsOwn: boolean;
  apiLoopP99Ms: number;
  /** GET /health/live during the batch, twenty times a second. */
  probeP99Ms: number;
};

/**
 * Uploads a file, runs it as a batch and measures all of Sluice meanwhile. Throws when a line is missing at the end.
 */
export async function measureBatch(
  stack: Stack,
  size: { lines: number; lineBytes: number },
  onProgress: (text: string) => void,
): Promise<BatchFigures> {
  const client = createSluiceClient(stack.apiUrl, stack.adminKey);
  const file = path.join(stack.directory, 'input.jsonl');
  const fileBytes = await writeInputFile(file, size);
  const processes = [stack.api, stack.worker, stack.simulator];
  const resets = await Promise.all(processes.map(({ pid }) => resetPeak(pid)));
  const before = await readAll(stack);
  await client.takeLoopP99Ms();
  const probe = startProbe(() => client.ping(), 50);

  const startedMs = performance.now();
  const fileId = await client.upload(file, fileBytes);
  const uploadedMs = performance.now();
  const { id } = await client.createBatch(fileId);
  let validatedMs = Number.NaN;
  const batch = await client.waitForEnd(id, (seen) => {
    if (Number.isNaN(validatedMs) && seen.in_progress_at !== null) validatedMs = performance.now();
    const { completed, total } = seen.request_counts;
    onProgress(`batch of ${size.lines} lines: ${seen.status} ${completed}/${total}`);
  });
  const endedMs = performance.now();

  const probeP99Ms = percentile(await probe.stop(), 0.99);
  const apiLoopP99Ms = await client.takeLoopP99Ms();
  const after = await readAll(stack);
  await assertComplete(client, batch, size.lines);
  await rm(file);
  return {
    lines: size.lines,
    fileBytes,
    totalSeconds: (endedMs - startedMs) / 1_000,
    uploadSeconds: (uploadedMs - startedMs) / 1_000,
    validationSeconds: (validatedMs - uploadedMs) / 1_000,
    peakBytes: {
      api: after.api.residentPeakBytes,
      worker: after.worker.residentPeakBytes,
      simulator: after.simulator.residentPeakBytes,
    },
    cpuSeconds: {
      api: after.api.cpuSeconds - before.api.cpuSeconds,
      worker: after.worker.cpuSeconds - before.worker.cpuSeconds,
      simulator: after.simulator.cpuSeconds - before.simulator.cpuSeconds,
      postgres: after.postgresCpuSeconds - before.postgresCpuSeconds,
    },
    peakIsOwn: !resets.includes(false),
    apiLoopP99Ms,
    probeP99Ms,
  };
}

async function readAll({ api, worker, simulator, postgres }: Stack) {
  return {
    api: await readUsage(api.pid),
    worker: await readUsage(worker.pid),
    simulator: await readUsage(simulator.pid),
    postgresCpuSeconds: await readFamilyCpuSeconds(postgres.pid),
  };
}

export type SmallBatchFigures = {
  batches: number;
  lines: number;
  perSecond: number;
  /** Processor time of one batch with all of its lines, in milliseconds. */
  cpuMs: Record<'api' | 'worker' | 'postgres', number>;
};

const createdAtOnce = 16;

/** Uploads and runs many batches of a few lines. Throws when one does not complete. */
export async function measureSmallBatches(
  stack: Stack,
  { batches, lines }: { batches: number; lines: number },
  onProgress: (text: string) => void,
): Promise<SmallBatchFigures> {
  const client = createSluiceClient(stack.apiUrl, stack.adminKey);
  const file = path.join(stack.directory, 'small.jsonl');
  const bytes = await writeInputFile(file, { lines, lineBytes: 400 });
  const run = async (count: number): Promise<void> => {
    const ids: string[] = [];
    let left = count;
    const create = async (): Promise<void> => {
      while (left > 0) {
        left -= 1;
        ids.push((await client.createBatch(await client.upload(file, bytes))).id);
      }
    };
    await Promise.all(Array.from({ length: createdAtOnce }, create));
    // They run in about the order of their creation, so most have ended when they are looked at.
    for (const id of ids) {
      const { status, request_counts: counts } = await client.waitForEnd(id, () => {});
      if (status !== 'completed' || counts.completed !== lines) throw new Error(`batch ${id} is ${status}`);
    }
  };
  onProgress(`batches of ${lines} lines`);
  await run(createdAtOnce * 2); // warms up
  const before = await readAll(stack);
  const startedMs = performance.now();
  await run(batches);
  const seconds = (performance.now() - startedMs) / 1_000;
  const after = await readAll(stack);
  const cpuMs = (of: (usage: typeof after) => number): number => ((of(after) - of(before)) / batches) * 1_000;
  return {
    batches,
    lines,
    perSecond: batches / seconds,
    cpuMs: {
      api: cpuMs(({ api }) => api.cpuSeconds),
      worker: cpuMs(({ worker }) => worker.cpuSeconds),
      postgres: cpuMs(({ postgresCpuSeconds }) => postgresCpuSeconds),
    },
  };
}

/** The figures of a batch that lost a line would mean nothing. */
async function assertComplete(client: SluiceClient, batch: BatchView, lines: number): Promise<void> {
  const { completed } = batch.request_counts;
  const written = batch.output_file_id === null ? 0 : await client.countLines(batch.output_file_id);
  if (batch.status === 'completed' && completed === lines && written === lines) return;
  throw new Error(`the batch is ${batch.status} with ${completed} completed and ${written} written of ${lines} lines`);
}

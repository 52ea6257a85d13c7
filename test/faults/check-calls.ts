import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import type { ReadFiles } from './check-files.ts';

/** An event of the batch's stream, as the log holds it. */
export type LoggedEvent = { event: BatchEvent; version: number; recordedAt: Date };

/** The calls of a batch that the provider saw. */
export type CallEvidence = {
  /** Calls of each line. */
  byLine: ReadonlyMap<number, number>;
  /** How often the retry policy may repeat one execution of a line, according to the model's known behaviour. */
  retriesMax: number;
  /** Whether a worker ended, hung or was given up. Nothing else, and no outage, excuses a repeated call. */
  lostWorker: boolean;
};

/**
 * HOLD-5: a line is called once, and again only by the retry policy or where a worker was lost and a redelivery says
 * so: the calls beyond the first are bounded by the unsettled lines that the log recorded. A result without a call must
 * be one that needs none.
 */
export function checkCalls(calls: CallEvidence, events: readonly LoggedEvent[], files: ReadFiles): string[] {
  const { byLine, retriesMax, lostWorker } = calls;
  const violations: string[] = [];
  const redelivered = events.map(({ event }) => event).filter((event) => event.type === 'batch.chunk_redelivered');
  if (!lostWorker && redelivered.length > 0)
    violations.push(`${redelivered.length} chunks were redelivered, although no worker was lost`);
  const allowed = lostWorker ? redelivered.reduce((sum, event) => sum + event.data.unsettled, 0) : 0;
  let repeats = 0;
  for (const [line, count] of byLine) {
    const repeated = Math.ceil(count / (1 + retriesMax)) - 1;
    repeats += repeated;
    if (repeated > redelivered.length)
      violations.push(`line ${line} was called ${count} times with ${redelivered.length} redeliveries`);
  }
  if (repeats > allowed)
    violations.push(`${repeats} calls were repeated, the log accounts for ${allowed} (${redelivered.length} events)`);
  for (const line of files.succeeded.keys())
    if (!byLine.has(line)) violations.push(`line ${line} has an answer that the provider was never asked for`);
  return violations;
}

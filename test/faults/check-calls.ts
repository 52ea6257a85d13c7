import type { BatchEvent } from '#libs/batches/batch.ts';
import type { ReadFiles } from './check-files.ts';

/** An event of the batch's stream, as the log holds it. */
export type LoggedEvent = { event: BatchEvent; version: number; recordedAt: Date };

/** The calls of a batch that the provider saw. */
export type CallEvidence = {
  /** Calls of each line. */
  byLine: ReadonlyMap<number, number>;
  /** How often the retry policy may repeat one execution of a line, according to the model's known behaviour. */
  retriesMax: number;
  /** Executions that the test itself caused, which are not in the log: duplicate jobs, by the lines they cover. */
  extraExecutions: number;
};

/**
 * HOLD-5: a line is called once, and again only by the retry policy or where a redelivery says so: the calls beyond the
 * first are bounded by the unsettled lines that the log recorded, for a redelivery or a snooze. A result without a call must
 * be one that needs none.
 */
export function checkCalls(calls: CallEvidence, events: readonly LoggedEvent[], files: ReadFiles): string[] {
  const { byLine, retriesMax, extraExecutions } = calls;
  const violations: string[] = [];
  const redelivered = events
    .map(({ event }) => event)
    .filter((event) => event.type === 'batch.chunk_redelivered' || event.type === 'batch.chunk_snoozed');
  const allowed = redelivered.reduce((sum, event) => sum + event.data.unsettled, 0) + extraExecutions;
  let repeats = 0;
  for (const [line, count] of byLine) {
    const executionsMin = Math.ceil(count / (1 + retriesMax));
    repeats += executionsMin - 1;
    if (executionsMin - 1 > redelivered.length + extraExecutions)
      violations.push(`line ${line} was called ${count} times with ${redelivered.length} redeliveries`);
  }
  if (repeats > allowed)
    violations.push(`${repeats} calls were repeated, the log accounts for ${allowed} (${redelivered.length} events)`);
  for (const line of files.succeeded.keys())
    if (!byLine.has(line)) violations.push(`line ${line} has an answer that the provider was never asked for`);
  return violations;
}

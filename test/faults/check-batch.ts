import { isTerminal, type BatchEvent } from '#libs/batches/batch/batch.ts';
import type { OpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';
import { checkCalls, type CallEvidence, type LoggedEvent } from './check-calls.ts';
import { checkFiles, readInput } from './check-files.ts';
import { checkSettles } from './check-settles.ts';

/** Everything that an outsider can see of one batch that has ended. */
export type BatchEvidence = {
  batch: OpenAiBatch;
  input: Buffer;
  /** Null when the batch names no such file. */
  output: Buffer | null;
  errors: Buffer | null;
  /** The batch's whole stream, in order. */
  events: readonly LoggedEvent[];
  /** What the API showed while the batch ran, in order. May be empty. */
  seen: readonly Pick<OpenAiBatch, 'status' | 'request_counts'>[];
  /** What the provider saw, if that is known. */
  calls?: CallEvidence;
  /** Whether the database's clock was set back meanwhile. Default false. */
  clockSetBack?: boolean;
};

/**
 * Pure: what API output, event log and files can show of HOLD-1, HOLD-2, HOLD-3, HOLD-5 and HOLD-6. Returns what is violated, in words; nothing when all of it holds.
 */
export function checkBatch(evidence: BatchEvidence): string[] {
  const { batch, input, output, errors, events, seen, calls, clockSetBack = false } = evidence;
  const path = checkPath(events, batch);
  // The other checks rely on a legal path of events.
  if (path.length > 0) return path;
  const lines = readInput(input);
  const files = checkFiles({ batch, events: events.map(({ event }) => event), lines, output, errors });
  return [
    ...files.violations,
    ...checkSettles(
      events.map(({ event }) => event),
      batch,
      files,
    ),
    ...(clockSetBack ? [] : checkTimes(events, batch)),
    ...checkSeen(seen),
    ...(calls ? checkCalls(calls, events, files) : []),
  ];
}

type EventType = BatchEvent['type'];

// The state machine as seen in the log. `null` is before the first event.
const followers: Record<EventType, readonly EventType[]> = {
  'batch.created': [
    'batch.validated',
    'batch.paused',
    'batch.resumed',
    'batch.failed',
    'batch.cancel_requested',
    'batch.expired',
  ],
  'batch.validated': [
    'batch.lines_settled',
    'batch.chunk_redelivered',
    'batch.paused',
    'batch.resumed',
    'batch.cancel_requested',
    'batch.finalizing',
  ],
  'batch.lines_settled': [
    'batch.lines_settled',
    'batch.chunk_redelivered',
    'batch.paused',
    'batch.resumed',
    'batch.cancel_requested',
    'batch.finalizing',
  ],
  'batch.chunk_redelivered': [
    'batch.lines_settled',
    'batch.chunk_redelivered',
    'batch.paused',
    'batch.resumed',
    'batch.cancel_requested',
    'batch.finalizing',
  ],
  'batch.paused': [
    'batch.validated',
    'batch.failed',
    'batch.lines_settled',
    'batch.chunk_redelivered',
    'batch.resumed',
    'batch.cancel_requested',
    'batch.finalizing',
    'batch.expired',
  ],
  'batch.resumed': [
    'batch.validated',
    'batch.failed',
    'batch.lines_settled',
    'batch.chunk_redelivered',
    'batch.paused',
    'batch.cancel_requested',
    'batch.finalizing',
    'batch.expired',
  ],
  'batch.cancel_requested': [
    'batch.lines_settled',
    'batch.chunk_redelivered',
    'batch.finalizing',
    // Only before validation, which `checkPath` checks.
    'batch.cancelled',
  ],
  'batch.finalizing': ['batch.completed', 'batch.cancelled', 'batch.expired'],
  'batch.completed': [],
  'batch.cancelled': [],
  'batch.expired': [],
  'batch.failed': [],
};

/** HOLD-3: a legal path, no gap in the versions, one terminal event, which is the last and says what the API says. */
function checkPath(events: readonly LoggedEvent[], batch: OpenAiBatch): string[] {
  const violations: string[] = [];
  const types = events.map(({ event }) => event.type);
  if (types[0] !== 'batch.created') violations.push(`the stream begins with ${types[0] ?? 'nothing'}`);
  for (const [index, { version }] of events.entries()) {
    if (version !== index + 1) violations.push(`event ${index + 1} of the stream has version ${version}`);
  }
  for (const [index, type] of types.entries()) {
    const before = types[index - 1];
    if (before && !followers[before].includes(type)) violations.push(`${type} follows ${before}`);
  }
  const last = types.at(-1)?.slice('batch.'.length);
  if (!isTerminal(batch.status)) violations.push(`the batch has not ended: it is ${batch.status}`);
  else if (last !== batch.status) violations.push(`the batch is ${batch.status}, its last event is batch.${last}`);
  const wasValidated = types.includes('batch.validated');
  const reason = events.map(({ event }) => event).find((event) => event.type === 'batch.finalizing')?.data.reason;
  if (wasValidated !== (reason !== undefined)) violations.push('validated, but never finalizing, or the reverse');
  if (reason !== undefined && reason !== batch.status)
    violations.push(`finalizing because ${reason}, ended as ${batch.status}`);
  return violations;
}

/** Times never go backwards, neither in the log nor on the batch. */
function checkTimes(events: readonly LoggedEvent[], batch: OpenAiBatch): string[] {
  const violations: string[] = [];
  for (const [index, { event, recordedAt }] of events.entries()) {
    const before = events[index - 1];
    if (before && before.recordedAt > recordedAt)
      violations.push(`${event.type} is recorded before the ${before.event.type} that it follows`);
  }
  const { created_at, in_progress_at, finalizing_at, completed_at, cancelled_at, expired_at, failed_at } = batch;
  const ended = [completed_at, cancelled_at, expired_at, failed_at].filter((time) => time !== null);
  if (ended.length !== 1) violations.push(`the batch has ${ended.length} times of its end`);
  const times = [created_at, in_progress_at, finalizing_at, ...ended].filter((time) => time !== null);
  if (times.some((time, index) => index > 0 && time < (times[index - 1] as number)))
    violations.push(`the times of the batch go backwards: ${times.join(', ')}`);
  return violations;
}

const order = ['validating', 'in_progress', 'cancelling', 'finalizing', 'ended'];

/** HOLD-2, while it runs: counts only grow and never exceed the total, and the status never goes back. */
function checkSeen(seen: BatchEvidence['seen']): string[] {
  const violations: string[] = [];
  const rank = (status: OpenAiBatch['status']): number => order.indexOf(isTerminal(status) ? 'ended' : status);
  for (const [index, { status, request_counts: now }] of seen.entries()) {
    if (now.completed + now.failed > now.total)
      violations.push(`seen: ${now.completed} completed and ${now.failed} failed of ${now.total}`);
    const before = seen[index - 1];
    if (!before) continue;
    if (rank(status) < rank(before.status)) violations.push(`seen: ${status} after ${before.status}`);
    const { completed, failed } = before.request_counts;
    if (now.completed < completed || now.failed < failed)
      violations.push(`seen: counts fell from ${completed}+${failed} to ${now.completed}+${now.failed}`);
  }
  return violations;
}

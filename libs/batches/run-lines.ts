import { memberValues } from '#libs/kernel/json-members.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { measureJson } from '#libs/kernel/measure-json.ts';
import type { MemoryBudget, MemoryLease } from '#libs/kernel/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { RequestLine } from '#libs/validation/json-lines.ts';
import type { AnswerSizes } from './answer-sizes.ts';
import type { BatchRow } from './batch-model.ts';
import type { BatchWatch } from './batch-watch.ts';
import type { CallLine } from './call-line.ts';
import { createSnoozeWatch } from './snooze-watch.ts';
import { createLinePermit, type LinePermit, type OnWait } from './line-permit.ts';
import type { LineWaits } from './line-waits.ts';
import { isSuccess, resultLine, unansweredMessages, type LineOutcome } from './result-line.ts';
import type { LineResult } from './settle-group.ts';
import type { Settler } from './settle-results.ts';
import { createBatchPermits } from './batch-permits.ts';
import type { PermitPool } from './permit-pool.ts';
import { withLineMemory } from './with-line-memory.ts';

type Deps = {
  watch: BatchWatch;
  permits: Pick<PermitPool, 'of'>;
  memory: MemoryBudget;
  /** How long an answer waits for memory in its socket. */
  memoryWaitMsMax: number;
  answerSizes: AnswerSizes;
  callLine: CallLine;
  waits: Pick<LineWaits, 'begin'>;
  /** Other chunks need the permits that this one has. */
  isCrowded: () => boolean;
  /** No call may be begun now, because its record would have no place in the log. */
  isLogFull: () => boolean;
  logger: Logger;
};

type Lines = {
  batch: BatchRow;
  chunk: number;
  /** Of the chunk: about how often it was put off. */
  generation: number;
  lines: readonly RequestLine[];
  /** These have their result. */
  settled: ReadonlySet<number>;
  /** This one is not called any more: it has ended its worker each time. */
  poison: number | null;
  settler: Settler;
  /** No more lines are started, those that wait are left, those that call may finish. */
  stop: AbortSignal;
  /** Calls are given up. */
  abandon: AbortSignal;
};

/** `left`: the batch is not in progress any more. `stopped`: some lines have no result. `putOff`: so, as all only wait. */
type LinesEnd = { kind: 'done' | 'stopped' | 'not_in_progress' } | { kind: 'snoozed'; resumeAtMs: number };

/** `signal` aborts the chunk's calls; one for all of them, because each composite signal costs more than a small line. */
type Running = Lines & { signal: AbortSignal; onWait: OnWait };

const logFullLookMs = 100;

/** An answer is there twice: as its pieces and as a whole, then beside the result line, and that in the statement. */
const answerCopies = 2;
/** Of a line that was validated. */
const noLimits = { depthMax: Number.POSITIVE_INFINITY, membersMax: Number.POSITIVE_INFINITY };

/** What the request of a line takes, as bytes and parsed. */
function memoryOf({ bytes }: RequestLine): number {
  const { textBytes, valueBytes } = measureJson(bytes, noLimits);
  return bytes.length + textBytes + valueBytes;
}

/** Runs the lines of a chunk that have no result yet; returns when none of them is running or waiting. */
export async function runLines(deps: Deps, run: Lines): Promise<LinesEnd> {
  const { batch, lines, settled } = run;
  const { signal: leftInProgress, unwatch } = deps.watch.watch(batch.id, 'in_progress');
  const results = watchResultsEnd(deps.watch, batch.id, leftInProgress);
  const snoozeWatch = createSnoozeWatch({ now: Date.now, isCrowded: deps.isCrowded, snoozes: run.generation });
  const stop = AbortSignal.any([leftInProgress, run.stop, snoozeWatch.snooze]);
  const callsOf = createBatchPermits(deps.permits, batch);
  const running: Running = {
    ...run,
    stop,
    signal: AbortSignal.any([run.abandon, results.ended]),
    onWait(what) {
      const ends = [deps.waits.begin(batch.id, what), snoozeWatch.onWait(what)];
      return () => {
        for (const end of ends) end();
      };
    },
  };
  const started: Promise<boolean>[] = [];
  let isStopped = false;
  try {
    for (const line of lines) {
      if (settled.has(line.line)) continue;
      while (deps.isLogFull() && !stop.aborted) await sleep(logFullLookMs, stop);
      // Permits first: a line that waits here holds nothing and may still be cancelled.
      const lease = deps.memory.open(batch.workspace_id, deps.memoryWaitMsMax);
      const lineBytes = memoryOf(line);
      const bytes = lineBytes + answerCopies * deps.answerSizes.expected(batch);
      const permits = withLineMemory(callsOf(line.bytes), lease, lineBytes);
      const isAcquired = await permits.acquire(bytes, { signal: stop });
      isStopped = stop.aborted;
      if (isStopped && isAcquired) permits.release(1, bytes);
      if (isStopped) break;
      const permit = createLinePermit({ permits, bytes, stop, onWait: running.onWait });
      snoozeWatch.lineStarted();
      started.push(runLine(deps, running, line, permit, lease).finally(() => snoozeWatch.lineEnded()));
    }
    snoozeWatch.allLinesStarted();
    const finished = await Promise.all(started);
    isStopped ||= finished.includes(false);
  } finally {
    snoozeWatch.stop();
    unwatch();
    results.unwatch();
  }
  if (leftInProgress.aborted) return { kind: 'not_in_progress' };
  if (!isStopped) return { kind: 'done' };
  const isSnoozed = snoozeWatch.snooze.aborted && !run.stop.aborted;
  return isSnoozed ? { kind: 'snoozed', resumeAtMs: snoozeWatch.resumeAtMs() } : { kind: 'stopped' };
}

/**
 * `ended` aborts when no more results of the batch are taken: after the cancel, those that run may finish, but what
 * hangs would otherwise keep its permits from all other batches until the batch's deadline.
 */
function watchResultsEnd(
  watch: BatchWatch,
  batchId: string,
  leftInProgress: AbortSignal,
): { ended: AbortSignal; unwatch: () => void } {
  const ended = new AbortController();
  let cancelling: ReturnType<BatchWatch['watch']> | undefined;
  const watchOn = (): void => {
    cancelling = watch.watch(batchId, 'cancelling');
    cancelling.signal.addEventListener('abort', () => ended.abort(), { once: true });
  };
  leftInProgress.addEventListener('abort', watchOn, { once: true });
  return {
    ended: ended.signal,
    unwatch() {
      leftInProgress.removeEventListener('abort', watchOn);
      cancelling?.unwatch();
    },
  };
}

/**
 * One line: call, make its result line once, hand it to the settler. False when it was left without an outcome (its
 * batch was cancelled while it waited, claim lost, worker out of time); never rejects.
 */
async function runLine(
  deps: Deps,
  run: Running,
  { line, bytes }: RequestLine,
  permit: LinePermit,
  memory: MemoryLease,
): Promise<boolean> {
  const { batch, chunk, signal, settler, poison } = run;
  try {
    const { custom_id: customId = nullText, body } = memberValues(bytes, ['custom_id', 'body']);
    let outcome: LineOutcome;
    let usage: LineResult['usage'] = null;
    try {
      if (poison === line)
        outcome = { kind: 'error', code: 'worker_crashed', message: unansweredMessages.worker_crashed };
      else ({ outcome, usage } = await deps.callLine({ batch, line, body, signal, permit, memory }));
    } catch (error) {
      if (signal.aborted || permit.isAbandoned()) {
        // Whoever has the chunk next does this line.
        permit.end(0);
        return false;
      }
      deps.logger.error({ err: error, batch_id: batch.id, line }, 'line failed inside the gateway');
      const message = 'The gateway failed while it executed this request.';
      outcome = { kind: 'error', code: 'internal_error', message };
    }
    const data = resultLine(batch.id, line, customId, outcome);
    const release = (): void => memory.release();
    settler.add({ chunk, line, succeeded: isSuccess(outcome), data, usage, release });
    // The call is over; the result stays counted until it is committed, and with it the statement that holds it.
    permit.end(answerCopies * data.length, outcome.kind === 'response');
    if (outcome.kind === 'response') deps.answerSizes.learn(batch, outcome.body.length);
  } catch (error) {
    // The line has no result, so the chunk will be found incomplete and count as tried in vain.
    deps.logger.error({ err: error, batch_id: batch.id, line }, 'result line not made');
    permit.end(0);
  }
  return true;
}

const nullText = Buffer.from('null');

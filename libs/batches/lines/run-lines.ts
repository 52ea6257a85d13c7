import type { HeldPlace, Wait } from '#libs/calls/call.ts';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { steadyClock } from '#libs/kernel/clock.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import { memberValue, memberValues } from '#libs/kernel/json/json-members.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { MemoryBudget, MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import type { RequestLine } from '#libs/validation/json-lines.ts';
import type { AnswerSizes } from './answer-sizes.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import type { ChunkRow } from '../chunks/chunk.ts';
import { isSettled } from '../chunks/settled-lines.ts';
import type { BatchWatch } from '../batch/batch-watch.ts';
import { readModel, replacedModel, type CallLine } from './call-line.ts';
import { createSnoozeWatch } from './snooze-watch.ts';
import { createLinePermit, type LinePermit, type OnWait } from './line-permit.ts';
import type { LineWaits } from './line-waits.ts';
import { failureOf, resultLine, statusOf, unansweredMessages, type LineOutcome } from '../results/result-line.ts';
import type { LineResult } from '../results/settle-groups.ts';
import type { BatchSettler } from '../results/settler.ts';
import type { PermitPool, Permits } from './permit-pool.ts';
import { withLineMemory } from './with-line-memory.ts';
import { createHash } from 'node:crypto';

type Deps = {
  watch: BatchWatch;
  permits: Pick<PermitPool, 'of'>;
  memory: MemoryBudget;
  /** How long an answer waits in its socket for memory. */
  memoryWaitMsMax: number;
  answerSizes: AnswerSizes;
  callLine: CallLine;
  waits: Pick<LineWaits, 'begin'>;
  /** Whether other chunks need the slot of this one. */
  isCrowded: () => boolean;
  /** Whether the request log is full. No call can begin in that case, because it could not be recorded. */
  isLogFull: () => boolean;
  logger: Logger;
};

type Lines = {
  batch: BatchRow;
  chunk: Pick<ChunkRow, 'chunk' | 'first_line' | 'line_count' | 'settled' | 'snoozes'>;
  lines: readonly RequestLine[];
  /** The poison line of the chunk, if it has one. It is not called but becomes an error line. */
  poison: number | null;
  settler: BatchSettler;
  /** The claim of the chunk. */
  job?: { id: string; retryCount: number } | undefined;
  /** Starts no more lines and abandons those that wait. Lines that are calling can finish. */
  stop: AbortSignal;
  /** Aborts running calls. */
  abandon: AbortSignal;
  /** Called, possibly more than once, when few of the lines are left and all of them have started. */
  onTail?: (() => void) | undefined;
};

/**
 * A chunk is nearly over when this share of its lines is left. A line that waits for its last retry, or for a long
 * answer, must not delay the rest of the batch; when most lines wait, further ones would usually wait for the same
 * reason.
 */
const tailShare = 1 / 8;

/**
 * `not_in_progress`: the batch has left that status. `paused`: it was paused, and some lines have no result. `stopped`:
 * the run was stopped and some lines have no result, of which `interrupted` were being called. `snoozed`: the same,
 * because all of these lines wait.
 */
type LinesEnd =
  | { kind: 'done' | 'paused' | 'not_in_progress' }
  | { kind: 'stopped'; interrupted: number[] }
  | { kind: 'snoozed'; resumeAtMs: number };

/** How a line ended. `waiting`, `interrupted`: it has no result, and it was waiting or being called when it was stopped. */
type LineEnd = 'ended' | 'waiting' | 'interrupted';

/** `signal` aborts the calls of the chunk. They share it. */
type Running = Lines & { signal: CallAbort; onWait: OnWait };

const logFullPollMs = 100;

/** An answer exists twice at any time: as pieces and as a whole, then in the result line, then in the statement as well. */
const answerCopies = 2;
/** The line was validated already. */
const noLimits = { depthMax: Number.POSITIVE_INFINITY, membersMax: Number.POSITIVE_INFINITY };

/** Memory of a line's request, as bytes and parsed. */
function memoryOf({ bytes }: RequestLine): number {
  const { textBytes, valueBytes } = measureJson(bytes, noLimits);
  return bytes.length + textBytes + valueBytes;
}

/** Runs the lines of a chunk that have no result yet. Resolves when none of them is running or waiting. */
export async function runLines(deps: Deps, run: Lines): Promise<LinesEnd> {
  const { batch, chunk, lines } = run;
  const { signal: leftInProgress, unwatch } = deps.watch.watch(batch.id, 'in_progress');
  const { signal: startsNoLines, unwatch: unwatchPause } = deps.watch.watch(batch.id, 'starts_lines');
  const signal = new CallAbort();
  const unfollow = signal.follow(run.abandon);
  const results = watchResultsEnd(deps.watch, batch.id, leftInProgress, signal);
  const snoozeWatch = createSnoozeWatch({
    now: () => steadyClock.now(),
    isCrowded: deps.isCrowded,
    snoozes: chunk.snoozes,
  });
  const stop = AbortSignal.any([leftInProgress, startsNoLines, run.stop, snoozeWatch.snooze]);
  const busy = new BusyLines((what) => deps.waits.begin(batch.id, what));
  const callsOf = createBatchPermits(deps.permits, batch);
  const running: Running = {
    ...run,
    stop,
    signal,
    onWait(what) {
      const ends = [deps.waits.begin(batch.id, what), snoozeWatch.onWait(what), busy.onWait(what)];
      return () => {
        for (const end of ends) end();
      };
    },
  };
  const started: Promise<LineEnd>[] = [];
  const interrupted: number[] = [];
  let isStopped = false;
  let areAllStarted = false;
  let open = 0;
  const checkTail = (): void => {
    if (areAllStarted && open <= lines.length * tailShare) run.onTail?.();
  };
  try {
    for (const line of lines) {
      if (isSettled(chunk, line.line)) continue;
      while (deps.isLogFull() && !stop.aborted) await sleep(logFullPollMs, stop);
      const place = await busy.next(stop);
      // A line that waits here for its permit holds no memory and can still be cancelled.
      const lease = deps.memory.open(batch.workspace_id, deps.memoryWaitMsMax);
      const lineBytes = memoryOf(line);
      const bytes = lineBytes + answerCopies * deps.answerSizes.expected(batch);
      const permits = withLineMemory(callsOf(line.bytes), lease, lineBytes);
      const acquiring = permits.acquire(bytes, { signal: stop });
      // This wait can be long, and other workspaces can use the same credential.
      if (acquiring instanceof Promise) place?.release();
      const isAcquired = await acquiring;
      isStopped = stop.aborted;
      if (isStopped) {
        if (isAcquired) permits.release(1, bytes);
        place?.release();
        break;
      }
      const permit = createLinePermit({ permits, bytes, stop, onWait: running.onWait, place });
      snoozeWatch.lineStarted();
      open += 1;
      const ended = (end: LineEnd): LineEnd => {
        snoozeWatch.lineEnded();
        open -= 1;
        busy.lineEnded(place);
        checkTail();
        if (end === 'interrupted') interrupted.push(line.line);
        return end;
      };
      started.push(runLine(deps, running, line, permit, lease).then(ended));
    }
    areAllStarted = true;
    snoozeWatch.allLinesStarted();
    checkTail();
    const finished = await Promise.all(started);
    isStopped ||= finished.some((end) => end !== 'ended');
  } finally {
    snoozeWatch.stop();
    unwatch();
    unwatchPause();
    results.unwatch();
    unfollow();
  }
  if (leftInProgress.aborted) return { kind: 'not_in_progress' };
  if (!isStopped) return { kind: 'done' };
  if (startsNoLines.aborted && !run.stop.aborted) return { kind: 'paused' };
  const isSnoozed = snoozeWatch.snooze.aborted && !run.stop.aborted;
  return isSnoozed ? { kind: 'snoozed', resumeAtMs: snoozeWatch.resumeAtMs() } : { kind: 'stopped', interrupted };
}

/** Further lines of a chunk are not begun while this many wait for a free call or for their turn. */
const busyLinesMax = 4;

/**
 * The lines of a chunk that have begun and wait for a limit. Each holds several kilobytes. Once lines have waited for
 * their provider, further ones wait for a place there before they begin. They need not give their permits back then,
 * which takes about a tenth less of the worker's processor time.
 */
class BusyLines {
  readonly #onWait: OnWait;
  #count = 0;
  #fewer = Promise.withResolvers<void>();
  /** What the next line waits for. */
  #next: Wait | null = null;
  #areAlike = true;

  /** `onWait`: called for the wait of a line that has not begun. */
  constructor(onWait: OnWait) {
    this.#onWait = onWait;
  }

  /** Resolves when the next line can begin, or `stop` aborts, with the place that is held for it. */
  async next(stop: AbortSignal): Promise<HeldPlace | undefined> {
    while (this.#count >= busyLinesMax && !stop.aborted) await untilAborted(this.#fewer.promise, stop, () => {});
    if (this.#next?.hold === undefined || stop.aborted) return undefined;
    const endWait = this.#onWait(this.#next);
    try {
      return await this.#next.hold(stop);
    } catch (error) {
      if (stop.aborted) return undefined;
      throw error;
    } finally {
      endWait();
    }
  }

  onWait(what: Wait): () => void {
    const { reason, untilMs, hold } = what;
    const isHeldBack = reason === 'provider_busy' || (reason === 'rate_limited' && untilMs === null);
    if (!isHeldBack) return () => {};
    if (hold !== undefined && this.#areAlike) this.#next = what;
    this.#count += 1;
    return () => {
      this.#count -= 1;
      this.#fewer.resolve();
      this.#fewer = Promise.withResolvers<void>();
    };
  }

  /** A line that did not use its place goes elsewhere or waits for something else, and so can all further ones. */
  lineEnded(place: HeldPlace | undefined): void {
    if (place?.isTaken() !== false) return;
    this.#areAlike = false;
    this.#next = null;
  }
}

/**
 * Aborts `calls` when the batch accepts no more results. After a cancel, running calls can finish until then. Without
 * this, calls that hang would withhold their permits from other batches until the batch's deadline.
 */
function watchResultsEnd(
  watch: BatchWatch,
  batchId: string,
  leftInProgress: AbortSignal,
  calls: CallAbort,
): { unwatch: () => void } {
  let unwatch = (): void => {};
  const watchOn = (): void => {
    const cancelling = watch.watch(batchId, 'cancelling');
    const unfollow = calls.follow(cancelling.signal);
    unwatch = () => {
      unfollow();
      cancelling.unwatch();
    };
  };
  leftInProgress.addEventListener('abort', watchOn, { once: true });
  return {
    unwatch() {
      leftInProgress.removeEventListener('abort', watchOn);
      unwatch();
    },
  };
}

/**
 * Runs one line: calls it, creates its result line once, and passes that to the settler. A line can be
 * abandoned without an outcome: the batch was cancelled while it waited, the claim was lost, or the worker ran out of
 * time. Never rejects.
 */
async function runLine(
  deps: Deps,
  run: Running,
  { line, bytes }: RequestLine,
  permit: LinePermit,
  memory: MemoryLease,
): Promise<LineEnd> {
  const { batch, chunk, signal, settler, poison } = run;
  try {
    const { custom_id: customId = nullText, body } = memberValues(bytes, ['custom_id', 'body']);
    const id = batchLineId(batch.id, line);
    let outcome: LineOutcome;
    let usage: LineResult['usage'] = null;
    let output: LineResult['output'] = null;
    try {
      if (poison === line)
        outcome = { kind: 'error', code: 'worker_crashed', message: unansweredMessages.worker_crashed };
      else
        ({ outcome, usage, output } = await deps.callLine({
          batch,
          line,
          id,
          body,
          signal,
          permit,
          memory,
          job: run.job,
        }));
    } catch (error) {
      if (signal.aborted || permit.isAbandoned()) {
        // The line is run with the next claim of the chunk.
        permit.end(0);
        return permit.isAbandoned() ? 'waiting' : 'interrupted';
      }
      deps.logger.error({ err: error, batch_id: batch.id, line }, 'line failed inside the gateway');
      const message = 'The gateway failed while it executed this request.';
      outcome = { kind: 'error', code: 'internal_error', message };
    }
    const data = resultLine(id, customId, outcome);
    const release = (): void => memory.release();
    const [status, failure] = [statusOf(outcome), failureOf(outcome)];
    settler.add({ chunk: chunk.chunk, line, status, failure, data, usage, output, release });
    // The call is over. The result, and the statement that will hold it, stay counted until it is committed.
    permit.end(answerCopies * data.length, outcome.kind === 'response');
    if (outcome.kind === 'response') deps.answerSizes.learn(batch, outcome.body.length);
  } catch (error) {
    // The line has no result, so the chunk will be found incomplete, which counts as a claim without progress.
    deps.logger.error({ err: error, batch_id: batch.id, line }, 'result line could not be created');
    permit.end(0);
  }
  return 'ended';
}

const nullText = Buffer.from('null');

/**
 * The permits for each line of a batch, in the groups of its workspace, its destination and its batch. Many batches
 * with the same credential and model that hang are one destination. A destination is identified before the call by the
 * workspace, the batch's target (or its config) and the model. (The ID of a secret is left out, because a secret that
 * came with the create call is stored separately for each batch.)
 */
function createBatchPermits(pool: Pick<PermitPool, 'of'>, batch: BatchRow): (line: Buffer) => Permits {
  const target = JSON.stringify(batch.target, (name, value: unknown) => (name === 'secret_id' ? undefined : value));
  const destination = createHash('sha256').update(`${batch.workspace_id}\n${target}`).digest('base64');
  const permitsOf = (model: string | null): Permits =>
    pool.of(batch.workspace_id, `${destination} ${model ?? ''}`, batch.id);
  const model = replacedModel(batch) ?? batch.model;
  if (model !== null) {
    const permits = permitsOf(model);
    return () => permits;
  }
  const byModel = new Map<string | null, Permits>();
  return (line) => {
    const body = memberValue(line, 'body');
    const own = body === undefined ? null : readModel(body);
    const permits = byModel.get(own) ?? permitsOf(own);
    byModel.set(own, permits);
    return permits;
  };
}

import type { Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { Database } from '#libs/database/schema.ts';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { steadyClock } from '#libs/kernel/clock.ts';
import { smallBytesMax, type MemoryBudget, type MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { runAndReport, type OnJobEnded } from '#libs/queue/ended-job.ts';
import { splitChunk, type RequestLine } from '#libs/validation/json-lines.ts';
import type { AnswerSizes } from '../lines/answer-sizes.ts';
import { canStartLines } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import type { BatchWatch } from '../batch/batch-watch.ts';
import type { CallLine } from '../lines/call-line.ts';
import { snoozeChunk, releaseChunk, type ChunkRow, type ClaimEnd } from './chunk.ts';
import type { Held } from './lane.ts';
import { callSuspect, isClaimedAgain, resumeChunk, type Resumed } from './resume-chunk.ts';
import { withRepeated } from './settled-lines.ts';
import { rememberedMax } from './stray-work.ts';
import { linesTickets } from './tickets.ts';
import type { LineWaits } from '../lines/line-waits.ts';
import { runLines } from '../lines/run-lines.ts';
import { ensureResultsPartition, remakeResultsPartition, resultsBucket } from '../results/results-bucket.ts';
import { Settler, type BatchSettler } from '../results/settler.ts';
import { createPermitPool, type Permits, type PermitPool } from '../lines/permit-pool.ts';

/** A chunk that this process holds. `input`: its batch as it was then, and the blob of the input file, if they are known. */
export type ClaimedChunk = {
  key: string;
  batchId: string;
  workspaceId: string;
  chunk: ChunkRow;
  input?: { batch: BatchRow; blob: string } | undefined;
};

type Deps = Omit<ConstructorParameters<typeof Settler>[0], 'signal' | 'remakePartition'> & {
  db: Kysely<Database>;
  blobs: BlobStore;
  watch: BatchWatch;
  permits: PermitPool;
  /** The memory for lines, answers and results. */
  memory: MemoryBudget;
  /** How long an answer waits in its socket for memory. */
  memoryWaitMsMax: number;
  answerSizes: AnswerSizes;
  /** The memory for the byte ranges of input files that running chunks hold. */
  ranges: MemoryBudget;
  callLine: CallLine;
  waits: Pick<LineWaits, 'begin'>;
  /** Whether other chunks need the slots that the chunks of this process have. */
  isCrowded: () => boolean;
  isLogFull: () => boolean;
  /** The blob of the input file, even if the file was deleted: it stays until the batch has ended. */
  inputBlob: (batch: BatchRow) => Promise<string>;
  /** Called for each chunk that was claimed before, by a process that died or handed it back. */
  onRedelivery?: (() => void) | undefined;
  onJobEnded?: OnJobEnded | undefined;
};

/** Runs the chunks of batches: calls their lines and settles the results, limited by the process's permits and memory. */
export class ChunkRunner {
  readonly #deps: Deps;
  readonly #draining = new AbortController();
  readonly #abandoned = new AbortController();
  readonly #settler: Settler;
  // Only one suspected poison line is called at a time, so that it is clear which one ended the process (resume-chunk.ts).
  readonly #suspects = createPermitPool({ callsMax: 1, bytesMax: Number.POSITIVE_INFINITY });
  /** How many chunks of each batch are running. */
  readonly #running = new Map<string, number>();
  /** Claims whose end could not be written. They are still held. */
  readonly #unwritten = new LRUCache<string, true>({ max: rememberedMax });
  #active = 0;

  constructor(deps: Deps) {
    this.#deps = deps;
    const remakePartition = async (batchId: string): Promise<void> => {
      const find = deps.db.selectFrom('batch').select('created_at').where('id', '=', batchId);
      await remakeResultsPartition(deps.db, resultsBucket(await find.executeTakeFirstOrThrow()));
    };
    this.#settler = new Settler({ ...deps, remakePartition, signal: this.#abandoned.signal });
  }

  /** Chunks that are running, without those that wait for memory. */
  get active(): number {
    return this.#active;
  }

  /** The running calls of each batch that has some. */
  calls(): ReadonlyMap<string, number> {
    const counted = [...this.#running.keys()].map((id) => [id, this.#deps.permits.callsOf(id)] as const);
    return new Map(counted.filter(([, calls]) => calls > 0));
  }

  /**
   * Starts no more lines and abandons those that wait. Running lines have `graceMs` to finish. Their results are settled,
   * and unfinished chunks are ready for others at once.
   */
  drain(graceMs: number): void {
    this.#draining.abort();
    setTimeout(() => this.#abandoned.abort(), graceMs).unref();
  }

  /** Runs a claimed chunk. A chunk that fails is released after a pause. Never rejects. */
  async run(held: Held<ClaimedChunk>): Promise<void> {
    const { onJobEnded } = this.#deps;
    const { batch_id, chunk, claim } = held.work.chunk;
    const id = `${batch_id}/${chunk}`;
    const job = { queue: linesTickets.name, id, retryCount: claim - 1, payload: { batch_id, chunk }, waitedMs: null };
    const work = (note: (outcome: string) => void): Promise<void> => this.#runOrRelease({ ...held, note });
    try {
      if (onJobEnded === undefined) await work(() => {});
      else await runAndReport(onJobEnded, job, work);
    } catch {
      // It has been logged. What could not be released is found by stray-work.ts.
    }
  }

  /** Whether a claim that is held without running has run here. `key`: its key (stray-work.ts). */
  hasRun(key: string): boolean {
    return this.#unwritten.has(key);
  }

  async #runOrRelease(noted: Noted): Promise<void> {
    const { db, logger } = this.#deps;
    const { chunk: row } = noted.work;
    const claim: Claim = { ...noted, id: { ...row, holder: noted.holder.id }, isResumed: false, isCalling: false };
    const stop = AbortSignal.any([this.#draining.signal, noted.holder.lost]);
    try {
      await this.#runClaimed(claim, stop);
    } catch (error) {
      const { batch_id, chunk, claim: number } = row;
      logger.error({ err: error, batch_id, chunk, claim: number }, 'chunk failed and will be retried');
      await sleep(Math.min(failurePause.maxMs, failurePause.firstMs * 2 ** Math.min(number - 1, 10)), stop);
      // If no line has been called yet, none of them caused the failure, and it must not count against them.
      this.#unwritten.set(noted.work.key, true);
      await this.#untilWritten(claim, () => releaseChunk(db, claim.id, claim.isCalling ? null : quietEnd(claim)));
      this.#unwritten.delete(noted.work.key);
      throw error;
    }
  }

  async #runClaimed(claim: Claim, stop: AbortSignal): Promise<void> {
    const { db, logger, ranges } = this.#deps;
    // Holds the claim while the database is unavailable. No line has been called yet.
    const retrying = {
      delayMs: 500,
      signal: stop,
      onRetry: (error: unknown) => logger.warn({ err: error }, 'chunk is waiting for the database'),
    };
    const again: Again = (step) => retryDuringOutage(step, retrying);
    const { batchId, chunk } = claim.work;
    const find = db.selectFrom('batch').selectAll().where('id', '=', batchId);
    const batch = claim.work.input?.batch ?? (await again(() => find.executeTakeFirst()));
    if (batch === undefined) throw new Error(`batch ${batchId} does not exist`);
    const settler = this.#settler.of({ id: batch.id, workspaceId: batch.workspace_id });
    const run: Run = { claim, batch, settler, again };
    const memory = memoryForRange(ranges.open(batch.workspace_id));
    await this.#withPermit(run, { permits: memory, bytes: chunk.byte_length }, async () => {
      this.#countRunning(batchId, 1);
      try {
        await this.#prepareAndRun(run);
      } finally {
        this.#countRunning(batchId, -1);
      }
    });
  }

  #countRunning(batchId: string, more: 1 | -1): void {
    this.#active += more;
    const chunks = (this.#running.get(batchId) ?? 0) + more;
    if (chunks > 0) this.#running.set(batchId, chunks);
    else this.#running.delete(batchId);
  }

  async #prepareAndRun(run: Run): Promise<void> {
    const { db, eventLog } = this.#deps;
    const { claim, batch, again } = run;
    await again(() => ensureResultsPartition(db, resultsBucket(batch)));
    let resumed: Resumed = { action: 'run', chunk: claim.work.chunk, isSuspect: false };
    if (isClaimedAgain(resumed.chunk)) {
      this.#deps.onRedelivery?.();
      resumed = await again(() => resumeChunk(eventLog, batch, claim.id));
      claim.isResumed = true;
    }
    if (resumed.action === 'drop') return claim.note('dropped');
    if (resumed.action === 'stop') return await this.#close(run);
    const { chunk } = resumed;
    const lines = await again(() => this.#readLines(run, chunk));
    const call = async (): Promise<void> => {
      claim.isCalling = true;
      await this.#callLines(run, chunk, lines, resumed.action === 'poison' ? resumed.line : null);
    };
    if (resumed.action === 'poison' || !resumed.isSuspect) return await call();
    await this.#withPermit(run, { permits: this.#suspects, bytes: 0 }, async () => {
      await again(() => callSuspect(db, claim.id));
      await call();
    });
  }

  async #callLines(run: Run, chunk: ChunkRow, lines: readonly RequestLine[], poison: number | null): Promise<void> {
    const { claim, batch, settler } = run;
    const { lost } = claim.holder;
    const end = await runLines(this.#deps, {
      batch,
      chunk,
      lines,
      poison,
      settler,
      job: { id: `${batch.id}/${chunk.chunk}`, retryCount: chunk.claim - 1 },
      stop: AbortSignal.any([lost, this.#draining.signal]),
      abandon: AbortSignal.any([lost, this.#abandoned.signal]),
      onTail: () => void claim.freeSlot(),
    });
    if (lost.aborted) {
      claim.note('claim_lost');
      await settler.flush();
    } else if (end.kind === 'stopped') {
      // While there was time, running calls have ended; only waiting lines were given up.
      const claimEnd = this.#abandoned.signal.aborted ? 'stopped' : 'clean';
      await this.#release(run, claimEnd, 'handed_back', withRepeated(chunk, end.interrupted));
    } else if (end.kind === 'paused') await this.#release(run, 'clean', 'put_back');
    else if (end.kind === 'snoozed') await this.#snooze(run, Math.max(0, end.resumeAtMs - steadyClock.now()));
    else await this.#close(run);
  }

  /**
   * Waits for a permit, runs `work` and releases the permit. Used for the memory of a chunk's range and for suspects. The
   * claim is held during the wait; a cancel, a lost claim or a drain ends it. Code that holds a permit never waits for
   * another permit of the same kind, which prevents deadlocks.
   */
  async #withPermit(
    run: Run,
    { permits, bytes }: { permits: Permits; bytes: number },
    work: () => Promise<void>,
  ): Promise<void> {
    const { claim, batch } = run;
    if (!canStartLines(batch)) return await this.#release(run, quietEnd(claim), 'put_back');
    const { signal: startsNoLines, unwatch } = this.#deps.watch.watch(batch.id, 'starts_lines');
    const stop = AbortSignal.any([startsNoLines, this.#draining.signal, claim.holder.lost]);
    let isAcquired: boolean;
    try {
      isAcquired = await permits.acquire(bytes, { signal: stop });
    } finally {
      unwatch();
    }
    if (isAcquired) {
      try {
        return await work();
      } finally {
        permits.release(1, bytes);
      }
    }
    if (claim.holder.lost.aborted) return claim.note('claim_lost');
    await this.#release(run, quietEnd(claim), startsNoLines.aborted ? 'put_back' : 'handed_back');
  }

  /** Settles the finished lines, and makes the rest ready for others. */
  async #release(run: Run, end: ClaimEnd, outcome: string, repeated: Buffer | null = null): Promise<void> {
    await run.settler.flush();
    const { claim } = run;
    const release = (): Promise<boolean> => releaseChunk(this.#deps.db, claim.id, end, repeated);
    if (await this.#untilWritten(claim, release)) claim.note(outcome);
    else await this.#close(run);
  }

  async #snooze(run: Run, delayMs: number): Promise<void> {
    await run.settler.flush();
    const { claim } = run;
    const snooze = (): Promise<boolean> => snoozeChunk(this.#deps.db, claim.id, delayMs);
    if (!(await this.#untilWritten(claim, snooze))) return await this.#close(run);
    claim.note('snoozed');
    const { batch_id, chunk } = run.claim.id;
    this.#deps.logger.info({ batch_id, chunk, delay_ms: delayMs }, 'chunk was snoozed because all of its lines wait');
  }

  /** Repeats the end of a claim while the database is unavailable, so that no line is taken for one that crashed. */
  async #untilWritten(claim: Claim, write: () => Promise<boolean>): Promise<boolean> {
    const signal = AbortSignal.any([claim.holder.lost, this.#abandoned.signal]);
    return await retryDuringOutage(write, { delayMs: 500, isOutage: isDatabaseTrouble, signal });
  }

  async #close({ claim, settler }: Run): Promise<void> {
    const outcome = await settler.close(claim.id);
    const { batch_id, chunk } = claim.id;
    if (outcome === 'incomplete') throw new Error(`chunk ${chunk} of ${batch_id} has lines without a result`);
  }

  async #readLines({ claim, batch }: Run, chunk: ChunkRow): Promise<RequestLine[]> {
    const blob = claim.work.input?.blob ?? (await this.#deps.inputBlob(batch));
    const range = await this.#deps.blobs.readRange(blob, chunk.byte_offset, chunk.byte_length);
    const end = chunk.first_line + chunk.line_count;
    return splitChunk(range, chunk.range_first_line).filter(({ line }) => line >= chunk.first_line && line < end);
  }
}

/** A failed chunk must not be claimed again at once, time after time. */
const failurePause = { firstMs: 500, maxMs: 30_000 };

/** `note` reports the outcome in a word. */
type Noted = Held<ClaimedChunk> & { note: (outcome: string) => void };
type Claim = Noted & { id: ChunkRow & { holder: string }; isResumed: boolean; isCalling: boolean };

/** The end of a claim in which no line was called. How the previous one ended still has to be recorded, unless it was. */
const quietEnd = ({ work, isResumed }: Claim): ClaimEnd =>
  isClaimedAgain(work.chunk) && !isResumed ? 'as before' : 'clean';

/** Repeats a step during an outage of the database. */
type Again = <Result>(step: () => Promise<Result>) => Promise<Result>;
type Run = { claim: Claim; batch: BatchRow; settler: BatchSettler; again: Again };

/**
 * The memory for the byte range of one chunk. Each workspace has a share of it, because a batch whose provider hangs
 * holds its ranges as long as its calls and must not block others. Small ranges do not wait behind large ones of their
 * workspace.
 */
const memoryForRange = (lease: MemoryLease): Permits => ({
  async acquire(bytes, { signal = never } = {}) {
    return (bytes <= smallBytesMax && lease.tryCharge(bytes)) || (await lease.reserve(bytes, signal));
  },
  release: () => lease.release(),
});

const never = new AbortController().signal;

import type { Lane as LaneName } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import type { Holder, ProcessLease } from '#libs/queue/process-lease.ts';
import type { Claim, ClaimLimits } from './turns.ts';

/** `key` identifies the claim among all that this process holds. */
type Work = { key: string; batchId: string; workspaceId: string };

/** Claimed work, while this process runs it. */
export type Held<Claimed> = {
  work: Claimed;
  holder: Holder;
  /**
   * Releases the slot of this work to other work while it continues, because only little of it is left. Beyond a number
   * of such work it has no effect. Returns true if a slot is free now that was not before.
   */
  freeSlot: () => boolean;
};

type Slots = {
  /** How much work runs at a time. Workspaces below their share can exceed it. */
  ofAll: number;
  /** How much of it can belong to one batch. */
  ofBatch: number;
};

type Options<Claimed extends Work> = {
  name: LaneName;
  slots: Slots;
  lease: Pick<ProcessLease, 'holder'>;
  claim: (holder: string, limits: ClaimLimits) => Promise<Claim<Claimed>>;
  /** Runs claimed work. Must not reject. */
  run: (held: Held<Claimed>) => Promise<void>;
  logger: Logger;
};

/** `weight`: of its workspace, when it was claimed. `left`: how much work of its batch was ready after that. */
type Running = { work: Work; weight: number; left: number; isTail: boolean };

/**
 * A batch without work here can have some started up to this many times the slots, if no workspace that waits is below
 * its share: batches that hang must not block others of their workspace.
 */
const firstOfBatchFactor = 3;
/** Workspaces below their share can have work started up to this many times the slots. */
const belowShareFactor = 4;
/** A workspace without any work here can have some started up to this many times the slots. */
const firstFactor = 32;
/** Work can continue without a slot up to this many times the slots of all, and of one batch. */
const tailFactor = { ofAll: 4, ofBatch: 8 };
const withoutSlot = { weight: 1, left: 0, isTail: true };
/** Weights such as 0.3 are not exact. */
const rounding = 1e-6;
/** Tickets, free slots and other events start a pass at once. Polling finds what they miss. */
const pollMs = 1_000;
/** How often a pass repeats a claim in which another process was faster. */
const overtakenMax = 20;

/**
 * The slots of this process for one kind of work. One loop claims the work, piece by piece, in the order of turns.ts.
 *
 * A workspace has a share of the slots by its weight: all of them while no other has work, half of them while there is one
 * other of the same weight, and so on.
 * While others wait, nothing is claimed for a workspace that has its share. Those that have not can exceed the slots
 * within limits, because work that hangs cannot be taken out of its slots; and a workspace that has none always gets
 * one.
 */
export class Lane<Claimed extends Work> {
  readonly #options: Options<Claimed>;
  readonly #running = new Map<string, Running>();
  readonly #done = new Set<Promise<void>>();
  readonly #awaited = new Set<string>();
  readonly #loop: BackgroundLoop;
  #activeWeight = 0;
  #isStopped = false;
  /** Work that is ready may have to wait for the limits of this process. */
  #isHeldBack = true;
  #freed = Promise.withResolvers<void>();

  constructor(options: Options<Claimed>) {
    this.#options = options;
    const { name, logger } = options;
    this.#loop = createBackgroundLoop({
      name: `claims of ${name}`,
      periodMs: pollMs,
      run: (signal) => this.#claimAll(signal),
      logger,
    });
  }

  start(): void {
    this.#loop.start();
  }

  /** Work may have become ready. Resolves when a pass that began after this call has ended. */
  wake(): Promise<void> {
    return this.#loop.wake();
  }

  /** Resolves when a slot is free, or the signal aborts. */
  async whenFree(signal: AbortSignal): Promise<void> {
    while (!signal.aborted && this.#used() >= this.#options.slots.ofAll)
      await untilAborted(this.#freed.promise, signal, () => {});
  }

  /** True when other work could be waiting for a slot here. */
  isCrowded(): boolean {
    const { ofAll } = this.#options.slots;
    return this.#used() >= Math.max(1, ofAll - Math.ceil(ofAll / 8));
  }

  /** True when so many slots are free that no work waits for one. */
  isIdle(): boolean {
    return !this.#isStopped && this.#used() * 2 < this.#options.slots.ofAll;
  }

  /** The keys of the work that this process runs. */
  keys(): IterableIterator<string> {
    return this.#running.keys();
  }

  /** Runs work that this process holds already; by default without a slot. */
  async adopt(work: Claimed, holder: Holder, place: Omit<Running, 'work'> = withoutSlot): Promise<void> {
    await this.#start(work, holder, place);
  }

  /**
   * Claims nothing of a batch whose first work this process can adopt soon, so that the batch does not exceed its slots.
   * Returns a function that ends this. It does not wake the lane.
   */
  awaitFirst(batchId: string): () => void {
    this.#awaited.add(batchId);
    return () => this.#awaited.delete(batchId);
  }

  /** Claims nothing more, and waits for what runs. */
  async stop(timeoutMs: number): Promise<void> {
    this.#isStopped = true;
    await this.#loop.stop();
    await untilAborted(Promise.all(this.#done), AbortSignal.timeout(timeoutMs), () => {});
    if (this.#running.size > 0)
      this.#options.logger.warn({ lane: this.#options.name, count: this.#running.size }, 'work did not end in time');
  }

  async #claimAll(signal: AbortSignal): Promise<void> {
    this.#isHeldBack = true;
    let overtaken = 0;
    let isStrict = true;
    let isLast = (_limits: ClaimLimits): boolean => false;
    while (!signal.aborted) {
      const limits = this.#limits(isStrict);
      if (limits === null) return;
      // A claim that finds nothing costs as much as one that finds work.
      if (isLast(limits)) return this.#endPass(limits);
      const holder = this.#options.lease.holder();
      const { claimed, found, left, others, weight, activeWeight } = await this.#options.claim(holder.id, limits);
      this.#activeWeight = activeWeight;
      if (claimed !== null) {
        void this.#start(claimed, holder, { weight, left, isTail: false });
        isStrict = true;
        isLast = ({ exceptBatches }) => !others && (left === 0 || exceptBatches.includes(claimed.batchId));
      } else if (found) {
        overtaken += 1;
        if (overtaken > overtakenMax) return;
        await sleep(1 + 4 * Math.random(), signal);
      } else if (isStrict && limits.exceptWorkspaces.length > 0) isStrict = false;
      else return this.#endPass(limits);
    }
  }

  /** Nothing is ready beyond what these limits leave out. */
  #endPass({ exceptWorkspaces, exceptBatches }: ClaimLimits): void {
    const left = new Map(Array.from(this.#running.values(), (running) => [running.work.batchId, running.left]));
    const isLeftOut = (batchId: string): boolean => !this.#awaited.has(batchId) && left.get(batchId) !== 0;
    this.#isHeldBack = exceptWorkspaces.length > 0 || exceptBatches.some(isLeftOut);
  }

  /**
   * What the next claim leaves out; null: nothing can be claimed. `isStrict`: leaves out workspaces that have their
   * share. Otherwise they can have what no other workspace needs: a free slot, or the first work of a batch.
   */
  #limits(isStrict: boolean): ClaimLimits | null {
    const { ofAll, ofBatch } = this.#options.slots;
    const used = this.#used();
    const workspaces = this.#count(({ workspaceId }) => workspaceId);
    const weights = this.#weights();
    const sum = Math.max(
      this.#activeWeight,
      [...weights.values()].reduce((all, weight) => all + weight, 0),
    );
    const batches = this.#count(({ batchId }) => batchId);
    if (used >= (isStrict ? firstFactor : firstOfBatchFactor) * ofAll) return null;
    const shareOf = (workspaceId: string): number =>
      Math.max(1, Math.floor((ofAll * (weights.get(workspaceId) ?? 1)) / sum + rounding));
    const mostOf = (workspaceId: string): number =>
      !isStrict ? Number.POSITIVE_INFINITY : used < belowShareFactor * ofAll ? shareOf(workspaceId) : 1;
    const mostOfBatch = isStrict || used < ofAll ? ofBatch : 1;
    return {
      exceptWorkspaces: withAtLeast(mostOf, workspaces),
      exceptBatches: [...withAtLeast(() => mostOfBatch, batches), ...this.#awaited],
    };
  }

  #start(work: Claimed, holder: Holder, place: Omit<Running, 'work'>): Promise<void> {
    const entry: Running = { work, ...place };
    this.#running.set(work.key, entry);
    const freeSlot = (): boolean => {
      if (entry.isTail || !this.#hasRoomForTail(work.batchId)) return false;
      entry.isTail = true;
      this.#onFree();
      return true;
    };
    const done = this.#options.run({ work, holder, freeSlot }).finally(() => {
      this.#running.delete(work.key);
      this.#done.delete(done);
      this.#onFree();
    });
    this.#done.add(done);
    return done;
  }

  #onFree(): void {
    this.#freed.resolve();
    this.#freed = Promise.withResolvers<void>();
    if (this.#isHeldBack) void this.#loop.wake();
  }

  #hasRoomForTail(batchId: string): boolean {
    const { ofAll, ofBatch } = this.#options.slots;
    const tails = [...this.#running.values()].filter(({ isTail }) => isTail);
    const ofSame = tails.filter(({ work }) => work.batchId === batchId);
    return ofSame.length < tailFactor.ofBatch * ofBatch && tails.length < tailFactor.ofAll * ofAll;
  }

  #used(): number {
    let used = 0;
    for (const { isTail } of this.#running.values()) if (!isTail) used += 1;
    return used;
  }

  /** The weights of the workspaces that have work in slots. */
  #weights(): Map<string, number> {
    const weights = new Map<string, number>();
    for (const { work, weight, isTail } of this.#running.values()) if (!isTail) weights.set(work.workspaceId, weight);
    return weights;
  }

  /** How much work each group has in slots. */
  #count(groupOf: (work: Work) => string): Map<string, number> {
    const counts = new Map<string, number>();
    for (const { work, isTail } of this.#running.values())
      if (!isTail) counts.set(groupOf(work), (counts.get(groupOf(work)) ?? 0) + 1);
    return counts;
  }
}

const withAtLeast = (mostOf: (id: string) => number, counts: ReadonlyMap<string, number>): string[] =>
  [...counts].filter(([id, count]) => count >= mostOf(id)).map(([id]) => id);

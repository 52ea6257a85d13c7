import { WaitingGroups } from '#libs/kernel/sharing/waiting-groups.ts';

/**
 * How a call ended: the provider answered it, rejected it because it has too much to do, or neither is known, because
 * the call failed or was never sent.
 */
export type CallEnd = 'answered' | 'rejected' | 'unknown';

const firstLimit = 32;
/** Before the first answer the limit grows up to this. */
const unansweredMax = 437;
const stepMs = 250;
/** The growth in each step, until the provider first rejects a call. */
const fastGrowth = 1 / 8;
/** Afterwards. The absolute part lets a small limit recover from a burst of rejections. */
const slowGrowth = { relative: 0.002, absolute: 0.1 };
/** After a rejection, the limit does not grow for this long. */
const quietMs = 10_000;
/** Rejections within this time of each other belong to one burst, in which the limit falls to half at most. */
const burstMs = 1_000;
/** The limit grows only while this much of it is used. */
const usedShare = 0.9;

/**
 * How many calls of one credential and model can be in flight, learned from how the provider answers. The latency of a
 * language model follows from the length of its answers and says little about its load. Rejections, however, arrive
 * within milliseconds. So the limit grows with time, and not with answers: by an eighth every quarter second while it is
 * used, something was answered and nothing was rejected. When calls are rejected, it falls to what was accepted, and
 * then grows slowly.
 *
 * @testOnly
 */
export class LearnedLimit {
  #limit = firstLimit;
  #inFlight = 0;
  /** The most calls in flight since the last step. */
  #peak = 0;
  #hasAnswer = false;
  #rejectedMs = Number.NEGATIVE_INFINITY;
  #burst = { sinceMs: Number.NEGATIVE_INFINITY, floor: 1 };
  #steppedMs = Number.NEGATIVE_INFINITY;

  get current(): number {
    return Math.floor(this.#limit);
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  mayBegin(): boolean {
    return this.#inFlight < this.current;
  }

  /** Returns how many calls were in flight before this one, for `end`. */
  begin(): number {
    this.#inFlight += 1;
    this.#peak = Math.max(this.#peak, this.#inFlight);
    return this.#inFlight - 1;
  }

  /** `others`: how many calls were in flight when this one began. The provider accepted no more than these. */
  end(how: CallEnd, nowMs: number, others = this.#inFlight - 1): void {
    this.#inFlight -= 1;
    if (how === 'answered') this.#hasAnswer = true;
    if (how !== 'rejected') return;
    if (nowMs - this.#burst.sinceMs > burstMs) this.#burst = { sinceMs: nowMs, floor: this.#limit / 2 };
    this.#rejectedMs = nowMs;
    this.#limit = Math.max(1, this.#burst.floor, Math.min(this.#limit, others));
  }

  /** Grows the limit if it is time for it. Call it every quarter second while calls wait. */
  grow(nowMs: number): void {
    if (nowMs - this.#steppedMs < stepMs * 0.9) return;
    this.#steppedMs = nowMs;
    const peak = this.#peak;
    this.#peak = this.#inFlight;
    if (peak < usedShare * this.current || nowMs - this.#rejectedMs < quietMs) return;
    const { relative, absolute } = slowGrowth;
    if (this.#rejectedMs > Number.NEGATIVE_INFINITY) this.#limit += Math.max(absolute, this.#limit * relative);
    else if (this.#hasAnswer) this.#limit *= 1 + fastGrowth;
    else this.#limit = Math.min(Math.max(unansweredMax, this.#limit), this.#limit * (1 + fastGrowth));
  }
}

type Deps = {
  now: () => number;
  /** Whether this process could handle more calls. */
  hasCapacity: () => boolean;
};

/**
 * The background calls of one credential and model, which wait for the learned limit. Live calls are counted but never
 * wait. Workspaces that share a credential take turns, however many batches each of them has.
 */
export class PacedCalls {
  readonly #deps: Deps;
  readonly #limit = new LearnedLimit();
  readonly #waiting = new WaitingGroups<string, { others: number }>();
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  get isIdle(): boolean {
    return this.#limit.inFlight === 0 && this.#waiting.size === 0;
  }

  get limit(): number {
    return this.#limit.current;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Begins a call, whatever the limit is. */
  begin(): void {
    this.#limit.begin();
  }

  /** Begins a call if the limit allows it and no other one waits. Returns the number for `end`, or null. */
  tryBegin(): number | null {
    return this.#waiting.size > 0 || !this.#limit.mayBegin() ? null : this.#limit.begin();
  }

  /**
   * Waits until the call has begun, and returns the number for `end`. Throws the reason of the signal if it aborts first.
   */
  async wait(group: string, signal: AbortSignal): Promise<number> {
    this.#timer ??= setInterval(() => this.#step(), stepMs).unref();
    const begun = { others: 0 };
    if (!(await this.#waiting.join(group, begun, signal))) throw signal.reason as Error;
    return begun.others;
  }

  end(how: CallEnd, others?: number): void {
    this.#limit.end(how, this.#deps.now(), others);
    this.#admit();
  }

  #step(): void {
    if (this.#deps.hasCapacity()) this.#limit.grow(this.#deps.now());
    this.#admit();
    if (this.#waiting.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #admit(): void {
    while (this.#limit.mayBegin()) {
      const next = this.#waiting.next(() => true);
      if (next === undefined) return;
      next.item.others = this.#limit.begin();
      this.#waiting.start(next);
    }
  }
}

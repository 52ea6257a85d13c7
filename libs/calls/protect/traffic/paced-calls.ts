import { WaitingGroups } from '#libs/kernel/sharing/waiting-groups.ts';
import type { CallGrant, CallReport } from '#libs/limits/call-limit.ts';
import type { HeldPlace } from '#libs/calls/call.ts';
import type { Ended } from '#libs/calls/retry-waits.ts';
import { LearnedLimit, stepMs, type CallEnd } from './learned-limit.ts';
import { RatePace, type PaceMark } from './rate-pace.ts';
import { TokenTime } from './token-time.ts';

/** How a background call began. `others`: how many calls were in flight before it. */
export type Begun = { others: number; mark: PaceMark; atMs: number };

/** A call that counts as begun, so that the call it is held for does not wait. */
class Place implements HeldPlace {
  readonly #paced: PacedCalls;
  #begun: Begun | null;
  #isTaken = false;

  constructor(paced: PacedCalls, begun: Begun) {
    this.#paced = paced;
    this.#begun = begun;
  }

  /** Returns how the call began; null if the place is not held any more. A place elsewhere than at `paced` is given back. */
  take(paced: PacedCalls): Begun | null {
    if (paced !== this.#paced) this.release();
    if (this.#begun === null) return null;
    const begun = this.#begun;
    this.#begun = null;
    this.#isTaken = true;
    return begun;
  }

  release(): void {
    const begun = this.#begun;
    this.#begun = null;
    if (begun !== null) this.#paced.end('unknown', null, begun);
  }

  isTaken(): boolean {
    return this.#isTaken;
  }
}

type Deps = {
  now: () => number;
  /** Whether this process could handle more calls. */
  hasCapacity: () => boolean;
  /** Called when a call waits for the first grant of a shared limit. Absent: the limit is that of this process. */
  onUngranted?: (() => void) | undefined;
};

/**
 * The background calls of one credential and model, which wait for the learned limit and the reported rate. Live calls
 * are counted but never wait. Workspaces that share a credential take turns, however many batches each of them has.
 */
export class PacedCalls {
  readonly #deps: Deps;
  readonly #limit = new LearnedLimit();
  readonly #pace = new RatePace();
  readonly #tokenTime = new TokenTime();
  readonly #waiting = new WaitingGroups<string, { begun?: Begun }>();
  #timer: NodeJS.Timeout | undefined;
  /** Whether calls had to wait since the last report. */
  #hasWaited = false;
  #isGranted = false;
  #pausedUntilMs = 0;

  constructor(deps: Deps) {
    this.#deps = deps;
    if (deps.onUngranted !== undefined) this.#limit.share();
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

  /** Begins a live call, whatever the limit is. */
  beginLive(): void {
    this.#limit.beginLive();
    this.#pace.beginLive();
  }

  /**
   * Begins a call in the place that is held for it, or if the limits allow it and no other one waits. Returns what `end`
   * needs, or null.
   */
  tryBegin(place?: HeldPlace): Begun | null {
    const held = place instanceof Place ? place.take(this) : null;
    return held ?? (this.#waiting.size > 0 || !this.#mayBegin() ? null : this.#begin());
  }

  /** Waits like a call, and holds the place for one that is not known yet. */
  async hold(group: string, signal: AbortSignal): Promise<HeldPlace> {
    return new Place(this, this.tryBegin() ?? (await this.wait(group, signal)));
  }

  #mayBegin(): boolean {
    const nowMs = this.#deps.now();
    return nowMs >= this.#pausedUntilMs && this.#limit.mayBegin(nowMs, !this.#pace.mayBegin(nowMs));
  }

  #begin(): Begun {
    return { others: this.#limit.begin(), mark: this.#pace.begin(), atMs: this.#deps.now() };
  }

  /** Waits until the call has begun, and returns what `end` needs. Throws the reason of the signal if it aborts first. */
  async wait(group: string, signal: AbortSignal): Promise<Begun> {
    this.#timer ??= setInterval(() => this.#step(), stepMs).unref();
    if (!this.#isGranted && !this.#hasWaited) this.#deps.onUngranted?.();
    this.#hasWaited = true;
    const waiter: { begun?: Begun } = {};
    if (!(await this.#waiting.join(group, waiter, signal))) throw signal.reason as Error;
    return waiter.begun as Begun;
  }

  /** `begun`: absent for a live call. */
  end(how: CallEnd, ended: Ended, begun?: Begun): void {
    const nowMs = this.#deps.now();
    this.#limit.end(how, nowMs, begun?.others);
    if (begun !== undefined) {
      this.#pace.learn(ended, begun.mark, this.#limit.part, nowMs);
      if (ended !== null && 'status' in ended) this.#tokenTime.add(nowMs - begun.atMs, ended.usage?.outputTokens ?? 0);
    }
    this.#admit();
  }

  /** Begins no background call until then. */
  pause(untilMs: number): void {
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, untilMs);
  }

  /** What the other processes have to know; null: nothing. */
  report(): CallReport | null {
    const report = this.#limit.report(this.#hasWaited || this.#waiting.size > 0, this.#deps.now());
    this.#hasWaited = this.#waiting.size > 0;
    return isIdle(report) && !this.#isGranted ? null : report;
  }

  /** Applies the answer to the last report. `grant`: null if the shared limit does not exist. */
  take(grant: CallGrant | null, report: CallReport): void {
    this.#isGranted = grant !== null && !isIdle(report);
    if (grant === null) return this.#limit.lose();
    this.#limit.take(grant, this.#deps.now());
    this.#admit();
  }

  #step(): void {
    const isSlow = this.#tokenTime.step();
    if (this.#deps.hasCapacity() && !isSlow) this.#limit.grow(this.#deps.now());
    this.#admit();
    if (this.#waiting.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #admit(): void {
    while (this.#waiting.size > 0 && this.#mayBegin()) {
      const next = this.#waiting.next(() => true);
      if (next === undefined) return;
      next.item.begun = this.#begin();
      this.#waiting.start(next);
    }
  }
}

const isIdle = ({ live, background, wantsMore }: CallReport): boolean => live === 0 && background === 0 && !wantsMore;

import { firstLimit, shareMs, type CallGrant, type CallReport } from '#libs/limits/call-limit.ts';

/**
 * How a call ended: the provider answered it, rejected it because it has too much to do, or neither is known, because
 * the call failed or was never sent.
 */
export type CallEnd = 'answered' | 'rejected' | 'unknown';

/** Before the first answer the limit grows up to this. */
const unansweredMax = 437;
export const stepMs = 250;
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

/** A shared limit does not grow when the database has not answered for this long, because the parts of others can have grown. */
const freshMs = 3_000;
/** The room for live calls: a little more than the most of late, which counts less with each report. */
const room = { spare: 1 / 8, decay: 0.9 };

/**
 * How many calls of one credential and model can be in flight, learned from how the provider answers. The latency of a
 * language model follows from the length of its answers and says little about its load. Rejections, however, arrive
 * within milliseconds. So the limit grows with time, and not with answers: by an eighth every quarter second while it is
 * used, something was answered and nothing was rejected. When calls are rejected, it falls to what was accepted, and
 * then grows slowly.
 *
 * A shared limit is the part of this process in one of all processes. It learns as if it were alone, and reports by how
 * much it has changed.
 */
export class LearnedLimit {
  #limit = firstLimit;
  #live = 0;
  #background = 0;
  /** The most calls in flight since the last step. */
  #peak = 0;
  #hasAnswer = false;
  #rejectedMs = Number.NEGATIVE_INFINITY;
  #burst = { sinceMs: Number.NEGATIVE_INFINITY, floor: 1 };
  #steppedMs = Number.NEGATIVE_INFINITY;
  /** Live calls for which background calls leave room. */
  #room = 0;
  /** This part of the whole limit belongs to this process. */
  #part = 1;
  #share: Share | null = null;

  /** Shares the limit. Until the first grant, one background call can be in flight. */
  share(): void {
    this.#limit = 0;
    this.#share = {
      isRejected: false,
      grantedMs: Number.NEGATIVE_INFINITY,
      reports: 0,
      answered: 0,
      asked: 0,
      whole: firstLimit,
      peaks: { live: 0, background: 0 },
    };
  }

  get current(): number {
    return Math.floor(this.#limit);
  }

  /** The part of the whole limit that belongs to this process. */
  get part(): number {
    return this.#part;
  }

  get inFlight(): number {
    return this.#live + this.#background;
  }

  /**
   * Whether a background call can begin. One can be in flight whatever the limit is, so that live calls and other
   * processes do not stop a batch. If it is rejected, the next one follows a second later. `isPaced`: the rate of the
   * provider is used up.
   */
  mayBegin(nowMs: number, isPaced = false): boolean {
    if (this.#background === 0 && nowMs - this.#rejectedMs >= burstMs) return true;
    return !isPaced && this.#used < this.current;
  }

  get #used(): number {
    return this.#background + Math.max(this.#live, this.#room);
  }

  /** Begins a background call. Returns how many calls were in flight before it, for `end`. */
  begin(): number {
    this.#background += 1;
    this.#noteUse();
    return this.inFlight - 1;
  }

  beginLive(): void {
    this.#live += 1;
    this.#noteUse();
  }

  #noteUse(): void {
    this.#peak = Math.max(this.#peak, this.#used);
    if (this.#share === null) return;
    const { peaks } = this.#share;
    if (this.#live > peaks.live) peaks.live = this.#live;
    if (this.#background > peaks.background) peaks.background = this.#background;
  }

  /**
   * `others`: how many calls were in flight when a background call began. The provider accepted no more than these.
   * Absent: a live call.
   */
  end(how: CallEnd, nowMs: number, others?: number): void {
    if (others === undefined) this.#live -= 1;
    else this.#background -= 1;
    if (how === 'answered') this.#hasAnswer = true;
    if (how !== 'rejected') return;
    if (nowMs - this.#burst.sinceMs > burstMs) this.#burst = { sinceMs: nowMs, floor: this.#limit / 2 };
    this.#rejectedMs = nowMs;
    // A small part can fall further, because others can have all that is accepted.
    const floor = this.#share === null ? Math.max(1, this.#burst.floor) : 0;
    if (this.#share !== null) this.#share.isRejected = true;
    this.#limit = Math.max(floor, Math.min(this.#limit, others ?? this.inFlight));
  }

  /** Grows the limit if it is time for it. Call it every quarter second while calls wait. */
  grow(nowMs: number): void {
    if (nowMs - this.#steppedMs < stepMs * 0.9) return;
    this.#steppedMs = nowMs;
    const peak = this.#peak;
    this.#peak = this.#used;
    if (this.#isStale(nowMs, peak) || peak < usedShare * this.current || nowMs - this.#rejectedMs < quietMs) return;
    const { relative, absolute } = slowGrowth;
    const first = unansweredMax * this.#part;
    if (this.#rejectedMs > Number.NEGATIVE_INFINITY) {
      this.#limit += Math.max(absolute * this.#part, this.#limit * relative);
    } else if (this.#hasAnswer) this.#limit *= 1 + fastGrowth;
    else this.#limit = Math.min(Math.max(first, this.#limit), this.#limit * (1 + fastGrowth));
  }

  /**
   * Whether the database has not answered lately. Other processes give a share away that was not renewed, so it shrinks
   * to what is used.
   */
  #isStale(nowMs: number, peak: number): boolean {
    if (this.#share === null) return false;
    const ageMs = nowMs - this.#share.grantedMs;
    if (ageMs > shareMs) this.#limit = Math.min(this.#limit, peak);
    return ageMs > freshMs;
  }

  /** What the other processes have to know. `wantsMore`: background calls had to wait since the last report. */
  report(wantsMore: boolean, nowMs: number): CallReport {
    const share = this.#share as Share;
    const { live, background } = share.peaks;
    share.peaks = { live: this.#live, background: this.#background };
    this.#room = Math.max(Math.ceil(live * (1 + room.spare)), Math.floor(this.#room * room.decay));
    share.reports += 1;
    share.asked = this.#limit;
    const { isRejected } = share;
    share.isRejected = false;
    const rejectedAgoMs = nowMs - this.#rejectedMs;
    return {
      number: share.reports,
      answered: share.answered,
      live: this.#room,
      background,
      wantsMore,
      limit: this.#limit,
      whole: share.whole,
      isAnswered: this.#hasAnswer,
      isRejected,
      rejectedAgoMs: Number.isFinite(rejectedAgoMs) ? rejectedAgoMs : null,
    };
  }

  /** Applies the answer to the last report. */
  take({ background, learned, isAnswered, rejectedAgoMs }: CallGrant, nowMs: number): void {
    const share = this.#share as Share;
    share.answered = share.reports;
    share.grantedMs = nowMs;
    share.whole = learned;
    const learnedSince = this.#limit - share.asked;
    const granted = this.#room + background;
    this.#limit = Math.max(0, granted + learnedSince);
    this.#part = Math.min(1, granted / learned);
    this.#hasAnswer ||= isAnswered;
    if (rejectedAgoMs !== null) this.#rejectedMs = Math.max(this.#rejectedMs, nowMs - rejectedAgoMs);
  }

  /** The database has no such limit. It is created with the next report of background calls. */
  lose(): void {
    (this.#share as Share).answered = 0;
  }
}

type Share = {
  /** Whether the provider has rejected a call since the last report. */
  isRejected: boolean;
  /** When the database last answered. */
  grantedMs: number;
  /** The number of reports, and that of the last one that was answered. */
  reports: number;
  answered: number;
  /** The limit at the last report. */
  asked: number;
  /** The limit of all processes. */
  whole: number;
  /** The most calls in flight since the last report. */
  peaks: { live: number; background: number };
};

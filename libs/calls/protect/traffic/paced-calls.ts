import { WaitingGroups } from '#libs/kernel/sharing/waiting-groups.ts';
import type { CallGrant, CallReport } from '#libs/limits/call-limit.ts';
import { LearnedLimit, stepMs, type CallEnd } from './learned-limit.ts';

type Deps = {
  now: () => number;
  /** Whether this process could handle more calls. */
  hasCapacity: () => boolean;
  /** Called when a call waits for the first grant of a shared limit. Absent: the limit is that of this process. */
  onUngranted?: (() => void) | undefined;
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
  /** Whether calls had to wait since the last report. */
  #hasWaited = false;
  #isGranted = false;

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
  }

  /** Begins a call if the limit allows it and no other one waits. Returns the number for `end`, or null. */
  tryBegin(): number | null {
    return this.#waiting.size > 0 || !this.#limit.mayBegin(this.#deps.now()) ? null : this.#limit.begin();
  }

  /**
   * Waits until the call has begun, and returns the number for `end`. Throws the reason of the signal if it aborts first.
   */
  async wait(group: string, signal: AbortSignal): Promise<number> {
    this.#timer ??= setInterval(() => this.#step(), stepMs).unref();
    if (!this.#isGranted && !this.#hasWaited) this.#deps.onUngranted?.();
    this.#hasWaited = true;
    const begun = { others: 0 };
    if (!(await this.#waiting.join(group, begun, signal))) throw signal.reason as Error;
    return begun.others;
  }

  /** `others`: the number of a background call; absent for a live one. */
  end(how: CallEnd, others?: number): void {
    this.#limit.end(how, this.#deps.now(), others);
    this.#admit();
  }

  /** What the other processes have to know; null: nothing. */
  report(): CallReport | null {
    const report = this.#limit.report(this.#hasWaited || this.#waiting.size > 0, this.#deps.now());
    this.#hasWaited = this.#waiting.size > 0;
    return isIdle(report) && !this.#isGranted ? null : report;
  }

  /** Applies the answer to the last report. null: there is no shared limit, because no background call needed one. */
  take(grant: CallGrant | null, report: CallReport): void {
    this.#isGranted = grant !== null && !isIdle(report);
    if (grant === null) return this.#limit.lose();
    this.#limit.take(grant, this.#deps.now());
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
    while (this.#limit.mayBegin(this.#deps.now())) {
      const next = this.#waiting.next(() => true);
      if (next === undefined) return;
      next.item.others = this.#limit.begin();
      this.#waiting.start(next);
    }
  }
}

const isIdle = ({ live, background, wantsMore }: CallReport): boolean => live === 0 && background === 0 && !wantsMore;

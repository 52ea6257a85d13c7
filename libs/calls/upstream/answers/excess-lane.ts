/** The share of the main thread's time that the excess of one workspace can take in the long run, and its burst. */
const shareOfTime = 0.1;
const burstMs = 100;
/**
 * Below this a workspace is not in excess. A garbage collection in the middle of a piece makes that piece look
 * expensive: a worker with 7,000 calls a second measures about 20 ms of such excess per second.
 */
const toleratedMs = 20;
/**
 * After this much of one turn of the event loop, all sockets of a workspace that is in excess wait for the next turn. A
 * call of another workspace waits this long in each of its five or six turns.
 */
const excessTurnMsMax = 0.5;

/** The excess time of the sockets of one workspace. While it is in excess, they also share a turn of the event loop. */
export class ExcessLane {
  paidAtMs = 0;
  #turnMs = 0;
  /** Sockets that wait for a turn in which time is left, in order. */
  readonly #waiting: (() => void)[] = [];
  #isTurnDue = false;

  isInExcess(at: number): boolean {
    return this.paidAtMs - at > toleratedMs / shareOfTime;
  }

  isTurnOver(): boolean {
    return this.#turnMs >= excessTurnMsMax;
  }

  spendTurn(ms: number): void {
    this.#turnMs += ms;
  }

  /** Counts the excess of one piece. Returns how long to wait before the next one is read. */
  addExcess(at: number, excessMs: number): number {
    this.paidAtMs = Math.max(this.paidAtMs, at) + excessMs / shareOfTime;
    return this.paidAtMs - at - burstMs / shareOfTime;
  }

  waitForTurn(release: () => void): void {
    this.#waiting.push(release);
    this.#callTurn();
  }

  #callTurn(): void {
    if (!this.#isTurnDue) setImmediate(this.#startTurn);
    this.#isTurnDue = true;
  }

  readonly #startTurn = (): void => {
    this.#isTurnDue = false;
    this.#turnMs = 0;
    while (!this.isTurnOver()) {
      const next = this.#waiting.shift();
      if (next === undefined) return;
      next();
    }
    if (this.#waiting.length > 0) this.#callTurn();
  };
}

/** Growth stops above this many times the median. */
const slowFactor = 1.5;
/** How much the last step changes the recent time. */
const recentGain = 1 / 4;
/** How far the median moves with each step. It takes a lasting change over within about twenty seconds. */
const medianStep = 0.01;

/**
 * The time that a provider takes for each output token. Unlike the latency of a call, it does not follow from the length
 * of the answer, so a provider that becomes slow for its load shows in it, before it rejects calls.
 */
export class TokenTime {
  #ms = 0;
  #tokens = 0;
  #recent: number | null = null;
  #median = 0;

  add(ms: number, tokens: number): void {
    if (tokens === 0) return;
    this.#ms += ms;
    this.#tokens += tokens;
  }

  /** Ends a step of a quarter second. Returns whether tokens take much longer than usual. */
  step(): boolean {
    if (this.#tokens > 0) {
      const now = this.#ms / this.#tokens;
      if (this.#recent === null) this.#median = now;
      this.#recent = this.#recent === null ? now : this.#recent + (now - this.#recent) * recentGain;
      this.#ms = 0;
      this.#tokens = 0;
    }
    if (this.#recent === null) return false;
    this.#median *= 1 + Math.sign(this.#recent - this.#median) * medianStep;
    return this.#recent > slowFactor * this.#median;
  }
}

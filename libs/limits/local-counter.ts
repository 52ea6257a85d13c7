import { Big } from 'big.js';
import { leaseMs, type LeaseGrant, type LeaseRequest } from './counter.ts';

/** A right to use part of a counter, for one call. It must be settled exactly once. */
export type Draw = { readonly amount: Big; readonly epoch: number };

const zero = new Big(0);
/**
 * A lease is no longer used this long before it expires in the database, because the clocks of two processes can differ
 * slightly.
 */
const marginMs = 2_000;
/** A lease in use is renewed when this much of its time is left. */
const renewBeforeMs = 10_000;

/**
 * One process's part of a counter: its lease, and the amounts that its calls have reserved and used. It does no I/O:
 * the (database's) time and the database's grants are passed in.
 *
 * The lease always equals `free` + `reserved` + use that is not yet reported. Calls move amounts between the three, so
 * that draws never exceed the granted amount. Only a call that uses more than it drew can exceed it, and `free` is
 * below 0 in that case.
 */
export class LocalCounter {
  readonly #holder: string;
  #free = zero;
  #reserved = zero;
  /** The use by calls that have ended in this period, and how much of it the database knows. */
  #used = zero;
  #known = zero;
  /** The part of `#used` that was reserved and is not confirmed. */
  #unconfirmed = zero;
  #unconfirmedKnown = zero;
  #unpriced = 0;
  #unpricedKnown = 0;
  /** Counts periods: a draw of a period that is over reserves nothing any more. */
  #epoch = 0;
  #periodStartMs: number | null = null;
  #periodEndMs = 0;
  #expiresAtMs = 0;
  /**
   * The amount drawn since the last tick, and a sum that loses a fifth of itself with each tick: approximately the
   * amount of the last five ticks.
   */
  #drawn = zero;
  #recent = 0;
  #largest = zero;
  #requests = 0;
  /** The running request; null: there is none. */
  #asked: { used: Big; unconfirmed: Big; unpriced: number; hold: Big; deficit: Big } | null = null;

  /** `holder` must be unique to this object: the database adds up the reports of each holder. */
  constructor(holder: string) {
    this.#holder = holder;
  }

  /** Reserves `amount` for a call. null: the lease does not have enough left. */
  draw(amount: Big, nowMs: number): Draw | null {
    requireAmount(amount);
    if (this.#free.lt(amount) || !this.isValid(nowMs)) return null;
    this.#free = this.#free.minus(amount);
    this.#reserved = this.#reserved.plus(amount);
    this.#drawn = this.#drawn.plus(amount);
    if (amount.gt(this.#largest)) this.#largest = amount;
    return { amount, epoch: this.#epoch };
  }

  /**
   * Ends a draw: its call has used `used`, which can be more than it drew. `unconfirmed` of it was only reserved.
   * `staysUsed`: it also counts after its period.
   */
  settle({ amount, epoch }: Draw, used: Big, staysUsed: boolean, unconfirmed = zero): void {
    requireAmount(used);
    const isCurrent = epoch === this.#epoch;
    if (!isCurrent && !staysUsed) return;
    if (isCurrent) {
      this.#reserved = this.#reserved.minus(amount);
      this.#free = this.#free.plus(amount);
    }
    if (used.gt(0)) this.use(used, unconfirmed);
  }

  /** Counts use that was not drawn before. */
  use(used: Big, unconfirmed = zero): void {
    requireAmount(used);
    this.#free = this.#free.minus(used);
    this.#used = this.#used.plus(used);
    if (unconfirmed !== zero) this.#unconfirmed = this.#unconfirmed.plus(unconfirmed);
  }

  countUnpriced(): void {
    this.#unpriced += 1;
  }

  /** Whether calls can draw now: the lease has not expired, and its period is not over. */
  isValid(nowMs: number): boolean {
    return nowMs < this.#periodEndMs && nowMs < this.#expiresAtMs - marginMs;
  }

  /** Call this ten times a second. The draws of the last ticks determine how much to lease ahead. */
  tick(): void {
    this.#recent = this.#recent * 0.8 + this.#drawn.toNumber();
    this.#drawn = zero;
    // About a second without a call.
    if (this.#recent <= this.#largest.toNumber() / 10) this.#largest = zero;
  }

  /** No more calls will come: everything that is free is returned. */
  retire(): void {
    this.#largest = zero;
  }

  /**
   * The expected use of calls in about half a second, at least that of the largest of the last ones; 0 if there are no
   * calls.
   */
  #ahead(): Big {
    if (this.#largest.eq(0)) return zero;
    const recent = new Big(this.#recent.toPrecision(6)).plus(this.#drawn);
    return recent.gt(this.#largest) ? recent : this.#largest;
  }

  /** Whether half of the amount leased ahead is used. More should be available before it runs out. */
  isLow(): boolean {
    return this.#free.lt(this.#ahead().div(2));
  }

  /** Whether there is something to report or return, or the lease has to be extended. */
  isToBeSynced(nowMs: number): boolean {
    if (this.#used.gt(this.#known) || this.#unpriced > this.#unpricedKnown) return true;
    if (this.#free.gt(this.#ahead().times(2))) return true;
    return (this.#reserved.gt(0) || this.#free.gt(0)) && nowMs > this.#expiresAtMs - renewBeforeMs;
  }

  /** Whether the counter holds and reports nothing, so that it can be forgotten. */
  isIdle(): boolean {
    const isReported = this.#used.eq(this.#known) && this.#unpriced === this.#unpricedKnown;
    return isReported && this.#free.lte(0) && this.#reserved.eq(0) && this.#largest.eq(0) && this.#asked === null;
  }

  /**
   * Returns the request to the database, when calls wait for these amounts. The returned amount can no longer be drawn,
   * because another process can be granted it before the answer arrives.
   */
  ask(amounts: readonly Big[], nowMs: number): LeaseRequest {
    amounts.forEach(requireAmount);
    const waiting = amounts.reduce((sum, amount) => sum.plus(amount), zero);
    const smallest = amounts.reduce((least, amount) => smaller(least, amount), waiting);
    // In whole steps, because it is shown as used if this process dies, and a third of a token would be confusing.
    const wanted = larger(upToSteps(this.#ahead(), this.#largest), waiting);
    // Near the end of a limit, processes that each keep too little for a call would block each other.
    const kept = this.#free.lt(smallest) ? zero : atLeastZero(smaller(this.#free, wanted));
    const deficit = atLeastZero(zero.minus(this.#free));
    if (this.#free.gt(kept)) this.#free = kept;
    const hold = this.#reserved.plus(kept);
    this.#asked = { used: this.#used, unconfirmed: this.#unconfirmed, unpriced: this.#unpriced, hold, deficit };
    // The amount kept in a period that is possibly over does not help the waiting calls.
    const useful = this.isValid(nowMs) ? kept : zero;
    const need = atLeastZero(waiting.minus(useful));
    const least = atLeastZero(smallest.minus(useful));
    this.#requests += 1;
    return {
      holder: this.#holder,
      number: this.#requests,
      periodStartMs: this.#periodStartMs,
      reported: this.#used,
      unconfirmed: this.#unconfirmed,
      unpriced: this.#unpriced,
      known:
        this.#periodStartMs === null
          ? null
          : {
              reported: this.#known,
              unconfirmed: this.#unconfirmedKnown,
              unpriced: this.#unpricedKnown,
              atMs: this.#expiresAtMs - leaseMs,
            },
      hold,
      need,
      least,
      ahead: atLeastZero(this.#ahead().minus(useful)),
      unit: this.#largest,
    };
  }

  /** Applies the answer to the last request. */
  take({ period, amount, expiresAtMs }: LeaseGrant): void {
    const asked = this.#asked;
    if (asked === null) throw new Error('a lease was granted that was not requested');
    this.#asked = null;
    this.#expiresAtMs = expiresAtMs;
    this.#periodEndMs = period.endMs;
    if (period.startMs === this.#periodStartMs) {
      this.#known = asked.used;
      this.#unconfirmedKnown = asked.unconfirmed;
      this.#unpricedKnown = asked.unpriced;
      this.#free = this.#free.plus(asked.deficit).plus(amount).minus(asked.hold);
      return;
    }
    this.#periodStartMs = period.startMs;
    this.#epoch += 1;
    this.#free = amount;
    this.#reserved = zero;
    this.#used = zero;
    this.#known = zero;
    this.#unconfirmed = zero;
    this.#unconfirmedKnown = zero;
    this.#unpriced = 0;
    this.#unpricedKnown = 0;
  }

  /** The last request was not answered. The part of the lease that it kept is still valid, until the lease expires. */
  lose(): void {
    this.#asked = null;
  }
}

/** Throws for an amount below 0, which would be a credit. A Big is always finite: its constructor refuses Infinity. */
function requireAmount(amount: Big): void {
  if (amount.s < 0 && !amount.eq(0)) throw new RangeError(`a limit cannot count ${amount.toFixed()}`);
}

const smaller = (a: Big, b: Big): Big => (a.lt(b) ? a : b);
const larger = (a: Big, b: Big): Big => (a.gt(b) ? a : b);
const upToSteps = (amount: Big, step: Big): Big =>
  step.eq(0) ? amount : amount.div(step).round(0, Big.roundUp).times(step);
const atLeastZero = (amount: Big): Big => (amount.lt(0) ? zero : amount);

import { formatAmount, larger, smaller, type Amount } from '#libs/kernel/amount.ts';
import { leaseMs, type LeaseGrant, type LeaseRequest } from './counter.ts';

/** A right to use part of a counter, for one call. It must be settled exactly once. */
export type Draw = { readonly amount: Amount; readonly epoch: number };

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
  #free = 0n;
  #reserved = 0n;
  /** The use by calls that have ended in this period, and how much of it the database knows. */
  #used = 0n;
  #known = 0n;
  /** The part of `#used` that was reserved and is not confirmed. */
  #unconfirmed = 0n;
  #unconfirmedKnown = 0n;
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
  #drawn = 0n;
  #recent = 0;
  #largest = 0n;
  #requests = 0;
  /** The running request; null: there is none. */
  #asked: { used: Amount; unconfirmed: Amount; unpriced: number; hold: Amount; deficit: Amount } | null = null;

  /** `holder` must be unique to this object: the database adds up the reports of each holder. */
  constructor(holder: string) {
    this.#holder = holder;
  }

  /** What calls can draw without a request; below 0 if they have used more than they drew. */
  get free(): Amount {
    return this.#free;
  }

  /** Reserves `amount` for a call. null: the lease does not have enough left. */
  draw(amount: Amount, nowMs: number): Draw | null {
    requireAmount(amount);
    if (this.#free < amount || !this.isValid(nowMs)) return null;
    this.#free -= amount;
    this.#reserved += amount;
    this.#drawn += amount;
    if (amount > this.#largest) this.#largest = amount;
    return { amount, epoch: this.#epoch };
  }

  /**
   * Ends a draw: its call has used `used`, which can be more than it drew. `unconfirmed` of it was only reserved.
   * `staysUsed`: it also counts after its period.
   */
  settle({ amount, epoch }: Draw, used: Amount, staysUsed: boolean, unconfirmed = 0n): void {
    requireAmount(used);
    const isCurrent = epoch === this.#epoch;
    if (!isCurrent && !staysUsed) return;
    if (isCurrent) {
      this.#reserved -= amount;
      this.#free += amount;
    }
    if (used > 0n) this.use(used, unconfirmed);
  }

  /** Counts use that was not drawn before. */
  use(used: Amount, unconfirmed = 0n): void {
    requireAmount(used);
    this.#free -= used;
    this.#used += used;
    this.#unconfirmed += unconfirmed;
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
    this.#recent = this.#recent * 0.8 + Number(this.#drawn);
    this.#drawn = 0n;
    // About a second without a call.
    if (this.#recent <= Number(this.#largest) / 10) this.#largest = 0n;
  }

  /** No more calls will come: everything that is free is returned. */
  retire(): void {
    this.#largest = 0n;
  }

  /**
   * The expected use of calls in about half a second, at least that of the largest of the last ones; 0 if there are no
   * calls.
   */
  #ahead(): Amount {
    if (this.#largest === 0n) return 0n;
    // The last digits of the sum are not exact, and would be one more step.
    const recent = BigInt(Math.round(Number(this.#recent.toPrecision(6))));
    return larger(recent + this.#drawn, this.#largest);
  }

  /** Whether half of the amount leased ahead is used. More should be available before it runs out. */
  isLow(): boolean {
    return this.#free * 2n < this.#ahead();
  }

  /** Whether there is something to report or return, or the lease has to be extended. */
  isToBeSynced(nowMs: number): boolean {
    if (this.#used > this.#known || this.#unpriced > this.#unpricedKnown) return true;
    if (this.#free > this.#ahead() * 2n) return true;
    return (this.#reserved > 0n || this.#free > 0n) && nowMs > this.#expiresAtMs - renewBeforeMs;
  }

  /** Whether the counter holds and reports nothing, so that it can be forgotten. */
  isIdle(): boolean {
    const isReported = this.#used === this.#known && this.#unpriced === this.#unpricedKnown;
    return isReported && this.#free <= 0n && this.#reserved === 0n && this.#largest === 0n && this.#asked === null;
  }

  /**
   * Returns the request to the database, when calls wait for these amounts. The returned amount can no longer be drawn,
   * because another process can be granted it before the answer arrives.
   */
  ask(amounts: readonly Amount[], nowMs: number): LeaseRequest {
    amounts.forEach(requireAmount);
    const waiting = amounts.reduce((sum, amount) => sum + amount, 0n);
    const smallest = amounts.reduce((least, amount) => smaller(least, amount), waiting);
    // In whole steps, because it is shown as used if this process dies, and a third of a token would be confusing.
    const wanted = larger(upToSteps(this.#ahead(), this.#largest), waiting);
    // Near the end of a limit, processes that each keep too little for a call would block each other.
    const kept = this.#free < smallest ? 0n : atLeastZero(smaller(this.#free, wanted));
    const deficit = atLeastZero(-this.#free);
    if (this.#free > kept) this.#free = kept;
    const hold = this.#reserved + kept;
    this.#asked = { used: this.#used, unconfirmed: this.#unconfirmed, unpriced: this.#unpriced, hold, deficit };
    // The amount kept in a period that is possibly over does not help the waiting calls.
    const useful = this.isValid(nowMs) ? kept : 0n;
    const need = atLeastZero(waiting - useful);
    const least = atLeastZero(smallest - useful);
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
      ahead: atLeastZero(this.#ahead() - useful),
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
      this.#free += asked.deficit + amount - asked.hold;
      return;
    }
    this.#periodStartMs = period.startMs;
    this.#epoch += 1;
    this.#free = amount;
    this.#reserved = 0n;
    this.#used = 0n;
    this.#known = 0n;
    this.#unconfirmed = 0n;
    this.#unconfirmedKnown = 0n;
    this.#unpriced = 0;
    this.#unpricedKnown = 0;
  }

  /** The last request was not answered. The part of the lease that it kept is still valid, until the lease expires. */
  lose(): void {
    this.#asked = null;
  }
}

/** Throws for an amount below 0, which would be a credit. */
function requireAmount(amount: Amount): void {
  if (amount < 0n) throw new RangeError(`a limit cannot count ${formatAmount(amount)}`);
}

const upToSteps = (amount: Amount, step: Amount): Amount =>
  step === 0n ? amount : ((amount + step - 1n) / step) * step;
const atLeastZero = (amount: Amount): Amount => larger(amount, 0n);

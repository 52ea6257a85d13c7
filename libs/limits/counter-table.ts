import type { Amount } from '#libs/kernel/amount.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { LeaseGrant, LimitTerms } from './counter.ts';
import type { CounterName } from './counter-store.ts';
import { LocalCounter, type Draw } from './local-counter.ts';

/** A counter as this process uses it. `terms` can change during its lifetime. */
export type CounterHandle = { readonly name: CounterName; terms: LimitTerms };

/**
 * Why a draw was refused, according to the last answer of the database. `too_many`: the limit has reached its maximum
 * of counters.
 */
export type Refusal = { reason: 'used_up'; grant: LeaseGrant } | { reason: 'too_many' };

export type Waiter = { amount: Amount; resolve: (draw: Draw | Refusal) => void; reject: (error: unknown) => void };

export type Entry = CounterHandle & {
  local: LocalCounter;
  waiters: Waiter[];
  /** Until then, a call that wants more than this is refused without another request. */
  refused: { untilMs: number; free: Amount; refusal: Refusal } | null;
  syncedMs: number;
  /** When to ask again for the waiting calls of a pace. */
  askAgainMs: number;
  /** null: active. */
  idleSinceMs: number | null;
};

const forgetAfterMs = 60_000;

/** The counters of one process, by name. Idle ones are forgotten after a minute, or earlier when there are too many. */
export class CounterTable {
  readonly #countersMax: number;
  readonly #monotonicMs: () => number;
  readonly #entries = new Map<string, Entry>();
  /**
   * The entries that hold something, have something to report, or have waiting callers. Only these are checked ten
   * times a second, because a caller can make a new counter with each call.
   */
  readonly #active = new Set<Entry>();
  /** All others. The entry that has been idle for longest comes first. */
  readonly #idle = new Set<Entry>();
  readonly #process = newId('holder_');
  #made = 0;

  constructor(countersMax: number, monotonicMs: () => number) {
    this.#countersMax = countersMax;
    this.#monotonicMs = monotonicMs;
  }

  get size(): number {
    return this.#entries.size;
  }

  get active(): ReadonlySet<Entry> {
    return this.#active;
  }

  find(name: CounterName, terms: LimitTerms): Entry {
    const found = this.#entries.get(name.id);
    if (found !== undefined) {
      if (found.terms !== terms) {
        found.terms = terms;
        found.refused = null;
      }
      return found;
    }
    this.#made += 1;
    const local = new LocalCounter(`${this.#process}.${this.#made}`);
    const idleSinceMs = this.#monotonicMs();
    const entry: Entry = { name, terms, local, waiters: [], refused: null, syncedMs: 0, askAgainMs: 0, idleSinceMs };
    this.#entries.set(name.id, entry);
    this.#idle.add(entry);
    if (this.#entries.size > this.#countersMax) this.#forgetOldest();
    return entry;
  }

  activate(entry: Entry): void {
    if (entry.idleSinceMs === null) return;
    entry.idleSinceMs = null;
    this.#idle.delete(entry);
    this.#active.add(entry);
  }

  /** Call this ten times a second. Moves the entries that are no longer in use, and forgets old ones. */
  tick(nowMs: number): void {
    for (const entry of this.#active) {
      entry.local.tick();
      if (entry.waiters.length > 0 || !entry.local.isIdle()) continue;
      this.#active.delete(entry);
      this.#idle.add(entry);
      entry.idleSinceMs = nowMs;
    }
    for (const { idleSinceMs } of this.#idle) {
      if (idleSinceMs !== null && nowMs - idleSinceMs < forgetAfterMs) return;
      this.#forgetOldest();
    }
  }

  /** Forgets the entry that has been idle for longest. */
  #forgetOldest(): void {
    const entry = this.#idle.values().next().value;
    if (entry === undefined) return;
    this.#idle.delete(entry);
    // A call that ended late may have kept a forgotten entry in use, which has been replaced since.
    if (this.#entries.get(entry.name.id) === entry) this.#entries.delete(entry.name.id);
  }
}

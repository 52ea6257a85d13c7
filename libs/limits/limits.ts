import type { Amount } from '#libs/kernel/amount.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import type { LimitTerms } from './counter.ts';
import type { CounterName, CounterStore, Renewed } from './counter-store.ts';
import { CounterTable, type CounterHandle, type Entry, type Refusal, type Waiter } from './counter-table.ts';
import type { Draw } from './local-counter.ts';

type Deps = {
  store: CounterStore;
  /** The database's clock. */
  clock: Clock;
  logger: Logger;
  /** The threshold of an alert was passed. The receiver records it, once. */
  onAlertDue: (counter: CounterName, terms: LimitTerms, used: Amount) => void;
  /** The maximum of counters in this process. Beyond it, the oldest idle ones are forgotten. Default 50,000. */
  countersMax?: number;
  monotonicMs?: () => number;
};

const tickMs = 100;
/** How often use is reported while calls arrive. */
const reportMs = 250;
/** How soon a lease is extended that is nearly used up. */
const extendMs = 40;
/** How soon the calls are asked for again whose turn has not come. */
const askAgainMs = 100;
const renewalsMax = 200;
/** A request that takes longer has failed, because a client waits for it. */
const answerMsMax = 2_000;
/** After a failure, callers that have to wait are refused for this long. */
const awayMs = 500;
/** How long a refusal is valid: shorter while other processes can still return part of the budget. */
const refusalMs = { usedUp: 1_000, leased: 100 };

/**
 * The counters that calls of this process draw from. Each holds a lease on a part of its limit, and the leases are
 * renewed in the background, many in one transaction. A call waits only when its counter has no lease yet, or near the
 * end of a limit, where leases shrink to the needs of single calls.
 */
export class Limits {
  readonly name = 'limits';
  readonly #deps: Deps;
  readonly #monotonicMs: () => number;
  readonly #counters: CounterTable;
  readonly #loop: BackgroundLoop;
  #awayUntilMs = 0;
  #tickedMs = 0;
  #isStopping = false;

  constructor(deps: Deps) {
    this.#deps = deps;
    this.#monotonicMs = deps.monotonicMs ?? (() => performance.now());
    this.#counters = new CounterTable(deps.countersMax ?? 50_000, this.#monotonicMs);
    // Calls under a limit wait for it, or are refused while it fails.
    this.#loop = createBackgroundLoop({
      name: this.name,
      periodMs: tickMs,
      run: () => this.#run(),
      logger: deps.logger,
    });
  }

  start(): void {
    this.#loop.start();
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    await this.#loop.stop();
    // Reports the amounts that were used and returns those that were leased, if the database is available.
    for (const entry of this.#counters.active) entry.local.retire();
    await this.#syncAll().catch((error: unknown) =>
      this.#deps.logger.warn({ err: error }, 'limits were not reported at the end'),
    );
  }

  /**
   * The counter of this name, with the current terms. Request it again for each call: it is removed when it is not in use.
   */
  counter(name: CounterName, terms: LimitTerms): CounterHandle {
    return this.#counters.find(name, terms);
  }

  /**
   * Reserves `amount`: synchronously from this process's lease, which is the usual case, or else by a promise, which
   * asks the database. Resolves with a refusal when not enough is left; rejects with unavailable when the database does
   * not answer. A call that draws from a pace waits for its turn instead of being refused, until `signal` aborts.
   */
  draw(counter: CounterHandle, amount: Amount, signal?: AbortSignal): Draw | Promise<Draw | Refusal> {
    const entry = counter as Entry;
    const isBehindOthers = isPace(entry) && entry.waiters.length > 0;
    const drawn = isBehindOthers ? null : entry.local.draw(amount, this.#deps.clock.now());
    if (drawn !== null) {
      this.#counters.activate(entry);
      return drawn;
    }
    const nowMs = this.#monotonicMs();
    if (entry.refused !== null) {
      if (nowMs < entry.refused.untilMs && amount > entry.refused.free) return Promise.resolve(entry.refused.refusal);
      if (nowMs >= entry.refused.untilMs) entry.refused = null;
    }
    if (nowMs < this.#awayUntilMs || this.#isStopping) return Promise.reject(unavailable());
    return new Promise((resolve, reject) => {
      const waiter: Waiter = { amount, resolve, reject };
      entry.waiters.push(waiter);
      signal?.addEventListener('abort', () => leave(entry, waiter, signal), { once: true });
      this.#counters.activate(entry);
      if (nowMs >= entry.askAgainMs) void this.#loop.wake();
    });
  }

  /**
   * Ends a draw with the use of its call, of which `unconfirmed` was only reserved. Counters of budgets count it even
   * if their period is over by then.
   */
  settle(counter: CounterHandle, draw: Draw, used: Amount, unconfirmed?: Amount): void {
    this.#activate(counter).local.settle(draw, used, counter.name.kind === 'budget', unconfirmed);
  }

  /** Counts use that was not drawn before. */
  use(counter: CounterHandle, used: Amount, unconfirmed?: Amount): void {
    this.#activate(counter).local.use(used, unconfirmed);
  }

  countUnpriced(counter: CounterHandle): void {
    this.#activate(counter).local.countUnpriced();
  }

  stats(): { counters: number; waiting: number } {
    let waiting = 0;
    for (const { waiters } of this.#counters.active) waiting += waiters.length;
    return { counters: this.#counters.size, waiting };
  }

  #activate(counter: CounterHandle): Entry {
    const entry = counter as Entry;
    this.#counters.activate(entry);
    return entry;
  }

  #run(): 'idle' | Promise<'idle' | undefined> {
    const nowMs = this.#monotonicMs();
    // Callers that wait wake the loop more often.
    if (nowMs - this.#tickedMs >= tickMs) {
      this.#tickedMs = nowMs;
      this.#counters.tick(nowMs);
    }
    return this.#monotonicMs() < this.#awayUntilMs ? 'idle' : this.#syncAll();
  }

  async #syncAll(): Promise<'idle' | undefined> {
    for (let isIdle = true; ; isIdle = false) {
      const [nowMs, databaseMs] = [this.#monotonicMs(), this.#deps.clock.now()];
      const due = [...this.#counters.active].filter((entry) => this.#isDue(entry, nowMs, databaseMs));
      if (due.length === 0) return isIdle ? 'idle' : undefined;
      const chosen = inTurns(due.toSorted(waitedForFirst));
      try {
        await this.#sync(chosen);
      } catch (error) {
        this.#awayUntilMs = this.#monotonicMs() + awayMs;
        for (const entry of chosen) {
          entry.local.lose();
          for (const { reject } of entry.waiters.splice(0)) reject(unavailable());
        }
        throw error;
      }
    }
  }

  #isDue(entry: Entry, nowMs: number, databaseMs: number): boolean {
    if (entry.waiters.length > 0) {
      if (nowMs >= entry.askAgainMs) return true;
      if (!this.#isStopping) return false;
    }
    const agoMs = nowMs - entry.syncedMs;
    if (agoMs >= extendMs && entry.refused === null && entry.local.isLow()) return true;
    return (agoMs >= reportMs || this.#isStopping) && entry.local.isToBeSynced(databaseMs);
  }

  async #sync(due: readonly Entry[]): Promise<void> {
    const databaseMs = this.#deps.clock.now();
    const asked = due.map((entry) => {
      const waiters = entry.waiters.slice();
      const amounts = waiters.map((waiter) => wantedBy(waiter, entry));
      const { name, terms, local } = entry;
      return { entry, waiters, renewal: { name, terms, request: local.ask(amounts, databaseMs) } };
    });
    const work = this.#deps.store.renew(asked.map(({ renewal }) => renewal));
    work.catch(() => {}); // It can fail after the last caller has stopped waiting for it.
    const renewed = await untilAborted(work, AbortSignal.timeout(answerMsMax), () => {
      throw unavailable();
    });
    for (const [index, { entry, waiters }] of asked.entries()) this.#serve(entry, waiters, renewed[index] ?? 'stale');
  }

  /** Applies a renewed lease and lets the waiting callers continue, in their order. */
  #serve(entry: Entry, waiters: readonly Waiter[], renewed: Renewed): void {
    const { local } = entry;
    entry.syncedMs = this.#monotonicMs();
    if (renewed === 'stale') return local.lose();
    const isAsked = new Set(waiters);
    const served = entry.waiters.filter((waiter) => isAsked.has(waiter));
    entry.waiters = entry.waiters.filter((waiter) => !isAsked.has(waiter));
    if (renewed === 'too_many') {
      local.lose();
      const refusal: Refusal = { reason: 'too_many' };
      entry.refused = { untilMs: entry.syncedMs + refusalMs.usedUp, free: 0n, refusal };
      for (const { resolve } of served) resolve(refusal);
      return;
    }
    const { grant, isAlertDue } = renewed;
    local.take(grant);
    const nowMs = this.#deps.clock.now();
    const refusal: Refusal = { reason: 'used_up', grant };
    let isRefused = false;
    const later: Waiter[] = [];
    for (const waiter of served) {
      const amount = wantedBy(waiter, entry);
      const draw = isPace(entry) && later.length > 0 ? null : local.draw(amount, nowMs);
      // The period has ended meanwhile, or other calls have drawn from the lease or used more than they had drawn.
      const isAskedAgain = !local.isValid(nowMs) || amount <= grant.free + local.free;
      if (draw !== null) waiter.resolve(draw);
      else if (isPace(entry) || isAskedAgain) later.push(waiter);
      else {
        isRefused = true;
        waiter.resolve(refusal);
      }
    }
    entry.waiters.unshift(...later);
    entry.askAgainMs = isPace(entry) && later.length > 0 ? entry.syncedMs + askAgainMs : 0;
    const ms = grant.leasedByOthers > 0n ? refusalMs.leased : refusalMs.usedUp;
    const untilMs = Math.min(this.#monotonicMs() + ms, this.#monotonicMs() + grant.period.endMs - nowMs);
    entry.refused = isRefused ? { untilMs, free: grant.free, refusal } : null;
    if (isAlertDue) this.#deps.onAlertDue(entry.name, entry.terms, grant.used);
  }
}

const isPace = ({ terms }: Entry): boolean => terms.reset.every === 'pace';

/** The limit may have been lowered since the call began to wait for its pace. */
const wantedBy = ({ amount }: Waiter, entry: Entry): Amount =>
  isPace(entry) && amount > entry.terms.max ? entry.terms.max : amount;

/** Ends the wait of a call, unless its draw has just been granted. */
function leave(entry: Entry, waiter: Waiter, { reason }: AbortSignal): void {
  const place = entry.waiters.indexOf(waiter);
  if (place === -1) return;
  entry.waiters.splice(place, 1);
  waiter.reject(reason);
}

/** A caller must not wait for the reports of others. */
const waitedForFirst = (a: Entry, b: Entry): number => Number(b.waiters.length > 0) - Number(a.waiters.length > 0);

/**
 * Selects as many entries as one transaction renews, from each workspace in turn, so that the callers of others do not
 * wait for all counters of a workspace with thousands.
 */
function inTurns(due: readonly Entry[]): readonly Entry[] {
  if (due.length <= renewalsMax) return due;
  const queues = [...Map.groupBy(due, ({ name }) => name.workspaceId).values()];
  const chosen: Entry[] = [];
  for (let place = 0; chosen.length < renewalsMax; place += 1) {
    for (const queue of queues) {
      const entry = queue[place];
      if (entry !== undefined && chosen.length < renewalsMax) chosen.push(entry);
    }
  }
  return chosen;
}

const unavailable = (): GatewayError =>
  new GatewayError(
    'unavailable',
    'limits_unavailable',
    'The limits of this call cannot be checked because the database is temporarily unavailable. Try again shortly.',
    { retryAfterMs: 1_000 },
  );

import { Big } from 'big.js';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import type { LeaseGrant, LimitTerms } from './counter.ts';
import type { CounterName, CounterStore, Renewed } from './counter-store.ts';
import { LocalCounter, type Draw } from './local-counter.ts';

/** A counter as this process uses it. `terms` can change during its lifetime. */
export type CounterHandle = { readonly name: CounterName; terms: LimitTerms };

/**
 * Why a draw was refused, according to the last answer of the database. `too_many`: the limit has reached its maximum
 * of counters.
 */
export type Refusal = { reason: 'used_up'; grant: LeaseGrant } | { reason: 'too_many' };

export type Limits = Pick<BackgroundLoop, 'name' | 'start' | 'stop'> & {
  /**
   * The counter of this name, with the current terms. Request it again for each call: it is removed when it is not in use.
   */
  counter(name: CounterName, terms: LimitTerms): CounterHandle;
  /**
   * Reserves `amount`: synchronously from this process's lease, which is the usual case, or else by a promise, which
   * asks the database. Resolves with a refusal when not enough is left; rejects with unavailable when the database does
   * not answer.
   */
  draw(counter: CounterHandle, amount: Big): Draw | Promise<Draw | Refusal>;
  /**
   * Ends a draw with the use of its call, of which `unconfirmed` was only reserved. Counters of budgets count it even
   * if their period is over by then.
   */
  settle(counter: CounterHandle, draw: Draw, used: Big, unconfirmed?: Big): void;
  /** Counts use that was not drawn before. */
  use(counter: CounterHandle, used: Big, unconfirmed?: Big): void;
  countUnpriced(counter: CounterHandle): void;
  stats(): { counters: number; waiting: number };
};

type Waiter = { amount: Big; resolve: (draw: Draw | Refusal) => void; reject: (error: unknown) => void };

type Entry = CounterHandle & {
  local: LocalCounter;
  waiters: Waiter[];
  /** Until then, a call that wants more than this is refused without another request. */
  refused: { untilMs: number; free: Big; refusal: Refusal } | null;
  syncedMs: number;
  /** null: active. */
  idleSinceMs: number | null;
};

type Deps = {
  store: CounterStore;
  /** The database's clock. */
  clock: Clock;
  logger: Logger;
  /** The threshold of an alert was passed. The receiver records it, once. */
  onAlertDue: (counter: CounterName, terms: LimitTerms, used: Big) => void;
  /** The maximum of counters in this process. Beyond it, the oldest idle ones are forgotten. Default 50,000. */
  countersMax?: number;
  monotonicMs?: () => number;
};

const tickMs = 100;
/** How often use is reported while calls arrive. */
const reportMs = 250;
/** How soon a lease is extended that is nearly used up. */
const extendMs = 40;
const renewalsMax = 200;
/** A request that takes longer has failed, because a client waits for it. */
const answerMsMax = 2_000;
/** After a failure, callers that have to wait are refused for this long. */
const awayMs = 500;
/** How long a refusal is valid: shorter while other processes can still return part of the budget. */
const refusalMs = { usedUp: 1_000, leased: 100 };
const forgetAfterMs = 60_000;

const zero = new Big(0);

/**
 * The counters that calls of this process draw from. Each holds a lease on a part of its limit, and the leases are
 * renewed in the background, many in one transaction. A call waits only when its counter has no lease yet, or near the
 * end of a limit, where leases shrink to the needs of single calls.
 */
export function createLimits(deps: Deps): Limits {
  const { store, clock, logger, onAlertDue, countersMax = 50_000 } = deps;
  const monotonicMs = deps.monotonicMs ?? (() => performance.now());
  const entries = new Map<string, Entry>();
  /**
   * The entries that hold something, have something to report, or have waiting callers. Only these are checked ten
   * times a second, because a caller can make a new counter with each call.
   */
  const active = new Set<Entry>();
  /** All others. The entry that has been idle for longest comes first. */
  const idle = new Set<Entry>();
  const process = newId('holder_');
  let made = 0;
  let awayUntilMs = 0;
  let tickedMs = 0;
  let isStopping = false;

  const find = (name: CounterName, terms: LimitTerms): Entry => {
    const found = entries.get(name.id);
    if (found !== undefined) {
      if (found.terms !== terms) {
        found.terms = terms;
        found.refused = null;
      }
      return found;
    }
    made += 1;
    const local = new LocalCounter(`${process}.${made}`);
    const entry: Entry = { name, terms, local, waiters: [], refused: null, syncedMs: 0, idleSinceMs: monotonicMs() };
    entries.set(name.id, entry);
    idle.add(entry);
    if (entries.size > countersMax) forget(1);
    return entry;
  };

  const activate = (entry: Entry): void => {
    if (entry.idleSinceMs === null) return;
    entry.idleSinceMs = null;
    idle.delete(entry);
    active.add(entry);
  };

  /** Forgets this many entries, starting with those that have been idle for longest. */
  const forget = (count: number): void => {
    for (const entry of idle) {
      if (count <= 0) return;
      count -= 1;
      idle.delete(entry);
      // A call that ended late may have kept a forgotten entry in use, which has been replaced since.
      if (entries.get(entry.name.id) === entry) entries.delete(entry.name.id);
    }
  };

  const tickAll = (): void => {
    const nowMs = monotonicMs();
    // Callers that wait wake the loop more often.
    if (nowMs - tickedMs < tickMs) return;
    tickedMs = nowMs;
    for (const entry of active) {
      entry.local.tick();
      if (entry.waiters.length > 0 || !entry.local.isIdle()) continue;
      active.delete(entry);
      idle.add(entry);
      entry.idleSinceMs = nowMs;
    }
    for (const entry of idle) {
      if (entry.idleSinceMs !== null && nowMs - entry.idleSinceMs < forgetAfterMs) return;
      forget(1);
    }
  };

  const isDue = (entry: Entry, nowMs: number, databaseMs: number): boolean => {
    if (entry.waiters.length > 0) return true;
    const agoMs = nowMs - entry.syncedMs;
    if (agoMs >= extendMs && entry.refused === null && entry.local.isLow()) return true;
    return (agoMs >= reportMs || isStopping) && entry.local.isToBeSynced(databaseMs);
  };

  const waiting = (): number => {
    let sum = 0;
    for (const { waiters } of active) sum += waiters.length;
    return sum;
  };

  async function syncAll(): Promise<'idle' | undefined> {
    for (let isIdle = true; ; isIdle = false) {
      const [nowMs, databaseMs] = [monotonicMs(), clock.now()];
      const due = inTurns([...active].filter((entry) => isDue(entry, nowMs, databaseMs)).toSorted(waitedForFirst));
      if (due.length === 0) return isIdle ? 'idle' : undefined;
      try {
        await sync(due);
      } catch (error) {
        awayUntilMs = monotonicMs() + awayMs;
        for (const entry of due) {
          entry.local.lose();
          for (const { reject } of entry.waiters.splice(0)) reject(unavailable());
        }
        throw error;
      }
    }
  }

  async function sync(due: readonly Entry[]): Promise<void> {
    const databaseMs = clock.now();
    const asked = due.map((entry) => {
      const waiters = entry.waiters.slice();
      const sum = waiters.reduce((total, { amount }) => total.plus(amount), zero);
      const { name, terms, local } = entry;
      return { entry, waiters, renewal: { name, terms, request: local.ask(sum, databaseMs) } };
    });
    const work = store.renew(asked.map(({ renewal }) => renewal));
    work.catch(() => {}); // It can fail after the last caller has stopped waiting for it.
    const renewed = await untilAborted(work, AbortSignal.timeout(answerMsMax), () => {
      throw unavailable();
    });
    for (const [index, { entry, waiters }] of asked.entries()) serve(entry, waiters, renewed[index] ?? 'stale');
  }

  /** Applies a renewed lease and lets the waiting callers continue, in their order. */
  function serve(entry: Entry, waiters: readonly Waiter[], renewed: Renewed): void {
    const { local } = entry;
    entry.syncedMs = monotonicMs();
    if (renewed === 'stale') return local.lose();
    const isServed = new Set(waiters);
    entry.waiters = entry.waiters.filter((waiter) => !isServed.has(waiter));
    if (renewed === 'too_many') {
      local.lose();
      const refusal: Refusal = { reason: 'too_many' };
      entry.refused = { untilMs: entry.syncedMs + refusalMs.usedUp, free: zero, refusal };
      for (const { resolve } of waiters) resolve(refusal);
      return;
    }
    const { grant, isAlertDue } = renewed;
    local.take(grant);
    const nowMs = clock.now();
    const refusal: Refusal = { reason: 'used_up', grant };
    let isRefused = false;
    for (const waiter of waiters) {
      const draw = local.draw(waiter.amount, nowMs);
      if (draw !== null) waiter.resolve(draw);
      // The period has ended since. The next answer is about the new one.
      else if (!local.isValid(nowMs)) entry.waiters.push(waiter);
      else {
        isRefused = true;
        waiter.resolve(refusal);
      }
    }
    const ms = grant.leasedByOthers.gt(0) ? refusalMs.leased : refusalMs.usedUp;
    const untilMs = Math.min(monotonicMs() + ms, monotonicMs() + grant.period.endMs - nowMs);
    entry.refused = isRefused ? { untilMs, free: grant.free, refusal } : null;
    if (isAlertDue) onAlertDue(entry.name, entry.terms, grant.used);
  }

  // Calls under a limit wait for it, or are refused while it fails.
  const loop = createBackgroundLoop({
    name: 'limits',
    periodMs: tickMs,
    run() {
      tickAll();
      return monotonicMs() < awayUntilMs ? 'idle' : syncAll();
    },
    logger,
  });

  return {
    name: loop.name,
    start: loop.start,
    async stop() {
      isStopping = true;
      await loop.stop();
      // Reports the amounts that were used and returns those that were leased, if the database is available.
      for (const entry of active) entry.local.retire();
      await syncAll().catch((error: unknown) => logger.warn({ err: error }, 'limits were not reported at the end'));
    },
    counter: find,
    draw(counter, amount) {
      const entry = counter as Entry;
      const drawn = entry.local.draw(amount, clock.now());
      if (drawn !== null) {
        activate(entry);
        return drawn;
      }
      const nowMs = monotonicMs();
      if (entry.refused !== null) {
        if (nowMs < entry.refused.untilMs && amount.gt(entry.refused.free))
          return Promise.resolve(entry.refused.refusal);
        if (nowMs >= entry.refused.untilMs) entry.refused = null;
      }
      if (nowMs < awayUntilMs || isStopping) return Promise.reject(unavailable());
      return new Promise((resolve, reject) => {
        entry.waiters.push({ amount, resolve, reject });
        activate(entry);
        void loop.wake();
      });
    },
    settle(counter, draw, used, unconfirmed) {
      activate(counter as Entry);
      (counter as Entry).local.settle(draw, used, counter.name.kind === 'budget', unconfirmed);
    },
    use(counter, used, unconfirmed) {
      activate(counter as Entry);
      (counter as Entry).local.use(used, unconfirmed);
    },
    countUnpriced(counter) {
      activate(counter as Entry);
      (counter as Entry).local.countUnpriced();
    },
    stats: () => ({ counters: entries.size, waiting: waiting() }),
  };
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

import { larger, parseAmount, smaller, type Amount } from '#libs/kernel/amount.ts';
import { isRate, periodAt, type Period, type Reset } from './period.ts';

/** The terms of a limit in one period: US cents, tokens or requests. */
export type LimitTerms = {
  max: Amount;
  reset: Reset;
  /** The use from which an alert is due; null: none. */
  alertAt: Amount | null;
};

/**
 * The use of one limit, shared by all processes. `leases` are parts of the limit that single processes can use without
 * a database request. No other process can use them until they are returned or have expired.
 */
export type Counter = {
  periodStartMs: number;
  /** Settled use, including the possible use of expired leases. */
  used: Amount;
  /** The part of `used` that is assumed, because the process that held it died. */
  assumed: Amount;
  /** The part of `used` that was reserved and is not confirmed, because the answers of its calls were lost. */
  unconfirmed: Amount;
  /** The number of calls whose price was not known. */
  unpriced: number;
  /** Whether the alert of this period is recorded. */
  isAlerted: boolean;
  leases: Readonly<Record<string, Lease>>;
  /** For budgets it never decreases, so that a period never comes back either. */
  updatedAtMs: number;
};

type Lease = {
  amount: Amount;
  expiresAtMs: number;
  /** The number of its holder's latest request, so that an older one that arrives late cannot overwrite it. */
  number: number;
  /** The use that its holder has reported in this period, as a sum, so that a repeated request adds nothing. */
  reported: Amount;
  unconfirmed: Amount;
  unpriced: number;
  /** It has expired and is part of `used`. Its holder can still return and report its actual use. */
  isAssumed: boolean;
};

/** The report of a process about its lease, and its request. */
export type LeaseRequest = {
  holder: string;
  /** Counts the requests of the holder from 1. */
  number: number;
  /** The period that the report is about; null: the holder has no lease. */
  periodStartMs: number | null;
  /** The use by all calls of this period that have ended. */
  reported: Amount;
  /** The part of `reported` that was reserved and is not confirmed. */
  unconfirmed: Amount;
  unpriced: number;
  /**
   * The content of the last answered report in this period, and when it was answered: the database may have forgotten
   * the holder since. null: none.
   */
  known: { reported: Amount; unconfirmed: Amount; unpriced: number; atMs: number } | null;
  /** The part of its lease that it keeps: the reservations of running calls, and a remainder. */
  hold: Amount;
  /** The amount for calls that wait for it. */
  need: Amount;
  /** The amount for the smallest of them. Less would be of no use to this holder, and be missing elsewhere. */
  least: Amount;
  /** The amount for the calls that it expects soon, in steps of `unit`. */
  ahead: Amount;
  unit: Amount;
};

export type LeaseGrant = {
  period: Period;
  /** The whole lease after the renewal: `hold` and the added amount. */
  amount: Amount;
  expiresAtMs: number;
  /** The settled use of all processes. */
  used: Amount;
  /** The amount that is neither used nor leased. */
  free: Amount;
  /** Leases of other processes, which can be returned. */
  leasedByOthers: Amount;
};

// Long enough for a process that hangs for some seconds, and short enough that the lease of a killed process is settled
// soon.
export const leaseMs = 15_000;
/** How long a holder whose lease has expired can come back and correct the assumed use. */
const rememberMs = 3_600_000;
/** How long a holder without a lease is remembered, in case it repeats its last request. */
const rememberEmptyMs = 300_000;
/**
 * A clock that went back further than this was wrong before, and the windows of rates follow it. Otherwise a rate would
 * stay used up until the wrong time is reached. A smaller difference is the wait for the lock of a row, which begins
 * after the clock was read.
 */
const clockBackMsMax = 60_000;
/**
 * One process leases at most this part of the free amount ahead of need, so that leases become smaller towards the end.
 */
const aheadPart = 8n;

/** A counter without use or leases. */
export const newCounter = (periodStartMs: number, nowMs: number): Counter => ({
  periodStartMs,
  used: 0n,
  assumed: 0n,
  unconfirmed: 0n,
  unpriced: 0,
  isAlerted: false,
  leases: {},
  updatedAtMs: nowMs,
});

/**
 * Starts a new period when the last one is over, and counts expired leases as used: the calls of a process that died
 * may have used them, and a budget must not be spent twice. Pure.
 */
export function advanceCounter(before: Counter, { reset }: Pick<LimitTerms, 'reset'>, nowMs: number): Counter {
  const isSetBack = isRate(reset) && before.updatedAtMs - nowMs > clockBackMsMax;
  const updatedAtMs = isSetBack ? nowMs : Math.max(nowMs, before.updatedAtMs);
  const { startMs, endMs } = periodAt(reset, updatedAtMs);
  // This also applies when a shorter period was chosen: use from before it began does not count.
  if (before.periodStartMs < startMs || before.periodStartMs >= endMs) return newCounter(startMs, updatedAtMs);
  let used = fallen(before, reset, updatedAtMs);
  let { assumed } = before;
  const leases: Record<string, Lease> = {};
  for (const [holder, lease] of Object.entries(before.leases)) {
    const { amount, expiresAtMs, isAssumed } = lease;
    if (expiresAtMs + (isAssumed ? rememberMs : rememberEmptyMs) <= updatedAtMs && (isAssumed || amount === 0n))
      continue;
    leases[holder] = lease;
    if (isAssumed || amount === 0n || expiresAtMs > updatedAtMs) continue;
    used += amount;
    assumed += amount;
    leases[holder] = { ...lease, isAssumed: true };
  }
  return { ...before, updatedAtMs, used, assumed, leases };
}

/** The use of a pace falls with time. */
function fallen({ used, updatedAtMs }: Counter, reset: Reset, nowMs: number): Amount {
  if (reset.every !== 'pace' || nowMs <= updatedAtMs) return used;
  return atLeastZero(used - parseAmount(reset.perMs * (nowMs - updatedAtMs)));
}

/**
 * Applies a holder's report and extends its lease, never beyond the free amount. null: the request is older than one
 * that was answered. Pure; the counter is locked meanwhile.
 */
export function renewLease(
  before: Counter,
  terms: LimitTerms,
  request: LeaseRequest,
  nowMs: number,
): { counter: Counter; grant: LeaseGrant; isAlertDue: boolean } | null {
  const counter = advanceCounter(before, terms, nowMs);
  const { [request.holder]: own, ...others } = counter.leases;
  if (own !== undefined && own.number >= request.number) return null;
  // Reservations of a period that is over do not belong to this one.
  const isCurrent = request.periodStartMs === counter.periodStartMs;
  const report = isCurrent ? request : { ...nothing, known: null, hold: 0n };
  const earlier = own ?? forgotten(report.known, counter.updatedAtMs);
  const returned = own?.isAssumed === true ? own.amount : 0n;
  // The assumed use of a pace can have fallen before its holder returns.
  const used = atLeastZero(counter.used - returned) + report.reported - earlier.reported;
  const leasedByOthers = sumOf(others);
  const free = atLeastZero(terms.max - used - leasedByOthers - report.hold);
  const needed = free < request.least ? 0n : smaller(request.need, free);
  const left = free - needed;
  const ahead = inSteps(smaller(request.ahead, left / aheadPart), request.unit);
  const amount = report.hold + needed + ahead;
  const expiresAtMs = counter.updatedAtMs + leaseMs;
  const { number } = request;
  const { reported, unconfirmed, unpriced } = report;
  const lease = { amount, expiresAtMs, number, reported, unconfirmed, unpriced, isAssumed: false };
  return {
    counter: {
      ...counter,
      used,
      assumed: counter.assumed - returned,
      unconfirmed: counter.unconfirmed + unconfirmed - earlier.unconfirmed,
      unpriced: counter.unpriced + unpriced - earlier.unpriced,
      leases: { ...others, [request.holder]: lease },
    },
    grant: {
      period: { ...periodAt(terms.reset, counter.updatedAtMs), startMs: counter.periodStartMs },
      amount,
      expiresAtMs,
      used,
      free: left - ahead,
      leasedByOthers,
    },
    isAlertDue: terms.alertAt !== null && !counter.isAlerted && used >= terms.alertAt,
  };
}

type Reported = Pick<LeaseRequest, 'reported' | 'unconfirmed' | 'unpriced'>;

const nothing: Reported = { reported: 0n, unconfirmed: 0n, unpriced: 0 };

/**
 * The use that is already counted for a holder without a lease. It is nothing for a new holder, or for one whose last
 * answers the database has lost, as by a failover. For one that hung for so long that it was forgotten, it is
 * everything that was answered.
 */
function forgotten(known: LeaseRequest['known'], nowMs: number): Reported {
  return known !== null && nowMs - known.atMs >= rememberEmptyMs ? known : nothing;
}

function sumOf(leases: Readonly<Record<string, Lease>>): Amount {
  let sum = 0n;
  for (const { amount, isAssumed } of Object.values(leases)) if (!isAssumed) sum += amount;
  return sum;
}

const atLeastZero = (amount: Amount): Amount => larger(amount, 0n);

/** A part of a step would be too small for any call, and would be missing elsewhere. */
const inSteps = (amount: Amount, step: Amount): Amount => (step === 0n ? 0n : (amount / step) * step);

import { Big } from 'big.js';
import { isRate, periodAt, type Period, type Reset } from './period.ts';

/** What a limit allows in one period: US cents, tokens or requests. */
export type LimitTerms = {
  max: Big;
  reset: Reset;
  /** Use from which on an alert is due; null: none. */
  alertAt: Big | null;
};

/**
 * What one limit has counted, shared by all processes. `leases` are parts of the limit that single processes may use
 * without asking; nobody else may use them until they are returned or have expired.
 */
export type Counter = {
  periodStartMs: number;
  /** Settled use, with what expired leases may have used. */
  used: Big;
  /** The part of `used` that is assumed, because the process that held it died. */
  assumed: Big;
  /** The part of `used` that was reserved and is not confirmed, because the answers of its calls were lost. */
  unconfirmed: Big;
  /** Calls whose price was not known. */
  unpriced: number;
  /** The alert of this period is recorded. */
  isAlerted: boolean;
  leases: Readonly<Record<string, Lease>>;
  /** Of budgets it never goes back, so that a period never comes back either. */
  updatedAtMs: number;
};

type Lease = {
  amount: Big;
  expiresAtMs: number;
  /** Of its holder's last request: an older one that arrives late must not undo it. */
  number: number;
  /** What its holder has reported in this period, as a sum: a request that is repeated adds nothing. */
  reported: Big;
  unconfirmed: Big;
  unpriced: number;
  /** It has expired and is part of `used`; its holder may still come back and say what it did use. */
  isAssumed: boolean;
};

/** What a process tells about its lease and asks for. */
export type LeaseRequest = {
  holder: string;
  /** Counts the requests of the holder from 1. */
  number: number;
  /** The period that the report is about; null: the holder has no lease. */
  periodStartMs: number | null;
  /** Used by all calls of this period that have ended. */
  reported: Big;
  /** The part of `reported` that was reserved and is not confirmed. */
  unconfirmed: Big;
  unpriced: number;
  /** What the last answer in this period was about, and when it was given: by now the holder may be forgotten. null: none. */
  known: { reported: Big; unconfirmed: Big; unpriced: number; atMs: number } | null;
  /** Of its lease: what calls under way have reserved, and what it keeps beside that. */
  hold: Big;
  /** For calls that wait for it. */
  need: Big;
  /** For the calls that it expects soon, in steps of `unit`. */
  ahead: Big;
  unit: Big;
};

export type LeaseGrant = {
  period: Period;
  /** The whole lease now: `hold` and what was added. */
  amount: Big;
  expiresAtMs: number;
  /** By all processes, as far as it is settled. */
  used: Big;
  /** What nobody has used or leased. */
  free: Big;
  /** Leases of others, which may come back. */
  leasedByOthers: Big;
};

// Long enough for a process that hangs for some seconds, and short enough that what a killed one held is settled soon.
export const leaseMs = 15_000;
/** How long a holder whose lease has expired may come back and correct what was assumed. */
const rememberMs = 3_600_000;
/** How long a holder without a lease is remembered, in case it repeats its last request. */
const rememberEmptyMs = 300_000;
/**
 * A clock that went back further than this was wrong before, and the windows of rates follow it: else a rate stayed used up
 * until the wrong time had come. Less is the wait for the lock of a row, which begins after the clock was read.
 */
const clockBackMsMax = 60_000;
/** Of what is free, one process takes at most this part ahead of need: the closer the end, the smaller the leases. */
const aheadPart = 8;

const zero = new Big(0);

/** Nothing used, nothing leased. */
export const newCounter = (periodStartMs: number, nowMs: number): Counter => ({
  periodStartMs,
  used: zero,
  assumed: zero,
  unconfirmed: zero,
  unpriced: 0,
  isAlerted: false,
  leases: {},
  updatedAtMs: nowMs,
});

/**
 * Starts a new period when the last one is over, and takes expired leases as used: the calls of a process that died may
 * have used them, and a budget must not be spent twice. Pure.
 */
export function advanceCounter(before: Counter, { reset }: Pick<LimitTerms, 'reset'>, nowMs: number): Counter {
  const isSetBack = isRate(reset) && before.updatedAtMs - nowMs > clockBackMsMax;
  const updatedAtMs = isSetBack ? nowMs : Math.max(nowMs, before.updatedAtMs);
  const { startMs, endMs } = periodAt(reset, updatedAtMs);
  // Also when a shorter period was chosen: what was used before it began does not count.
  if (before.periodStartMs < startMs || before.periodStartMs >= endMs) return newCounter(startMs, updatedAtMs);
  let { used, assumed } = before;
  const leases: Record<string, Lease> = {};
  for (const [holder, lease] of Object.entries(before.leases)) {
    const { amount, expiresAtMs, isAssumed } = lease;
    if (expiresAtMs + (isAssumed ? rememberMs : rememberEmptyMs) <= updatedAtMs && (isAssumed || amount.eq(0)))
      continue;
    leases[holder] = lease;
    if (isAssumed || amount.eq(0) || expiresAtMs > updatedAtMs) continue;
    used = used.plus(amount);
    assumed = assumed.plus(amount);
    leases[holder] = { ...lease, isAssumed: true };
  }
  return { ...before, updatedAtMs, used, assumed, leases };
}

/**
 * Takes a holder's report and extends its lease, never beyond what is free. null: the request is older than one that was
 * answered. Pure; the counter is locked meanwhile.
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
  // What was reserved in a period that is over is no part of this one.
  const isCurrent = request.periodStartMs === counter.periodStartMs;
  const report = isCurrent ? request : { ...nothing, known: null, hold: zero };
  const earlier = own ?? forgotten(report.known, counter.updatedAtMs);
  const returned = own?.isAssumed === true ? own.amount : zero;
  const used = counter.used.minus(returned).plus(report.reported.minus(earlier.reported));
  const leasedByOthers = sumOf(others);
  const free = atLeastZero(terms.max.minus(used).minus(leasedByOthers).minus(report.hold));
  const needed = smaller(request.need, free);
  const left = free.minus(needed);
  const ahead = inSteps(smaller(request.ahead, left.div(aheadPart)), request.unit);
  const amount = report.hold.plus(needed).plus(ahead);
  const expiresAtMs = counter.updatedAtMs + leaseMs;
  const { number } = request;
  const { reported, unconfirmed, unpriced } = report;
  const lease = { amount, expiresAtMs, number, reported, unconfirmed, unpriced, isAssumed: false };
  return {
    counter: {
      ...counter,
      used,
      assumed: counter.assumed.minus(returned),
      unconfirmed: counter.unconfirmed.plus(unconfirmed.minus(earlier.unconfirmed)),
      unpriced: counter.unpriced + unpriced - earlier.unpriced,
      leases: { ...others, [request.holder]: lease },
    },
    grant: {
      period: { ...periodAt(terms.reset, counter.updatedAtMs), startMs: counter.periodStartMs },
      amount,
      expiresAtMs,
      used,
      free: left.minus(ahead),
      leasedByOthers,
    },
    isAlertDue: terms.alertAt !== null && !counter.isAlerted && used.gte(terms.alertAt),
  };
}

type Reported = Pick<LeaseRequest, 'reported' | 'unconfirmed' | 'unpriced'>;

const nothing: Reported = { reported: zero, unconfirmed: zero, unpriced: 0 };

/**
 * What is counted already of a holder without a lease: nothing of a new one, or of one whose last answers the database has
 * lost, as by a failover; but all that was answered to one that hung for so long that it was forgotten.
 */
function forgotten(known: LeaseRequest['known'], nowMs: number): Reported {
  return known !== null && nowMs - known.atMs >= rememberEmptyMs ? known : nothing;
}

function sumOf(leases: Readonly<Record<string, Lease>>): Big {
  let sum = zero;
  for (const { amount, isAssumed } of Object.values(leases)) if (!isAssumed) sum = sum.plus(amount);
  return sum;
}

const smaller = (a: Big, b: Big): Big => (a.lt(b) ? a : b);
const atLeastZero = (amount: Big): Big => (amount.lt(0) ? zero : amount);

/** A part of a step would be of use to no call, and would be missing elsewhere. */
const inSteps = (amount: Big, step: Big): Big =>
  step.eq(0) ? zero : amount.div(step).round(0, Big.roundDown).times(step);

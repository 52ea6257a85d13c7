import type { AdmissionRequest } from '#libs/calls/admission.ts';
import { one, smaller, type Amount } from '#libs/kernel/amount.ts';
import { findCounter, type CallFacts, type LimitRule } from '#libs/limits/limit-rule.ts';
import type { CounterHandle } from '#libs/limits/counter-table.ts';
import type { Limits } from '#libs/limits/limits.ts';
import type { UsedAmounts } from './used-amounts.ts';

type Wait = NonNullable<AdmissionRequest['waitForTurn']>;
type Paced = { counter: CounterHandle; amount: Amount };

/** How much one call changes the average of what calls use of their estimates. */
const averageGain = 1 / 16;
/** The steps in which a part of an estimate is computed. */
const partSteps = 1_000_000_000;

/**
 * Spreads the calls of batches over the minutes of the rates that apply to them, so that they neither come in bursts nor
 * use up the minute before live calls come. A rate has a second counter for this, its pace, which falls all the time.
 * Batch lines wait for it, and live calls only count.
 */
export function createCallPaces(limits: Limits, amounts: Pick<UsedAmounts, 'estimate'>) {
  /** What calls use of their estimates, by limit. Without this, a `max_tokens` that is never used would slow a batch. */
  const parts = new WeakMap<LimitRule, number>();

  const findPace = (rule: LimitRule, request: AdmissionRequest, facts: CallFacts): Paced | null => {
    const { pace, measure, terms } = rule;
    if (pace === null) return null;
    const estimate = amounts.estimate(measure, request);
    if (estimate === null || estimate === 0n) return null;
    const amount = wholePart(smaller(estimate, terms.max), parts.get(rule) ?? 1);
    return { counter: limits.counter(findCounter(pace, facts), pace.terms), amount };
  };

  /**
   * A call that uses more than the burst of its pace only needs half of it, and later calls wait for the rest: otherwise
   * large calls would wait for ever behind small ones.
   */
  const firstPart = ({ counter, amount }: Paced): Amount => smaller(amount, counter.terms.max / 2n);

  const begin = (paced: Paced, waitForTurn: Wait): Promise<void> | null => {
    const { counter, amount } = paced;
    const left = new AbortController();
    const drawn = limits.draw(counter, firstPart(paced), left.signal);
    if (!(drawn instanceof Promise)) {
      limits.settle(counter, drawn, amount);
      return null;
    }
    const begun = drawn.then((found) => {
      // A pace has a counter for each value of its limit, whose own counters refuse further values.
      if (!('reason' in found)) limits.settle(counter, found, amount);
    });
    // An outage is not the end of the wait, but the failure of the call, which is then retried.
    let failure: unknown = null;
    const ended = begun.catch((error: unknown) => {
      failure = error;
    });
    const wait = async (signal: AbortSignal): Promise<void> => {
      const leave = (): void => left.abort(signal.reason);
      if (signal.aborted) leave();
      signal.addEventListener('abort', leave, { once: true });
      await ended;
      signal.removeEventListener('abort', leave);
      if (left.signal.aborted) throw failure;
    };
    return waitForTurn(wait)
      .finally(() => left.abort())
      .then(() => {
        if (failure !== null) throw failure;
      });
  };

  const beginAll = async (turn: Promise<void>, others: readonly Paced[], waitForTurn: Wait): Promise<void> => {
    await turn;
    for (const paced of others) await begin(paced, waitForTurn);
  };

  return {
    /** Waits until a batch line can begin. null: it does not have to wait. */
    waitForTurn(request: AdmissionRequest, facts: CallFacts, rules: readonly LimitRule[]): Promise<void> | null {
      const { waitForTurn } = request;
      if (waitForTurn === undefined || rules.every(({ pace }) => pace === null)) return null;
      const paces = rules.flatMap((rule) => findPace(rule, request, facts) ?? []);
      for (const [index, paced] of paces.entries()) {
        const turn = begin(paced, waitForTurn);
        if (turn !== null) return beginAll(turn, paces.slice(index + 1), waitForTurn);
      }
      return null;
    },

    /** A live call has been admitted, and batches leave its part to it. */
    countLive(request: AdmissionRequest, facts: CallFacts, rules: readonly LimitRule[]): void {
      for (const rule of rules) {
        const paced = findPace(rule, request, facts);
        if (paced !== null) limits.use(paced.counter, paced.amount);
      }
    },

    /** A call has used `used` of its estimate. */
    learn(rule: LimitRule, estimate: Amount, used: Amount): void {
      if (rule.pace === null || estimate === 0n) return;
      const part = Number(used) / Number(estimate);
      const before = parts.get(rule);
      parts.set(rule, before === undefined ? part : before + (part - before) * averageGain);
    },
  };
}

/** A part of an amount, in whole tokens or requests. Rounded up, because a call that counts as nothing has no pace. */
function wholePart(amount: Amount, part: number): Amount {
  const divisor = one * BigInt(partSteps);
  return ((amount * BigInt(Math.round(part * partSteps)) + divisor - 1n) / divisor) * one;
}

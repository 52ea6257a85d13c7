import { findBaseModel } from '#libs/calls/allowed-models.ts';
import type { Attempt, Target } from '#libs/calls/call.ts';
import { priceAnswer } from '#libs/calls/price-answer.ts';
import { formatAmount, type Amount } from '#libs/kernel/amount.ts';
import type { Price } from '#libs/prices/price-usage.ts';
import type { Pricing } from '#libs/prices/pricing.ts';
import type { Units, Usage } from '#libs/prices/usage.ts';
import type { CallCost } from '../columns.ts';
import type { LoggedCall } from './logged-call.ts';

/** Prices calls, and counts those whose cost is not known. */
export type CallCosts = {
  of: (logged: Pick<LoggedCall, 'call' | 'end' | 'method'>) => CallCost;
  /** How many of each provider's calls it could not price since the start of this process. */
  unpriced: () => ReadonlyMap<string, number>;
};

type Bought = {
  target: Target;
  model: string | null;
  responseModel: string | null;
  usage: Usage | null;
  units?: Units | null | undefined;
};

export function createCallCosts(pricing: Pick<Pricing, 'priceOf'>): CallCosts {
  const unpriced = new Map<string, number>();

  return {
    of({ call, end, method }) {
      const { workspaceId, target, model, earlierAttempts } = call;
      const { attempts, usage = null, units, responseModel = null } = end;
      const priceOf = (bought: Bought): Price | null =>
        pricing.priceOf(
          { workspaceId, integration: bought.target.integration ?? null },
          {
            provider: bought.target.provider,
            models: [bought.responseModel, bought.model, findBaseModel(bought.target, bought.model)],
            ownPrice: bought.target.ownPrice,
            usage: bought.usage,
            units: bought.units,
          },
        );
      const answer = target === null ? null : { target, model, responseModel, usage, units };
      if (attempts.length === 0 && earlierAttempts.length === 0) {
        // The call was refused before a provider was called, or answered from the cache.
        const saved = answer === null || usage === null ? null : priceOf(answer);
        const savedCents = saved === null ? null : formatAmount(saved.cents);
        return { cents: '0', savedCents, version: saved?.version ?? null, isEstimate: end.isEstimate === true };
      }
      let sum = 0n;
      let promptCacheSaved: Amount | null = null;
      let version: string | null = null;
      let isKnown = true;
      let isEstimate = end.isEstimate === true;
      const last = attempts.at(-1);
      const add = (attempt: Attempt): void => {
        const { to, paid } = attempt;
        let price: Price | null;
        if (to !== undefined && paid !== undefined) {
          isEstimate ||= paid.usage.isImplausible === true;
          price = priceAnswer(pricing, workspaceId, to, paid);
        } else if (answer !== null && attempt === last && isAnswered(attempt) && method === 'POST') {
          // The usage of an answer that was streamed or passed through is only known at the end of the call.
          isEstimate ||= usage?.isImplausible === true;
          price = priceOf(answer);
        } else {
          isEstimate ||= mayHaveCost(attempt, method);
          return;
        }
        isKnown &&= price !== null;
        if (price === null) return;
        sum += price.cents;
        if (price.promptCacheSaved !== undefined) promptCacheSaved = (promptCacheSaved ?? 0n) + price.promptCacheSaved;
        ({ version } = price);
      };
      for (const attempt of earlierAttempts) add(attempt);
      for (const attempt of attempts) add(attempt);
      if (!isKnown) {
        const provider = target?.provider ?? 'unknown';
        unpriced.set(provider, (unpriced.get(provider) ?? 0) + 1);
        return { cents: null, savedCents: null, version: null, isEstimate };
      }
      const promptCacheSavedCents = promptCacheSaved === null ? null : formatAmount(promptCacheSaved);
      return { cents: formatAmount(sum), savedCents: null, promptCacheSavedCents, version, isEstimate };
    },
    unpriced: () => unpriced,
  };
}

const isAnswered = ({ status }: Attempt): boolean => status !== null && status < 400;

/** Providers do not charge for errors, but they can charge for an answer that never arrived, or that the caller left. */
const mayHaveCost = (attempt: Attempt, method: string): boolean =>
  method === 'POST' && (attempt.isLost === true || isAnswered(attempt));

import { Big } from 'big.js';
import { LRUCache } from 'lru-cache';
import type { AdmissionRequest, Spent } from '#libs/calls/admission.ts';
import { findBaseModel } from '#libs/calls/allowed-models.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import { clampEstimate } from '#libs/prices/estimate-tokens.ts';
import type { Pricing } from '#libs/prices/pricing.ts';
import type { Usage } from '#libs/prices/usage.ts';
import type { CountedTokens, LateUsage } from './late-usage.ts';

/** The use of a limit by calls, estimated before the call and counted after it. */
export type UsedAmounts = {
  /** Returns approximately the maximum use of a call; null: its price is not known. */
  estimate(measure: LimitRule['measure'], request: AdmissionRequest): Big | null;
  /** Returns the use of a call; null: its cost is not known. */
  used(measure: LimitRule['measure'], request: AdmissionRequest, spent: Spent): Used | null;
  /**
   * Records the length of an answer, to estimate later ones of its model, and the counted usage of a stored object.
   * Returns the usage that must still be counted: for an object that is read later, a promise of the part that was not
   * counted before. Never rejects.
   */
  learn(request: AdmissionRequest, spent: Spent): Spent | Promise<Spent>;
};

/** `unconfirmed` is the part of `amount` that was only reserved, because no answer reports the use. */
type Used = { amount: Big; unconfirmed: Big };

type Bought = { models: readonly (string | null)[]; usage: Usage | null; isPartial?: boolean | undefined };

const zero = new Big(0);
const one = new Big(1);
const nothingUsed: Used = { amount: zero, unconfirmed: zero };
const oneUsed: Used = { amount: one, unconfirmed: zero };
/** The estimated output of a call without a maximum, before the model has answered once. */
const outputTokensDefault = 1_000;
/** The estimate for such a call, as a multiple of the model's mean answer. Few answers are longer than that. */
const usualFactor = 2;
const modelsMax = 10_000;
/** Operations for which only the input is charged. */
const withoutOutput: ReadonlySet<string> = new Set(['embeddings', 'moderations']);
/** Operations whose objects can report their usage later: runs and background responses. */
const reportedLater: ReadonlySet<string> = new Set(['threads', 'responses']);

export function createUsedAmounts(pricing: Pick<Pricing, 'priceOf'>, lateUsage: LateUsage): UsedAmounts {
  /** The moving average of the output tokens of each model. */
  const usual = new LRUCache<string, number>({ max: modelsMax });
  /** The key includes the credential, because callers can send their own to servers that report any usage. */
  const readModel = ({ target, model }: AdmissionRequest): string =>
    `${target.credentialId ?? target.provider}/${model ?? ''}`;

  const expected = (request: AdmissionRequest): Usage => {
    const { inputTokens, outputTokensMax, choices } = request.estimate();
    const outputTokens = withoutOutput.has(request.operation)
      ? 0
      : (outputTokensMax ??
        clampEstimate(choices * usualFactor * (usual.get(readModel(request)) ?? outputTokensDefault / usualFactor)));
    return { inputTokens, outputTokens, cachedTokens: 0, reasoningTokens: 0 };
  };

  const learnLength = (request: AdmissionRequest, { outputTokens }: Usage): void => {
    if (request.model === null || request.work !== 'call') return;
    const model = readModel(request);
    const before = usual.get(model);
    usual.set(model, before === undefined ? outputTokens : before * 0.9 + outputTokens * 0.1);
  };

  const priceOf = ({ workspaceId, target, model }: AdmissionRequest, { models, usage }: Bought): Big | null => {
    const buyer = { workspaceId, integration: target.integration ?? null };
    const purchase = { provider: target.provider, models: [...models, findBaseModel(target, model)], usage };
    return pricing.priceOf(buyer, purchase)?.cents ?? null;
  };

  const amountOf = (measure: 'tokens' | 'cost', request: AdmissionRequest, bought: Bought, usage: Usage): Big | null =>
    measure === 'tokens'
      ? new Big(usage.inputTokens + usage.outputTokens)
      : priceOf(request, { models: bought.models, usage });

  return {
    estimate(measure, request) {
      if (measure === 'requests') return one;
      if (request.work === 'none') return zero;
      if (measure === 'cost' && !isPriced(request)) return null;
      const usage = expected(request);
      if (measure === 'tokens') return new Big(clampEstimate(usage.inputTokens + usage.outputTokens));
      return priceOf(request, { models: [request.model], usage });
    },

    used(measure, request, spent) {
      if (measure === 'requests') return oneUsed;
      if (request.work === 'none' && !spent.isLate) return nothingUsed;
      if (measure === 'cost' && request.work === 'training') return null;
      let amount = zero;
      let unconfirmed = zero;
      for (const bought of purchasesOf(request, spent)) {
        const { usage, isPartial = false } = bought;
        const known = usage === null ? zero : amountOf(measure, request, bought, usage);
        if (known === null) return null;
        let counted = known;
        if (usage === null || isPartial) {
          // It may have cost as much as was reserved.
          const reserved = amountOf(measure, request, bought, expected(request));
          if (reserved === null) return null;
          if (reserved.gt(known)) {
            counted = reserved;
            unconfirmed = unconfirmed.plus(reserved).minus(known);
          }
        }
        amount = amount.plus(counted);
      }
      // The record of the call that began the work does not contain it.
      return { amount, unconfirmed: spent.isLate === true ? amount : unconfirmed };
    },

    learn(request, spent) {
      const { usage, status, objectId } = spent;
      if (status === null || status >= 400) return spent;
      if (usage !== null) learnLength(request, usage);
      if (objectId == null || !reportedLater.has(request.operation)) return spent;
      const { workspaceId, operation, work } = request;
      if (usage === null) {
        if (work === 'call') void lateUsage.record(workspaceId, objectId, expected(request));
        return spent;
      }
      // A run that continues with the results of its tools reports the usage of all its steps.
      if (work !== 'none' && operation !== 'threads') return spent;
      return lateUsage
        .take(workspaceId, objectId)
        .then((counted) => (counted === null ? spent : { ...spent, usage: usageBeyond(usage, counted), isLate: true }));
    },
  };
}

/** Without a model, or for training, only the answer can report the cost. */
const isPriced = ({ model, work }: AdmissionRequest): boolean => model !== null && work === 'call';

const usageBeyond = (usage: Usage, counted: CountedTokens): Usage => ({
  inputTokens: Math.max(0, usage.inputTokens - counted.inputTokens),
  outputTokens: Math.max(0, usage.outputTokens - counted.outputTokens),
  cachedTokens: 0,
  reasoningTokens: 0,
});

/**
 * Everything that may have to be paid for: the last answer, those that were rejected by a retry or a guardrail, and
 * requests that were sent and whose answers were lost, because the provider may have worked for them. A provider's
 * errors cost nothing.
 */
function purchasesOf({ model }: AdmissionRequest, spent: Spent): Bought[] {
  const { attempts, usage, status, model: answered, isPartial } = spent;
  const last = attempts.at(-1);
  return attempts.flatMap((attempt): Bought[] => {
    const { to, paid, isLost } = attempt;
    if (paid !== undefined) return [{ models: [paid.responseModel, to?.model ?? model], usage: paid.usage }];
    if (attempt === last && status !== null && status < 400) return [{ models: [answered, model], usage, isPartial }];
    const isUnread = isLost === true || (attempt.status !== null && attempt.status < 400);
    return isUnread ? [{ models: [to?.model ?? model], usage: null }] : [];
  });
}

import { LRUCache } from 'lru-cache';
import type { AdmissionRequest, Spent } from '#libs/calls/admission.ts';
import { findBaseModel } from '#libs/calls/allowed-models.ts';
import type { Attempt } from '#libs/calls/call.ts';
import { priceAnswer } from '#libs/calls/price-answer.ts';
import { larger, one, wholeAmount, type Amount } from '#libs/kernel/amount.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import { clampEstimate } from '#libs/prices/estimate-tokens.ts';
import type { Pricing } from '#libs/prices/pricing.ts';
import type { Usage } from '#libs/prices/usage.ts';
import type { CountedTokens, LateUsage } from './late-usage.ts';

/** The use of a limit by calls, estimated before the call and counted after it. */
export type UsedAmounts = {
  /** Returns approximately the maximum use of a call; null: its price is not known. */
  estimate(measure: LimitRule['measure'], request: AdmissionRequest): Amount | null;
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
type Used = { amount: Amount; unconfirmed: Amount };

/** An answer without a whole body, or a request whose answer is not known. */
type Bought = { models: readonly (string | null)[]; usage: Usage | null; isPartial?: boolean | undefined };

const nothingUsed: Used = { amount: 0n, unconfirmed: 0n };
const oneUsed: Used = { amount: one, unconfirmed: 0n };
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

  const amountOf = (
    measure: 'tokens' | 'cost',
    { workspaceId, target, model }: AdmissionRequest,
    models: readonly (string | null)[],
    usage: Usage,
  ): Amount | null => {
    if (measure === 'tokens') return tokensOf(usage);
    const { provider, ownPrice, integration = null } = target;
    const purchase = { provider, models: [...models, findBaseModel(target, model)], ownPrice, usage };
    return pricing.priceOf({ workspaceId, integration }, purchase)?.cents ?? null;
  };

  const usedBy = (
    measure: 'tokens' | 'cost',
    request: AdmissionRequest,
    spent: Spent,
    attempt: Attempt,
  ): Used | null => {
    const { to, paid } = attempt;
    if (paid !== undefined) {
      const price = measure === 'cost' ? priceAnswer(pricing, request.workspaceId, to ?? request, paid) : null;
      return confirmed(measure === 'tokens' ? tokensOf(paid.usage) : (price?.cents ?? null));
    }
    const bought = boughtBy(attempt, request, spent);
    if (bought === null) return nothingUsed;
    const { models, usage, isPartial = false } = bought;
    const known = usage === null ? 0n : amountOf(measure, request, models, usage);
    if (known === null || (usage !== null && !isPartial)) return confirmed(known);
    // It may have cost as much as was reserved.
    const reserved = amountOf(measure, request, models, expected(request));
    return reserved === null ? null : { amount: larger(reserved, known), unconfirmed: larger(reserved - known, 0n) };
  };

  return {
    estimate(measure, request) {
      if (measure === 'requests') return one;
      if (request.work === 'none') return 0n;
      if (measure === 'cost' && !isPriced(request)) return null;
      const usage = expected(request);
      if (measure === 'tokens') return wholeAmount(clampEstimate(usage.inputTokens + usage.outputTokens));
      return amountOf(measure, request, [request.model], usage);
    },

    used(measure, request, spent) {
      if (measure === 'requests') return oneUsed;
      if (request.work === 'none' && !spent.isLate) return nothingUsed;
      if (measure === 'cost' && request.work === 'training') return null;
      let amount = 0n;
      let unconfirmed = 0n;
      for (const attempt of spent.attempts) {
        const used = usedBy(measure, request, spent, attempt);
        if (used === null) return null;
        amount += used.amount;
        unconfirmed += used.unconfirmed;
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

const confirmed = (amount: Amount | null): Used | null => (amount === null ? null : { amount, unconfirmed: 0n });

const tokensOf = ({ inputTokens, outputTokens }: Usage): Amount => wholeAmount(inputTokens + outputTokens);

/**
 * What may have to be paid for an attempt without a whole answer: a stream, or a request that was sent and whose answer
 * was lost, because the provider may have worked for it. null: nothing, because a provider's errors cost nothing.
 */
function boughtBy(attempt: Attempt, { model }: AdmissionRequest, spent: Spent): Bought | null {
  const { attempts, usage, status, model: answered, isPartial } = spent;
  const isAnswer = attempt === attempts.at(-1) && status !== null && status < 400;
  if (isAnswer) return { models: [answered, model], usage, isPartial };
  const isUnread = attempt.isLost === true || (attempt.status !== null && attempt.status < 400);
  return isUnread ? { models: [attempt.to?.model ?? model], usage: null } : null;
}

import {
  budgetCode,
  BudgetWaitError,
  type Admission,
  type AdmissionRequest,
  type Reservation,
  type Spent,
} from '#libs/calls/admission.ts';
import { formatAmount, larger, smaller, type Amount } from '#libs/kernel/amount.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findCounter, matches, type CallFacts, type LimitRule } from '#libs/limits/limit-rule.ts';
import type { WorkspaceRules } from '#libs/limits/limit-rules.ts';
import type { CounterHandle, Refusal } from '#libs/limits/counter-table.ts';
import type { Limits } from '#libs/limits/limits.ts';
import type { Draw } from '#libs/limits/local-counter.ts';
import { toDollars } from '#libs/prices/to-dollars.ts';
import { createCallPaces } from './call-paces.ts';
import type { UsedAmounts } from './used-amounts.ts';

type Deps = {
  limits: Limits;
  rulesOf: (workspaceId: string) => WorkspaceRules | undefined;
  amounts: UsedAmounts;
  /** The database's clock. */
  clock: Clock;
  /** The treatment of calls with an unknown price under a budget of money. */
  unpriced: 'refuse' | 'admit';
};

/** The reservation of a call in one counter; `draw` is null if its price is not known. */
type Taken = { rule: LimitRule; counter: CounterHandle; draw: Draw | null };

/** A call whose limits are being drawn from: `taken` has the first of its `rules`. */
type Taking = { request: AdmissionRequest; facts: CallFacts; rules: readonly LimitRule[]; taken: Taken[] };

/** A batch line asks again after this long, in case the limit was raised or reset meanwhile. */
const askAgainMsMax = 30_000;

/** Admits calls by the budgets and rates that apply to them, and settles these with the calls' actual use. */
export function createLimitAdmission(deps: Deps): Admission & { refused: () => { budget: number; rate: number } } {
  const { limits, rulesOf, amounts, clock } = deps;
  const refusals = { budget: 0, rate: 0 };
  const paces = createCallPaces(limits, amounts);

  const giveBack = (taken: readonly Taken[]): void => {
    for (const { counter, draw } of taken) if (draw !== null) limits.settle(counter, draw, 0n);
  };

  const settle = (request: AdmissionRequest, taken: readonly Taken[], ended: Spent): void => {
    const spent = amounts.learn(request, ended);
    if (spent instanceof Promise) void spent.then((known) => count(request, taken, known));
    else count(request, taken, spent);
  };

  const count = (request: AdmissionRequest, taken: readonly Taken[], spent: Spent): void => {
    for (const { rule, counter, draw } of taken) {
      const used = amounts.used(rule.measure, request, spent);
      if (used !== null && draw !== null) paces.learn(rule, draw.amount, used.amount);
      if (used === null) {
        limits.countUnpriced(counter);
        // The whole reservation counts, because the call may have cost as much.
        if (draw !== null) limits.settle(counter, draw, draw.amount, draw.amount);
      } else if (draw !== null) limits.settle(counter, draw, used.amount, used.unconfirmed);
      else if (used.amount > 0n) limits.use(counter, used.amount, used.unconfirmed);
    }
  };

  const refuse = (error: GatewayError, rule: LimitRule, taken: readonly Taken[]): never => {
    giveBack(taken);
    refusals[rule.kind] += 1;
    throw error;
  };

  /** The amount that a call reserves in a limit; null: its price is not known. */
  const amountFor = (rule: LimitRule, request: AdmissionRequest, taken: readonly Taken[]): Amount | null => {
    const { max } = rule.terms;
    const amount = amounts.estimate(rule.measure, request);
    if (amount === null) return deps.unpriced === 'admit' ? null : refuse(unknownPrice(rule, request), rule, taken);
    if (max === 0n) return refuse(usedUp(rule, request, amount, null, clock.now()), rule, taken);
    // A call that is larger than a whole window can use all of it.
    return rule.kind === 'rate' ? smaller(amount, max) : amount;
  };

  /** Reserves from one limit after the other. Returns a promise from the first one that needs the database. */
  const take = (taking: Taking): Reservation | Promise<Reservation> => {
    const { request, facts, rules, taken } = taking;
    for (let index = taken.length; index < rules.length; index += 1) {
      const rule = rules[index] as LimitRule;
      const counter = limits.counter(findCounter(rule, facts), rule.terms);
      const amount = amountFor(rule, request, taken);
      if (amount === null) taken.push({ rule, counter, draw: null });
      else {
        const draw = limits.draw(counter, amount);
        if (draw instanceof Promise) return takeLater(taking, { rule, counter, amount }, draw);
        taken.push({ rule, counter, draw });
      }
    }
    if (request.waitForTurn === undefined) paces.countLive(request, facts, rules);
    return { settle: (spent) => settle(request, taken, spent) };
  };

  const takeLater = async (
    taking: Taking,
    { rule, counter, amount }: { rule: LimitRule; counter: CounterHandle; amount: Amount },
    drawn: Promise<Draw | Refusal>,
  ): Promise<Reservation> => {
    const { request, taken } = taking;
    const draw = await drawn.catch((error: unknown) => {
      giveBack(taken);
      throw error;
    });
    if ('reason' in draw) {
      const error = rule.noun === 'batch' ? boundReached : usedUp;
      return refuse(error(rule, request, amount, draw, clock.now()), rule, taken);
    }
    taken.push({ rule, counter, draw });
    return await take(taking);
  };

  return {
    isLimited(workspaceId, keyId, credentialId) {
      const rules = rulesOf(workspaceId) ?? noRules;
      const isOfCredential = credentialId !== undefined && rules.byCredential.has(credentialId);
      return rules.ofWorkspace.length > 0 || isOfCredential || (keyId !== null && rules.byKey.has(keyId));
    },
    admit(request) {
      const facts = factsOf(request);
      const rules = findRules(rulesOf, request, facts);
      if (rules.length === 0) return null;
      const turn = paces.waitForTurn(request, facts, rules);
      // Limits can have changed while the call was waiting.
      if (turn === null) return take({ request, facts, rules, taken: [] });
      return turn.then(() => take({ request, facts, rules: findRules(rulesOf, request, facts), taken: [] }));
    },
    refused: () => refusals,
  };
}

/** The limits that apply to a call. */
function findRules(rulesOf: Deps['rulesOf'], request: AdmissionRequest, facts: CallFacts): LimitRule[] {
  const { ofWorkspace, byModel, byKey, byCredential } = rulesOf(request.workspaceId) ?? noRules;
  const bound = request.bound?.rule() ?? null;
  const found = bound === null ? [] : [bound];
  for (const rule of ofWorkspace) if (matches(rule, facts)) found.push(rule);
  if (facts.keyId !== null) found.push(...(byKey.get(facts.keyId) ?? []));
  if (facts.credentialId !== null) found.push(...(byCredential.get(facts.credentialId) ?? []));
  if (byModel.length > 0) refuseOtherModels(byModel, facts, request);
  return found;
}

function factsOf(request: AdmissionRequest): CallFacts {
  const { workspaceId, keyId, metadata, target, model, publicModel = null, config, prompt } = request;
  const { credentialId = null, label: credential, provider } = target;
  return { workspaceId, keyId, metadata, credentialId, credential, provider, model, publicModel, config, prompt };
}

const noRules: WorkspaceRules = { ofWorkspace: [], byModel: [], byKey: new Map(), byCredential: new Map() };

/** Refuses a call that a policy would count differently if the provider answered with another model. */
function refuseOtherModels(rules: readonly LimitRule[], facts: CallFacts, { otherModels }: AdmissionRequest): void {
  const { names, chooses } = otherModels();
  const param = chooses ?? (names.length > 0 ? 'models' : null);
  if (param === null) return;
  for (const rule of rules) {
    const conditions = rule.conditions.filter(({ key }) => key !== 'model');
    if (!matches({ conditions }, facts)) continue;
    const counterFor = (model: string | null): string | null => {
      const call = { ...facts, model };
      return matches(rule, call) ? findCounter(rule, call).id : null;
    };
    if (chooses === null && names.every((name) => counterFor(name) === counterFor(facts.model))) continue;
    const message = `${rule.label} counts calls by their model, but '${param}' lets the provider choose another model. Remove it, and name one model in 'model'.`;
    throw new GatewayError('forbidden', 'model_not_allowed', message, { param });
  }
}

const units = { cost: 'US cents', tokens: 'tokens', requests: 'requests' };
const windows: Record<string, string> = {
  rps: 'second',
  rpm: 'minute',
  rph: 'hour',
  rpd: 'day',
  rpw: 'week',
};

/** Returns an error that names the limit, the remaining amount, and when it is reset. */
function usedUp(
  rule: LimitRule,
  { waitsForBudget }: AdmissionRequest,
  amount: Amount,
  refusal: Refusal | null,
  nowMs: number,
): GatewayError {
  const { kind, label, terms, measure } = rule;
  const isBudget = kind === 'budget';
  const unit = units[measure];
  const limit = `${formatAmount(terms.max)} ${unit}${isBudget ? '' : ` in a ${windows[terms.reset.every]}`}`;
  const grant = refusal?.reason === 'used_up' ? refusal.grant : null;
  const endMs = grant?.period.endMs ?? Number.POSITIVE_INFINITY;
  const leftMs = Math.max(1, endMs - nowMs);
  const until =
    endMs === Number.POSITIVE_INFINITY ? 'It is not reset automatically.' : `It is reset at ${isoOf(endMs)}.`;
  let message = `This call counts towards ${label}, which allows ${limit}. ${until}`;
  if (refusal?.reason === 'too_many') {
    message = `This call counts towards ${label}, which has reached its maximum number of different values. Calls with new values are rejected.`;
  } else if (grant !== null && isBudget) {
    const left = terms.max - grant.used;
    // The reservations of running calls are neither used nor free.
    const kept = left >= amount ? ' but reserved by other calls in progress' : '';
    message =
      `This call counts towards ${label}, which allows ${limit}: ${formatAmount(grant.used)} are used, ` +
      `${formatAmount(larger(left, 0n))} are left${kept}, and the call can use up to ${formatAmount(amount)}. ${until}`;
  }
  if (!isBudget) return new GatewayError('rate_limited', 'rate_limited', message, { retryAfterMs: leftMs });
  // A batch line treats this like a rate limit: it waits without a permit and asks again.
  if (waitsForBudget) return new BudgetWaitError(message, Math.min(leftMs, askAgainMsMax));
  return new GatewayError('budget_exceeded', budgetCode, message);
}

/** How soon a line asks again: running calls can return what they have reserved, and the bound can be raised. */
const askBoundAgainMs = 1_000;

/** The error for a line that what is left of its batch's `max_cost` does not cover. */
function boundReached(rule: LimitRule, { bound }: AdmissionRequest, amount: Amount, refusal: Refusal): GatewayError {
  const used = refusal.reason === 'used_up' ? refusal.grant.used : rule.terms.max;
  const isReached = rule.terms.max - used < amount;
  if (isReached) bound?.onReached();
  const spent = `The batch has a max_cost of ${dollars(rule.terms.max)}, of which ${dollars(used)} are used`;
  const message = isReached
    ? `${spent}, and the next call can cost up to ${dollars(amount)}.`
    : `${spent}, and running calls have reserved the rest.`;
  return new BudgetWaitError(message, askBoundAgainMs);
}

const dollars = (cents: Amount): string => `$${toDollars(formatAmount(cents))}`;

function unknownPrice({ label }: LimitRule, { model, target, work }: AdmissionRequest): GatewayError {
  const [reason, remedy] =
    work === 'training'
      ? ['the price of a fine-tuning job is unknown', 'Create it with a key that has no such budget']
      : model === null
        ? ['the call does not name its model, so its price is unknown', 'Name the model in the request']
        : [`the price of the model '${model}' of ${target.provider} is unknown`, 'Set a price for the model'];
  const message = `This call counts towards ${label}, which is a cost budget, and ${reason}. ${remedy}, or allow unpriced calls (SLUICE_UNPRICED_CALLS=admit).`;
  return new GatewayError('budget_exceeded', 'price_unknown', message);
}

const isoOf = (ms: number): string => new Date(ms).toISOString();

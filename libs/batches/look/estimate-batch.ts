import { Big } from 'big.js';
import type { Kysely } from 'kysely';
import { operationOf } from '../batch/endpoint-operation.ts';
import { explainPlan, describeSteps } from '#libs/credentials/configs/explain.ts';
import type { RequestedCredential } from '#libs/credentials/requested.ts';
import { withoutConfig, type FoundPlan } from '#libs/credentials/configs/plan.ts';
import type { Routing } from '#libs/credentials/routing.ts';
import { assertModelAllowed } from '#libs/calls/allowed-models.ts';
import type { Target } from '#libs/calls/call.ts';
import type { Leaf } from '#libs/calls/plan/plan.ts';
import type { PlanDeps } from '#libs/calls/plan/run-plan.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { BatchDryRun } from '#libs/contracts/batches/batch-dry-run.ts';
import type { ExplainedStep, TargetStep } from '#libs/contracts/configs/explain-config.ts';
import type { Database } from '#libs/database/schema.ts';
import { advanceCounter } from '#libs/limits/counter.ts';
import { readCounters, toCounter } from '#libs/limits/counter-store.ts';
import { findCounter, matches, type LimitRule } from '#libs/limits/limit-rule.ts';
import type { WorkspaceRules } from '#libs/limits/limit-rules.ts';
import { formatAmount, larger, type Amount } from '#libs/kernel/amount.ts';
import type { Pricing } from '#libs/prices/pricing.ts';
import { toDollars } from '#libs/prices/to-dollars.ts';
import type { ModelUsage } from '#libs/validation/slice-task.ts';

type Deps = {
  db: Kysely<Database>;
  routing: Pick<Routing, 'resolveLeaf'>;
  search: PlanDeps['search'];
  pricing: Pick<Pricing, 'priceOf'>;
  rulesOf: (workspaceId: string) => WorkspaceRules | undefined;
  now: () => number;
};

/** The lines of a batch that was not created, as a call to its endpoint would find them. */
export type DryRunCall = {
  workspaceId: string;
  keyId: string | null;
  credentials: RequestedCredential;
  /** Returns the plan of the lines with this model, which can be a public one. */
  planFor: (model: string | null) => Promise<FoundPlan>;
  endpoint: string;
  /** The model for all lines, which replaces the model of each line. */
  model: string | null;
  metadata: Readonly<Record<string, string>> | null;
  signal: AbortSignal;
};

type Estimate = Pick<BatchDryRun, 'models' | 'cost_of_input_usd' | 'cost_max_usd' | 'limits'>;

type Reached = { target: Target; model: string | null; leaf: Leaf; config: FoundPlan['stored'] };
/** The expected cost of the lines of one model at one target, in US cents; null: not known. */
type Cost = { ofInput: Big | null; max: Big | null };

const zero = new Big(0);
const unknown: Cost = { ofInput: null, max: null };
/** Operations for which only the input is charged. */
const withoutOutput: ReadonlySet<string | undefined> = new Set(['embeddings', 'moderations']);

/** Predicts where the lines would go, their possible cost, and whether the budgets suffice. Makes no call. */
export async function estimateBatch(deps: Deps, call: DryRunCall, usages: readonly ModelUsage[]): Promise<Estimate> {
  const models: BatchDryRun['models'] = [];
  const budgets = createBudgets(deps, call);
  let ofInput: Big | null = zero;
  let max: Big | null = zero;
  for (const given of usages) {
    const usage = boundedBy(call.endpoint, given);
    const { step, reached } = await explain(deps, call, usage.model);
    const first = firstTarget(step);
    const cost = costOf(step, reached, (place) => priceOf(deps, call, place, usage));
    const place = first === null ? undefined : reached.get(first.path);
    if (place !== undefined) budgets.add(place, usage, cost);
    ofInput = plus(ofInput, cost.ofInput);
    max = plus(max, cost.max);
    models.push({
      model: usage.model,
      lines: usage.lines,
      input_tokens: usage.inputTokens,
      output_tokens_max: usage.outputTokensMax,
      unbounded_lines: usage.unboundedLines,
      target: describeSteps(step),
      problem: first === null ? null : first.problem,
      cost_of_input_usd: asText(cost.ofInput),
      cost_max_usd: asText(cost.max),
    });
  }
  return { models, cost_of_input_usd: asText(ofInput), cost_max_usd: asText(max), limits: await budgets.take() };
}

/** Shares of a loadbalance have more decimals than amounts. */
const toBig = (amount: Amount): Big => new Big(formatAmount(amount));
const asText = (cents: Big | null): string | null => (cents === null ? null : toDollars(cents));
const amountOf = (measure: LimitRule['measure'], amount: Big): string =>
  measure === 'cost' ? toDollars(amount) : amount.toFixed();
const plus = (sum: Big | null, cents: Big | null): Big | null =>
  sum === null || cents === null ? null : sum.plus(cents);

const boundedBy = (endpoint: string, usage: ModelUsage): ModelUsage =>
  withoutOutput.has(operationOf(endpoint)) ? { ...usage, outputTokensMax: 0, unboundedLines: 0 } : usage;

async function explain(
  { routing, search, now }: Deps,
  { workspaceId, credentials, planFor, endpoint, model: ofAll, metadata, signal }: DryRunCall,
  model: string | null,
): Promise<{ step: ExplainedStep; reached: Map<string, Reached> }> {
  const reached = new Map<string, Reached>();
  const asked = ofAll ?? model;
  const operation = operationOf(endpoint) ?? 'chat';
  let refusal: GatewayError | null = null;
  const found = await planFor(asked).catch((error: unknown) => {
    if (!(error instanceof GatewayError)) throw error;
    refusal = error;
    return withoutConfig;
  });
  const step = await explainPlan(
    {
      call: { params: asked === null ? {} : { model: asked }, metadata, pathname: endpoint },
      search: (rule, text) => search(rule, text, { workspaceId, signal }),
      async resolve(leaf, requested, isLeafsModel) {
        if (refusal !== null) throw refusal;
        const place = { workspaceId, credentials, leaf, param: found.param, model: requested, isLeafsModel };
        const resolved = await routing.resolveLeaf(place);
        const { target } = resolved;
        const used = target.model ?? resolved.model;
        if (target.models !== undefined) assertModelAllowed(target.models, target.label, used, { operation });
        reached.set(leaf.path, { target, model: used, leaf, config: found.stored });
        return resolved;
      },
      now: now(),
    },
    found.plan.root,
  );
  return { step, reached };
}

/** The target that is called first. For a loadbalance, this is one of its targets. */
function firstTarget(step: ExplainedStep): TargetStep | null {
  switch (step.kind) {
    case 'target':
      return step;
    case 'fallback':
      return step.options[0] === undefined ? null : firstTarget(step.options[0]);
    case 'loadbalance':
      return step.options[0] === undefined ? null : firstTarget(step.options[0].step);
    case 'conditional':
      return firstTarget(step.step);
  }
}

/** Assumes that the first target of a fallback answers. For a loadbalance, each share has its own price. */
function costOf(step: ExplainedStep, reached: Map<string, Reached>, price: (place: Reached) => Cost): Cost {
  switch (step.kind) {
    case 'target': {
      const place = reached.get(step.path);
      return place === undefined ? unknown : price(place);
    }
    case 'fallback':
      return step.options[0] === undefined ? unknown : costOf(step.options[0], reached, price);
    case 'conditional':
      return costOf(step.step, reached, price);
    case 'loadbalance': {
      let sum: Cost = { ofInput: zero, max: zero };
      for (const { share, step: option } of step.options) {
        const { ofInput, max } = costOf(option, reached, price);
        sum = {
          ofInput: plus(sum.ofInput, ofInput?.times(share) ?? null),
          max: plus(sum.max, max?.times(share) ?? null),
        };
      }
      return sum;
    }
  }
}

function priceOf(
  { pricing }: Deps,
  { workspaceId, endpoint }: DryRunCall,
  { target, model, leaf }: Reached,
  { inputTokens, outputTokensMax, unboundedLines }: ModelUsage,
): Cost {
  // The token charges of images are not known in advance.
  if (operationOf(endpoint) === 'images') return unknown;
  const cents = (outputTokens: number): Big | null => {
    const price = pricing.priceOf(
      { workspaceId, integration: target.integration ?? null },
      {
        provider: target.provider,
        models: [model],
        ownPrice: leaf.publicModel?.price,
        usage: { inputTokens, outputTokens, cachedTokens: 0, reasoningTokens: 0 },
      },
    );
    return price === null ? null : toBig(price.cents);
  };
  return { ofInput: cents(0), max: unboundedLines > 0 ? null : cents(outputTokensMax) };
}

/** Adds up, for each budget, the amount that the lines could need. */
function createBudgets({ db, rulesOf, now }: Deps, { workspaceId, keyId, metadata }: DryRunCall) {
  const needs = new Map<string, { rule: LimitRule; counter: string; needed: Big | null }>();
  return {
    add({ target, model, leaf, config }: Reached, usage: ModelUsage, cost: Cost): void {
      const rules = rulesOf(workspaceId);
      if (rules === undefined) return;
      const facts = {
        workspaceId,
        keyId,
        metadata,
        credentialId: target.credentialId ?? null,
        credential: target.label,
        provider: target.provider,
        model,
        publicModel: leaf.publicModel?.name ?? null,
        config,
        prompt: null,
      };
      const all = [
        ...rules.ofWorkspace,
        ...(rules.byKey.get(keyId ?? '') ?? []),
        ...(rules.byCredential.get(target.credentialId ?? '') ?? []),
      ];
      const tokens = usage.unboundedLines > 0 ? null : new Big(usage.inputTokens + usage.outputTokensMax);
      for (const rule of all) {
        if (rule.kind !== 'budget' || !matches(rule, facts)) continue;
        const { id } = findCounter(rule, facts);
        const before = needs.get(id)?.needed ?? (needs.has(id) ? null : zero);
        needs.set(id, { rule, counter: id, needed: plus(before, rule.measure === 'cost' ? cost.max : tokens) });
      }
    },
    async take(): Promise<BatchDryRun['limits']> {
      const limits: BatchDryRun['limits'] = [];
      for (const { rule, counter: id, needed } of needs.values()) {
        const row = (await readCounters(db, rule.limitId)).find((each) => each.id === id);
        const used = row === undefined ? 0n : advanceCounter(toCounter(row), rule.terms, now()).used;
        const left = toBig(larger(rule.terms.max - used, 0n));
        limits.push({
          limit: rule.recordId,
          label: rule.label,
          measure: rule.measure === 'tokens' ? 'tokens' : 'cost',
          left: amountOf(rule.measure, left),
          needed: needed === null ? null : amountOf(rule.measure, needed),
          suffices: needed === null ? null : left.gte(needed),
        });
      }
      return limits;
    },
  };
}

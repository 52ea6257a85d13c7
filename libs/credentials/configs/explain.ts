import type { ExplainedStep, TargetStep } from '#libs/contracts/configs/explain-config.ts';
import type { GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import { isReference } from '#libs/contracts/configs/guardrails.ts';
import { editParams } from '#libs/calls/plan/edit-params.ts';
import type { Leaf, PatternSearch, PlanCall, PlanNode, WeightedOption } from '#libs/calls/plan/plan.ts';
import { chooseSticky } from '#libs/calls/plan/sticky.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { ResolvedTarget } from '../resolve.ts';

type Deps = {
  call: PlanCall;
  search: PatternSearch;
  /** Resolves a leaf like for a call. Throws GatewayError for a target that would refuse the call. */
  resolve: (leaf: Leaf, model: string | null, isLeafsModel: boolean) => Promise<ResolvedTarget>;
  now: number;
};

/**
 * Explains what a call with this plan would do, without making it. Uses the same conditions, sticky choices, edits and
 * targets as `runPlan`. For random choices, it returns all options with their shares.
 */
export async function explainPlan(deps: Deps, node: PlanNode): Promise<ExplainedStep> {
  switch (node.kind) {
    case 'leaf':
      return await explainLeaf(deps, node.leaf);
    case 'fallback': {
      const options: ExplainedStep[] = [];
      for (const option of node.options) options.push(await explainPlan(deps, option));
      const statuses = node.statuses === null ? null : [...node.statuses];
      return { kind: 'fallback', on_status_codes: statuses, continue_streams: node.continuesStreams, options };
    }
    case 'loadbalance':
      return await explainShares(deps, node);
    case 'conditional': {
      const conditions: { holds: boolean }[] = [];
      let chosen: number | null = null;
      for (const [index, { matches }] of node.conditions.entries()) {
        const holds = await matches(deps.call, deps.search);
        conditions.push({ holds });
        if (holds) chosen ??= index;
      }
      const next = chosen === null ? node.otherwise : (node.conditions[chosen]?.node ?? node.otherwise);
      return { kind: 'conditional', conditions, chosen, step: await explainPlan(deps, next) };
    }
  }
}

async function explainShares(
  deps: Deps,
  { options, sticky }: Extract<PlanNode, { kind: 'loadbalance' }>,
): Promise<ExplainedStep> {
  const kept = sticky === null ? null : chooseSticky(options, sticky, deps.call, deps.now);
  const all = options.reduce((sum, { weight }) => sum + weight, 0);
  const shareOf = (option: WeightedOption): number =>
    kept === null ? Math.round((option.weight / all) * 1e4) / 1e4 : option === kept ? 1 : 0;
  const explained: { share: number; is_sticky: boolean; step: ExplainedStep }[] = [];
  for (const option of options) {
    const step = await explainPlan(deps, option.node);
    explained.push({ share: shareOf(option), is_sticky: option === kept, step });
  }
  return { kind: 'loadbalance', options: explained };
}

async function explainLeaf({ call, resolve }: Deps, leaf: Leaf): Promise<TargetStep> {
  const { edits, model: own } = editParams(leaf, call.params);
  const asked = call.params['model'];
  const model = own ?? (typeof asked === 'string' ? asked : null);
  const step: TargetStep = {
    kind: 'target',
    path: leaf.path,
    name: leaf.name,
    provider: null,
    virtual_key: null,
    base_url: null,
    model,
    prompt: leaf.prompt?.name ?? null,
    changes: Object.keys(edits),
    retry: leaf.retry && {
      attempts: leaf.retry.attempts,
      on_status_codes: leaf.retry.statuses && [...leaf.retry.statuses],
    },
    cache_seconds: leaf.cache?.maxAgeSeconds ?? null,
    has_breaker: leaf.breaker !== null,
    cache_breakpoints: leaf.cacheBreakpoints,
    input_guardrails: leaf.inputGuardrails.map(nameOf),
    output_guardrails: leaf.outputGuardrails.map(nameOf),
    problem: null,
  };
  try {
    const { target, model: requested } = await resolve(leaf, model, own !== null);
    return {
      ...step,
      provider: target.provider,
      virtual_key: target.label === target.provider ? null : target.label,
      // Its path can contain a deployment or an account, but no secret; a query could contain one.
      base_url: `${target.baseUrl.origin}${target.baseUrl.pathname}`,
      model: target.model ?? requested,
    };
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return { ...step, problem: { code: error.code, message: error.message } };
  }
}

const nameOf = (entry: GuardrailEntry): string =>
  isReference(entry) ? entry.stored : (entry.name ?? entry.id ?? entry.checks.map(({ id }) => id).join(', '));

/** The steps as sentences. Nested steps are indented by two spaces. */
export function describeSteps(step: ExplainedStep, indent = ''): string[] {
  const inside = `${indent}  `;
  switch (step.kind) {
    case 'target':
      return [`${indent}${targetText(step)}`];
    case 'fallback':
      return [
        `${indent}Tries these in order, and continues with the next one ${step.on_status_codes === null ? 'unless the answer is 2xx' : `after ${step.on_status_codes.join(', ')}`}${step.continue_streams ? ', also in the middle of a stream' : ''}:`,
        ...step.options.flatMap((option) => describeSteps(option, inside)),
      ];
    case 'loadbalance':
      return [
        `${indent}Selects one of these:`,
        ...step.options.flatMap(({ share, is_sticky: isSticky, step: option }) => [
          `${inside}${isSticky ? 'always for this caller' : `${Math.round(share * 1e4) / 100} %`}:`,
          ...describeSteps(option, `${inside}  `),
        ]),
      ];
    case 'conditional': {
      const which =
        step.chosen === null
          ? 'No condition matches, so the default applies:'
          : `Condition ${step.chosen + 1} matches:`;
      return [`${indent}${which}`, ...describeSteps(step.step, inside)];
    }
  }
}

function targetText(step: TargetStep): string {
  if (step.problem !== null) return `Rejects the call at ${step.name ?? step.path}: ${step.problem.message}`;
  const parts = [
    `Calls ${step.provider}${step.virtual_key === null ? '' : ` through ${step.virtual_key}`}${step.model === null ? '' : ` for ${step.model}`}`,
    ...(step.input_guardrails.length === 0 ? [] : [`after the checks ${step.input_guardrails.join(', ')}`]),
    ...(step.cache_seconds === null ? [] : ['unless the answer is in the cache']),
    ...(step.retry === null ? [] : [`with up to ${step.retry.attempts} retries`]),
    ...(step.output_guardrails.length === 0
      ? []
      : [`then checks the answer with ${step.output_guardrails.join(', ')}`]),
  ];
  return parts.join(', ');
}

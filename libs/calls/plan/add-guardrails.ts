import { isReference, type Guardrail, type GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import type { Leaf, Plan, PlanNode } from './plan.ts';

/** Guardrails that run before those of a plan's own targets. */
export type AddedGuardrails = Pick<Leaf, 'inputGuardrails' | 'outputGuardrails'>;

// Plans are cached as long as their configs are, and all plans of a workspace share one set of guardrails.
const made = new WeakMap<AddedGuardrails, WeakMap<Plan, Plan>>();

/** Returns the plan with these guardrails at every target, before its own. Made once for each pair. */
export function addGuardrails(plan: Plan, added: AddedGuardrails): Plan {
  let plans = made.get(added);
  if (plans === undefined) made.set(added, (plans = new WeakMap()));
  let guarded = plans.get(plan);
  if (guarded === undefined) plans.set(plan, (guarded = guard(plan, added)));
  return guarded;
}

/** Whether a target refers to stored guardrails. */
export const namesGuardrails = ({ inputGuardrails, outputGuardrails }: AddedGuardrails): boolean =>
  inputGuardrails.some(isReference) || outputGuardrails.some(isReference);

/**
 * Returns the plan with its references replaced by the guardrails that they name, without those that have no checks.
 * Throws what `find` throws.
 */
export function resolveGuardrails(plan: Plan, find: (name: string) => Guardrail): Plan {
  const resolve = (entries: readonly GuardrailEntry[]): Guardrail[] =>
    entries.map((entry) => (isReference(entry) ? find(entry.stored) : entry)).filter(({ checks }) => checks.length > 0);
  return changeLeaves(plan, (leaf) => ({
    ...leaf,
    inputGuardrails: resolve(leaf.inputGuardrails),
    outputGuardrails: resolve(leaf.outputGuardrails),
  }));
}

function guard(plan: Plan, { inputGuardrails, outputGuardrails }: AddedGuardrails): Plan {
  return changeLeaves(plan, (leaf) => ({
    ...leaf,
    inputGuardrails: [...inputGuardrails, ...leaf.inputGuardrails],
    outputGuardrails: [...outputGuardrails, ...leaf.outputGuardrails],
  }));
}

function changeLeaves(plan: Plan, change: (leaf: Leaf) => Leaf): Plan {
  const leaves = new Map<Leaf, Leaf>();
  const ofLeaf = (leaf: Leaf): Leaf => {
    const known = leaves.get(leaf);
    if (known) return known;
    const changed = Object.freeze(change(leaf));
    leaves.set(leaf, changed);
    return changed;
  };
  const ofNode = (node: PlanNode): PlanNode => {
    switch (node.kind) {
      case 'leaf':
        return { ...node, leaf: ofLeaf(node.leaf) };
      case 'fallback':
        return { ...node, options: node.options.map(ofNode) };
      case 'loadbalance':
        return { ...node, options: node.options.map((option) => ({ ...option, node: ofNode(option.node) })) };
      case 'conditional':
        return {
          ...node,
          conditions: node.conditions.map((condition) => ({ ...condition, node: ofNode(condition.node) })),
          otherwise: ofNode(node.otherwise),
        };
    }
  };
  const [first, ...rest] = plan.leaves;
  const changed: Plan['leaves'] = [ofLeaf(first), ...rest.map(ofLeaf)];
  return { root: ofNode(plan.root), leaves: changed, namesGuardrails: changed.some(namesGuardrails) };
}

import type { Leaf, Plan, PlanNode } from './plan.ts';

/** Guardrails that come before those of a plan's own targets. */
export type AddedGuardrails = Pick<Leaf, 'inputGuardrails' | 'outputGuardrails'>;

// Plans are kept for as long as their configs are, and one set of guardrails serves all plans of a workspace.
const made = new WeakMap<AddedGuardrails, WeakMap<Plan, Plan>>();

/** The plan with these guardrails at every target, before its own. Made once for each pair. */
export function addGuardrails(plan: Plan, added: AddedGuardrails): Plan {
  let plans = made.get(added);
  if (plans === undefined) made.set(added, (plans = new WeakMap()));
  let guarded = plans.get(plan);
  if (guarded === undefined) plans.set(plan, (guarded = guard(plan, added)));
  return guarded;
}

function guard(plan: Plan, { inputGuardrails, outputGuardrails }: AddedGuardrails): Plan {
  // Otherwise whoever asks for a stream would leave them out.
  const answersWhole = outputGuardrails.some(({ deny, async }) => deny && !async);
  const leaves = new Map<Leaf, Leaf>();
  const ofLeaf = (leaf: Leaf): Leaf => {
    const known = leaves.get(leaf);
    if (known) return known;
    const guarded = Object.freeze<Leaf>({
      ...leaf,
      inputGuardrails: [...inputGuardrails, ...leaf.inputGuardrails],
      outputGuardrails: [...outputGuardrails, ...leaf.outputGuardrails],
      answersWhole,
    });
    leaves.set(leaf, guarded);
    return guarded;
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
  return { root: ofNode(plan.root), leaves: [ofLeaf(first), ...rest.map(ofLeaf)] };
}

import { isReference } from '#libs/contracts/configs/guardrails.ts';
import type { Leaf, Plan, PlanNode } from './plan.ts';

/** The part of a plan that takes the place of a leaf, with its leaves in the order of the config. */
export type PlanPart = { root: PlanNode; leaves: Plan['leaves'] };

/** The part that consists of one leaf. */
export const leafPart = (made: Leaf): PlanPart => {
  const leaf = Object.freeze(made);
  return { root: { kind: 'leaf', leaf }, leaves: [leaf] };
};

/** Returns the plan with each leaf replaced by the part that `replace` returns, which is called once for each leaf. */
export function replaceLeaves({ root, leaves }: PlanPart, replace: (leaf: Leaf) => PlanPart): Plan {
  const parts = new Map<Leaf, PlanPart>();
  const partFor = (leaf: Leaf): PlanPart => {
    const known = parts.get(leaf);
    if (known) return known;
    const part = replace(leaf);
    parts.set(leaf, part);
    return part;
  };
  const ofNode = (node: PlanNode): PlanNode => {
    switch (node.kind) {
      case 'leaf':
        return partFor(node.leaf).root;
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
  const [first, ...rest] = leaves;
  const replaced: Plan['leaves'] = [...partFor(first).leaves, ...rest.flatMap((leaf) => partFor(leaf).leaves)];
  return { root: ofNode(root), leaves: replaced, namesGuardrails: replaced.some(namesGuardrails) };
}

/** Whether a target refers to stored guardrails. */
export const namesGuardrails = ({
  inputGuardrails,
  outputGuardrails,
}: Pick<Leaf, 'inputGuardrails' | 'outputGuardrails'>): boolean =>
  inputGuardrails.some(isReference) || outputGuardrails.some(isReference);

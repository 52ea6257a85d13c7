import { isReference, type Guardrail, type GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import type { Leaf, Plan } from './plan.ts';
import { leafPart, replaceLeaves } from './replace-leaves.ts';

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

/**
 * Returns the plan with its references replaced by the guardrails that they name, without those that have no checks.
 * Throws what `find` throws.
 */
export function resolveGuardrails(plan: Plan, find: (name: string) => Guardrail): Plan {
  const resolve = (entries: readonly GuardrailEntry[]): Guardrail[] =>
    entries.map((entry) => (isReference(entry) ? find(entry.stored) : entry)).filter(({ checks }) => checks.length > 0);
  return replaceLeaves(plan, (leaf) =>
    leafPart({
      ...leaf,
      inputGuardrails: resolve(leaf.inputGuardrails),
      outputGuardrails: resolve(leaf.outputGuardrails),
    }),
  );
}

function guard(plan: Plan, { inputGuardrails, outputGuardrails }: AddedGuardrails): Plan {
  return replaceLeaves(plan, (leaf) =>
    leafPart({
      ...leaf,
      inputGuardrails: [...inputGuardrails, ...leaf.inputGuardrails],
      outputGuardrails: [...outputGuardrails, ...leaf.outputGuardrails],
    }),
  );
}

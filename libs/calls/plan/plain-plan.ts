import { compileConfig } from './compile-config.ts';
import type { Leaf, Plan } from './plan.ts';
import { leafPart, namesGuardrails } from './replace-leaves.ts';

/** The plan of a call without a config: one target, given by the call itself. All such calls share this object. */
export const plainPlan: Plan = compileConfig({});

/** The target of that plan, which changes nothing in a request. */
export const plainLeaf: Leaf = plainPlan.leaves[0];

type FirstTarget = Record<'guarded' | 'unguarded', Plan>;

const made = new WeakMap<Leaf, FirstTarget>();

/**
 * Returns the plan of a call that is made once, to the first target of its config, like pass-through calls. From the
 * steps that the config defines around a call, only the guardrails apply, to calls that they can check. Made once for
 * each config.
 */
export function toFirstTarget({ leaves: [first] }: Plan): FirstTarget {
  let plans = made.get(first);
  if (plans === undefined) {
    const { path, name, credentials, strict, publicModel, inputGuardrails, outputGuardrails } = first;
    const unguarded = { ...plainLeaf, path, name, credentials, strict, publicModel };
    plans = {
      guarded: planOf({ ...unguarded, inputGuardrails, outputGuardrails }),
      unguarded: planOf(unguarded),
    };
    made.set(first, plans);
  }
  return plans;
}

function planOf(made: Leaf): Plan {
  return { ...leafPart(made), namesGuardrails: namesGuardrails(made) };
}

import { compileConfig } from './compile-config.ts';
import type { Leaf, Plan } from './plan.ts';

/** The plan of a call without a config, with one target: what the call itself says. The same object for all of them. */
export const plainPlan: Plan = compileConfig({});

/** Its target, which changes nothing of a request. */
export const plainLeaf: Leaf = plainPlan.leaves[0];

type FirstTarget = Record<'guarded' | 'unguarded', Plan>;

const made = new WeakMap<Leaf, FirstTarget>();

/**
 * The plan of a call that is made once, to the first target of its config, as pass-through calls are: of what the config
 * puts around it only the guardrails count, for calls that they can judge. Made once for each config.
 */
export function firstTargetOf({ leaves: [first] }: Plan): FirstTarget {
  let plans = made.get(first);
  if (plans === undefined) {
    const { path, name, credentials, strict, inputGuardrails, outputGuardrails, answersWhole } = first;
    const unguarded = { ...plainLeaf, path, name, credentials, strict };
    plans = {
      guarded: planOf({ ...unguarded, inputGuardrails, outputGuardrails, answersWhole }),
      unguarded: planOf(unguarded),
    };
    made.set(first, plans);
  }
  return plans;
}

function planOf(made: Leaf): Plan {
  const leaf = Object.freeze(made);
  return { root: { kind: 'leaf', leaf }, leaves: [leaf] };
}

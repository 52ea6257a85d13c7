import type { Attempt, ForwardRequest, Outcome, Target } from './call.ts';
import type { Leaf, Plan, PlanCall } from './plan/plan.ts';

/**
 * A call on its way: what was asked, by which plan, and where it is now. One object for the whole life of a call, made by
 * its route or its line, so that a call of a single target costs no more than that. `params`, `metadata` and `pathname`
 * are what conditions look at.
 */
export type Call = PlanCall & {
  readonly plan: Plan;
  /** The client's request; its `signal` ends the call. A target's own has the edits and settings of its leaf. */
  readonly request: ForwardRequest;
  readonly workspaceId: string;
  /** The gateway key that it came with; null: none, as of a batch line. */
  readonly keyId: string | null;
  /** Asked for instead of the body's model, where the plan says nothing. */
  readonly modelOverride: string | null;
  /** A leaf as this call wants it: what its headers say over the config. */
  readonly adjust: ((leaf: Leaf) => Leaf) | null;

  // Where it is now; after the last target they say where the outcome came from.
  /** The leaf that has its turn. */
  leaf: Leaf;
  /** null: refused before it was known. */
  target: Target | null;
  /** What the provider is asked for. */
  model: string | null;
  /** Calls to the targets before this one, oldest first. */
  earlierAttempts: readonly Attempt[];
};

/** Every call to every provider, oldest first; `outcome.attempts` are those of the last target alone. */
export const attemptsOf = ({ earlierAttempts }: Pick<Call, 'earlierAttempts'>, outcome: Outcome): readonly Attempt[] =>
  earlierAttempts.length === 0 ? outcome.attempts : [...earlierAttempts, ...outcome.attempts];

/** No call to a provider yet. */
export const noAttempts: readonly Attempt[] = [];

import type { Attempt, ForwardRequest, GuardrailRun, Outcome, Target } from './call.ts';
import type { CallBound } from './admission.ts';
import type { Leaf, Plan, PlanCall } from './plan/plan.ts';

/**
 * A running call: its request, its plan and its current target. One object serves for the whole life of a call and is
 * created by its route or its line, so that a call with a single target needs no others. Conditions look at `params`,
 * `metadata` and `pathname`.
 */
export type Call = PlanCall & {
  readonly plan: Plan;
  /**
   * The client's request; its `signal` ends the call. The request to a target has the edits and settings of its leaf.
   */
  readonly request: ForwardRequest;
  readonly workspaceId: string;
  /** The API key of the client; null if there is none, as for a batch line. */
  readonly keyId: string | null;
  /** The model to request instead of the body's, if the plan does not choose one. */
  readonly modelOverride: string | null;
  /** Returns a leaf as this call uses it: its headers can override the config. */
  readonly adjust: ((leaf: Leaf) => Leaf) | null;
  /** null: there is no config, or it came with the call. */
  readonly config: StoredVersion | null;
  /** For a call that came with a prompt: the input of the rendering, for targets with a different prompt. */
  readonly promptInput: PromptInput | null;
  /** For a batch line: the versions that prompt names refer to. Absent: the versions in use. */
  readonly pinnedPrompts?: PromptPins | undefined;
  /** For a batch line that waits until a used-up budget is reset, instead of failing. */
  readonly waitsForBudget: boolean;
  /** For a line of a batch with a cost bound. */
  readonly bound?: CallBound | null;

  // The current target. After the call, these members describe the target that the outcome came from.
  /** The leaf that is being called. */
  leaf: Leaf;
  /** The version of the prompt that its request was rendered from; null for none. */
  prompt: StoredVersion | null;
  /** null: the call was refused before the target was known. */
  target: Target | null;
  /** The model that is requested from the provider. */
  model: string | null;
  /** The attempts at earlier targets, oldest first. */
  earlierAttempts: readonly Attempt[];
  /** How many targets were given up for another one. */
  fallbacks: number;
  /** How many of the attempts at earlier targets were retries. */
  retries: number;
  /** The runs of guardrails, oldest first. Absent: no guardrail has been evaluated for this call. */
  guardrailRuns?: GuardrailRun[];
};

/** The variables of a prompt, and the parameters that replace the prompt's own. */
export type PromptInput = {
  prompt: StoredVersion;
  variables: Readonly<Record<string, unknown>>;
  hyperparameters: Readonly<Record<string, unknown>>;
};

/**
 * The ids of the versions that names of prompts and partials referred to at one moment, by name. They stay valid when
 * their records are deleted.
 */
export type PromptPins = { prompts: Record<string, string>; partials: Record<string, string> };

/** The version of a stored config or prompt that a call uses. */
export type StoredVersion = { id: string; slug: string; version: number };

/** Returns every call to every provider, oldest first. `outcome.attempts` has only those of the last target. */
export const listAttempts = (
  { earlierAttempts }: Pick<Call, 'earlierAttempts'>,
  outcome: Pick<Outcome, 'attempts'>,
): readonly Attempt[] => (earlierAttempts.length === 0 ? outcome.attempts : [...earlierAttempts, ...outcome.attempts]);

/** Whether no provider has been called yet. */
export const noAttempts: readonly Attempt[] = [];

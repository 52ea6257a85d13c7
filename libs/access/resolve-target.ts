import { chooseCredential, missingCredentials } from './choose-credential.ts';
import type { ConfigDefaults } from './config-override.ts';
import { slugOfModel, type RequestCredentials } from './request-credentials.ts';
import { createRouting, type FoundPlan, type RoutingDeps } from './routing.ts';
import { targetOfCredential, withSecondLook, type ResolvedTarget } from './target-of-credential.ts';

export type TargetRequest = {
  workspaceId: string;
  credentials: RequestCredentials;
  /** The body's model; null for calls without one. */
  model: string | null;
  defaults: ConfigDefaults;
};

export type ResolveTarget = (request: TargetRequest) => ResolvedTarget | Promise<ResolvedTarget>;

/**
 * Where a live call goes that is made once, to one target. Synchronous and without the database when the snapshot has the
 * virtual key; one that it lacks is looked for once more, since it may have been created elsewhere a moment ago. With a
 * config: its first target, and its guardrails (calls that are routed go by `Routing`).
 * Throws invalid_request with the header or parameter at fault, `forbidden` for a config that the key may not bring, and
 * `unavailable` when that look fails.
 */
export function createResolveTarget(deps: RoutingDeps): ResolveTarget {
  const routing = createRouting(deps);

  const resolve = ({ workspaceId, credentials, model }: TargetRequest): ResolvedTarget => {
    const named = slugOfModel(model);
    const credential = chooseCredential(deps, workspaceId, credentials, named?.slug ?? null);
    if (credential.type === 'none') throw missingCredentials();
    return targetOfCredential(credential, model, workspaceId);
  };

  const resolveFirst = (request: TargetRequest): ResolvedTarget | Promise<ResolvedTarget> => {
    const go = (found: FoundPlan | null): ResolvedTarget | Promise<ResolvedTarget> => {
      if (found === null) return resolve(request);
      const [leaf] = found.plan.leaves;
      const resolved = routing.resolveLeaf({ ...request, leaf, param: found.param, isLeafsModel: false });
      const { inputGuardrails: input, outputGuardrails: output, strict, answersWhole } = leaf;
      if (input.length === 0 && output.length === 0) return resolved;
      const guardrails = { input, output, strict, answersWhole };
      return resolved instanceof Promise
        ? resolved.then((target) => ({ ...target, guardrails }))
        : { ...resolved, guardrails };
    };
    const found = routing.planOf({ ...request, headers: null });
    return found instanceof Promise ? found.then(go) : go(found);
  };

  return (request) =>
    request.credentials.config === null && request.defaults.configId === null && !routing.isGuarded(request.workspaceId)
      ? withSecondLook(deps.snapshot, () => resolve(request))
      : resolveFirst(request);
}

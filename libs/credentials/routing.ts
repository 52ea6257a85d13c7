import type { MappedSecrets } from './mapped-secrets.ts';
import {
  findConfig,
  findPlan,
  guardPlan,
  withoutConfig,
  type ConfigQuery,
  type FoundPlan,
  type PlanDeps,
  type PlanQuery,
} from './configs/plan.ts';
import { resolveTarget, type CredentialQuery, type ResolveDeps, type ResolvedTarget } from './resolve.ts';
import { withRefresh, type Refreshable } from '#libs/identity/not-in-snapshot.ts';
import { whenAvailable } from '#libs/kernel/when-available.ts';

export type RoutingDeps = PlanDeps & ResolveDeps & { snapshot: Refreshable; mappedSecrets: MappedSecrets };

/**
 * Finds plans and targets (plan.ts, resolve.ts). A record that is missing from the snapshot is looked up once more,
 * because another process may have created it a moment ago. Throws like those functions, and unavailable if that lookup
 * fails.
 */
export type Routing = {
  planOf(query: PlanQuery): FoundPlan | Promise<FoundPlan>;
  /** Returns where the calls of one target of a plan go. Also throws like `MappedSecrets`. */
  resolveLeaf(query: CredentialQuery): ResolvedTarget | Promise<ResolvedTarget>;
  /**
   * Returns the target of a request that is not a call, and so uses no public model: the first one of its config. Throws like
   * both of the above.
   */
  targetOf(request: TargetRequest): Promise<ResolvedTarget>;
};

export type TargetRequest = Omit<ConfigQuery, 'headers'> & {
  /** The body's model; null for requests without one. */
  model: string | null;
};

export function createRouting(deps: RoutingDeps): Routing {
  const { snapshot, mappedSecrets } = deps;

  const complete = (found: ReturnType<typeof resolveTarget>): ResolvedTarget | Promise<ResolvedTarget> => {
    const { target, model, mapped } = found;
    if (mapped === undefined) return found;
    return mappedSecrets.complete(target, mapped).then((completed) => ({ target: completed, model }));
  };

  return {
    planOf: (query) => withRefresh(snapshot, () => findPlan(deps, query)),
    resolveLeaf(query) {
      const found = withRefresh(snapshot, () => resolveTarget(deps, query));
      return whenAvailable(found, complete);
    },
    async targetOf(request) {
      const found = await withRefresh(snapshot, () => {
        const configured = findConfig(deps, { ...request, headers: null }) ?? withoutConfig;
        const { plan, param } = guardPlan(snapshot, request.workspaceId, configured);
        return resolveTarget(deps, { ...request, leaf: plan.leaves[0], param, isLeafsModel: false });
      });
      return complete(found);
    },
  };
}

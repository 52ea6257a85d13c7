import type { IncomingHttpHeaders } from 'node:http';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Target } from '#libs/calls/call.ts';
import { plainLeaf, plainPlan } from '#libs/calls/plan/plain-plan.ts';
import type { Leaf, Plan } from '#libs/calls/plan/plan.ts';
import type { StoredVersion } from '#libs/calls/planned-call.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { callOptionsOf, hasCallOptions, type CallOptions } from './call-options.ts';
import { chooseCredential, missingCredentials } from './choose-credential.ts';
import { refuseConfigOverride, type ConfigDefaults } from './config-override.ts';
import { hasOwnPlace, useLeaf } from './leaf-credentials.ts';
import { noSuchConfig, unreadableConfig } from '#libs/credentials/no-such-config.ts';
import { atLeaf, createInlineConfigs, readConfig } from '#libs/credentials/read-config.ts';
import type { PlanCache } from '#libs/credentials/plan-cache.ts';
import { slugOfModel, type RequestCredentials } from './request-credentials.ts';
import type { MappedSecrets } from './mapped-secrets.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { targetOfCredential, withRefresh, type ResolvedTarget } from './target-of-credential.ts';
import { guardedPlan } from './guarded-plan.ts';

export type RoutingDeps = {
  snapshot: Pick<AccessSnapshot, 'findCredential' | 'findConfig' | 'findGuardrails' | 'storedGuardrails' | 'refresh'>;
  clock: Clock;
  mappedSecrets: MappedSecrets;
  plans: PlanCache;
  /** Throws for a URL that could never be called (libs/calls/upstream/egress.ts `check`). */
  checkDestination: (url: URL) => void;
};

/** A call's plan. `param` is the name of its config in error messages. */
export type FoundPlan = {
  plan: Plan;
  param: string;
  options: CallOptions | null;
  /** null for a config that came with the call. */
  stored: (StoredVersion & { secrets: SecretMembers }) | null;
};

export type PlanQuery = {
  workspaceId: string;
  credentials: RequestCredentials;
  /** null: the headers contain no options (for a batch's lines). */
  headers: IncomingHttpHeaders | null;
  defaults: ConfigDefaults;
};

export type Routing = {
  /**
   * Returns the plan of a call: its config with the guardrails of the workspace before those of its targets. Without a
   * config it has only these guardrails, and without them it is the plain plan, the same object for all calls. Throws
   * like `configOf` and `guardedPlan`.
   */
  planOf(query: PlanQuery): FoundPlan | Promise<FoundPlan>;
  /**
   * Returns the config of a call: its own, or the default of its key. Headers alone (a timeout, a retry count) make one
   * with a single target. null: there is none, and the call is a plain one. Synchronous unless a stored config has to
   * be looked up again. Throws invalid_request with the header or the member at fault, and `forbidden` if the key's
   * config is fixed.
   */
  configOf(query: PlanQuery): FoundPlan | null | Promise<FoundPlan | null>;
  /**
   * Returns where the calls of one target go, with the caller's credentials if the target has none of its own. A
   * virtual key in `model` (`@slug/model`) is used when the config chose the model or the target names no destination;
   * otherwise only the name after the slash is used. Synchronous and without the database if the snapshot has the
   * virtual key. A missing one is looked up again, because it may have been created elsewhere a moment ago. What is mapped
   * to secret references may have to be fetched. Throws invalid_request with the header, parameter or member at fault,
   * `unavailable` when that lookup fails, and as `MappedSecrets`.
   */
  resolveLeaf(query: LeafQuery): ResolvedTarget | Promise<ResolvedTarget>;
  /** The target of a request that is not a call: the first one of its plan. Throws as both of the above. */
  targetOf(request: TargetRequest): ResolvedTarget | Promise<ResolvedTarget>;
};

export type LeafQuery = {
  workspaceId: string;
  credentials: RequestCredentials;
  leaf: Leaf;
  /** Of the config. */
  param: string;
  model: string | null;
  isLeafsModel: boolean;
};

export type TargetRequest = Omit<PlanQuery, 'headers'> & {
  /** The body's model; null for requests without one. */
  model: string | null;
};

/** For a call without a config. */
export const withoutConfig: FoundPlan = { plan: plainPlan, param: 'config', options: null, stored: null };

export function createRouting(deps: RoutingDeps): Routing {
  const { snapshot } = deps;
  const inline = createInlineConfigs(deps.checkDestination, deps.plans);

  const find = (query: PlanQuery, options: CallOptions | null): FoundPlan | null => {
    const { config } = query.credentials;
    if (config === null) {
      const { configId } = query.defaults;
      if (configId !== null) return findStored(query.workspaceId, configId, null, options);
      return options && { ...withoutConfig, options };
    }
    const { value, param } = config;
    if (typeof value !== 'string') {
      return { ...readConfig(value, param, deps.checkDestination), param, options, stored: null };
    }
    if (!value.trimStart().startsWith('{')) return findStored(query.workspaceId, value, param, options);
    return { plan: inline(value, param), param, options, stored: null };
  };

  const findStored = (
    workspaceId: string,
    name: string,
    param: string | null,
    options: CallOptions | null,
  ): FoundPlan => {
    const config = snapshot.findConfig(workspaceId, name);
    if (!config) throw noSuchConfig(name, param);
    const plan = config.plan();
    if (plan === null) throw unreadableConfig(config.slug, param);
    const stored = { id: config.id, slug: config.slug, version: config.configVersion, secrets: config.secrets };
    return { plan, param: param ?? 'config', options, stored };
  };

  const resolveLeaf = ({
    workspaceId,
    credentials,
    leaf,
    param,
    model,
    isLeafsModel,
  }: LeafQuery): ResolvedTarget | Promise<ResolvedTarget> => {
    const named = slugOfModel(model);
    const moves = named !== null && (isLeafsModel || !hasOwnPlace(leaf));
    // Without a config there is nothing to be merged with what the caller sent.
    const isCallers = leaf.credentials === plainLeaf.credentials;
    const use = isCallers ? undefined : useLeaf(credentials, leaf, atLeaf(leaf, param));
    const used = use?.credentials ?? credentials;
    const credential = chooseCredential(deps, workspaceId, used, moves ? named.slug : null, use?.at);
    if (credential.type === 'none') throw missingCredentials();
    const resolved = targetOfCredential(credential, model, workspaceId);
    if (credential.type !== 'virtual_key' || credential.key.mapped === undefined) return resolved;
    const completed = deps.mappedSecrets.complete(resolved.target, credential.key);
    const withSecrets = (target: Target): ResolvedTarget => ({ ...resolved, target });
    return completed instanceof Promise ? completed.then(withSecrets) : withSecrets(completed);
  };

  const configOf: Routing['configOf'] = (query) => {
    const options = query.headers === null ? null : callOptionsOf(query.headers);
    refuseConfigOverride(query.defaults, query.credentials, options !== null);
    if (query.credentials.config === null && query.defaults.configId === null && options === null) return null;
    return withRefresh(snapshot, () => find(query, options));
  };

  const planOf: Routing['planOf'] = (query) => {
    const { workspaceId, credentials, defaults, headers } = query;
    const isGuarded = snapshot.findGuardrails(workspaceId) !== undefined;
    const hasConfig = credentials.config !== null || defaults.configId !== null;
    if (!isGuarded && !hasConfig && (headers === null || !hasCallOptions(headers))) return withoutConfig;
    const ready = (found: FoundPlan | null): FoundPlan | Promise<FoundPlan> => {
      const { plan, ...rest } = found ?? withoutConfig;
      return withRefresh(snapshot, () => ({ ...rest, plan: guardedPlan(snapshot, workspaceId, plan) }));
    };
    const found = configOf(query);
    return found instanceof Promise ? found.then(ready) : ready(found);
  };

  const resolveNow: Routing['resolveLeaf'] = (query) => withRefresh(snapshot, () => resolveLeaf(query));

  return {
    configOf,
    planOf,
    resolveLeaf: resolveNow,
    targetOf(request) {
      const first = ({ plan, param }: FoundPlan): ResolvedTarget | Promise<ResolvedTarget> =>
        resolveNow({ ...request, leaf: plan.leaves[0], param, isLeafsModel: false });
      const found = planOf({ ...request, headers: null });
      return found instanceof Promise ? found.then(first) : first(found);
    },
  };
}

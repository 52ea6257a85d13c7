import type { IncomingHttpHeaders } from 'node:http';
import { addGuardrails, resolveGuardrails, type AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import { plainPlan } from '#libs/calls/plan/plain-plan.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import type { StoredVersion } from '#libs/calls/planned-call.ts';
import type { Guardrail } from '#libs/contracts/configs/guardrails.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { readCallOptions, hasCallOptions, type CallOptions } from './call-options.ts';
import { noSuchConfig, noSuchGuardrail, unreadableConfig, unreadableGuardrail } from '../not-found.ts';
import { readConfig, readInlineConfig, type ReadConfigDeps } from './read-config.ts';
import { namesCredential, usePublicModels, type ModelCaller, type PublicModelRecords } from './public-models.ts';
import { refuseConfigOverride, type ConfigDefaults, type RequestedCredential } from '../requested.ts';

/** The records for making plans, all of them in memory. */
export type PlanDeps = ReadConfigDeps & { snapshot: ConfigRecords & GuardrailRecords & PublicModelRecords };
type ConfigDeps = ReadConfigDeps & { snapshot: ConfigRecords };

type ConfigRecords = {
  /** By slug or ID. */
  findConfig(
    workspaceId: string,
    name: string,
  ):
    | (Omit<StoredVersion, 'version'> & { configVersion: number; secrets: SecretMembers; plan(): Plan | null })
    | undefined;
};

export type GuardrailRecords = {
  /** undefined: the workspace has none; null: this process cannot read them. */
  findGuardrails(workspaceId: string): AddedGuardrails | null | undefined;
  /** A stored guardrail by slug or ID. Its `guardrail` is null if this process cannot read it. */
  findGuardrail(workspaceId: string, name: string): { slug: string; guardrail: Guardrail | null } | undefined;
  /** A new object after each change of a stored guardrail. */
  guardrailsVersion(): object;
};

/** A call's plan. `param` is the name of its config in error messages. */
export type FoundPlan = {
  plan: Plan;
  param: string;
  options: CallOptions | null;
  /** null for a config that came with the call. */
  stored: (StoredVersion & { secrets: SecretMembers }) | null;
};

/** What a request says about its config. */
export type ConfigQuery = {
  workspaceId: string;
  credentials: RequestedCredential;
  /** null: the headers contain no options (for a batch's lines). */
  headers: IncomingHttpHeaders | null;
  defaults: ConfigDefaults;
};

export type PlanQuery = ConfigQuery & ModelQuery;

type ModelQuery = {
  /** The model of the body, which can be a public one; null for a request without one. */
  model: string | null;
  /** The caller of a public model. */
  caller: Omit<ModelCaller, 'workspaceId'>;
};

/** The plan of a call without a config. */
export const withoutConfig: FoundPlan = { plan: plainPlan, param: 'config', options: null, stored: null };

/**
 * Returns the plan of a call: its config with the guardrails of the workspace before those of its targets. Without a
 * config it has the targets of the public model that it names. Otherwise it has only these guardrails, and without them it
 * is the plain plan, the same object for all calls. Throws like `findConfig`, `usePublicModels` and `guardPlan`.
 */
export function findPlan(deps: PlanDeps, query: PlanQuery): FoundPlan {
  const { workspaceId, credentials, defaults, headers } = query;
  const hasConfig = credentials.config !== null || defaults.configId !== null;
  const hasOptions = headers !== null && hasCallOptions(headers);
  const found = hasConfig || hasOptions ? (findConfig(deps, query) ?? withoutConfig) : withoutConfig;
  return guardPlan(deps.snapshot, workspaceId, routePublicModels(deps, query, found));
}

/**
 * Returns the plan with the targets of the public models that it names, or that the call names without a config. A call that names
 * its own credential sends its model to the provider of that credential. Throws like `usePublicModels`.
 */
export function routePublicModels(
  deps: Pick<PlanDeps, 'snapshot' | 'plans'>,
  { workspaceId, credentials, model, caller }: Pick<ConfigQuery, 'workspaceId' | 'credentials'> & ModelQuery,
  found: FoundPlan,
): FoundPlan {
  if (namesCredential(credentials)) return found;
  if (found.plan === plainPlan && (model === null || model.startsWith('@'))) return found;
  const plan = usePublicModels(deps, found.plan, { model, caller: { workspaceId, ...caller } });
  if (plan === found.plan) return found;
  return { ...found, plan, param: found.plan === plainPlan ? 'model' : found.param };
}

/**
 * Returns the config of a call: its own, or the default of its key. Headers alone (a timeout, a retry count) make one
 * with a single target. null: there is none, and the call is a plain one. Throws invalid_request with the header or the
 * member at fault, NotInSnapshot, and `forbidden` if the key's config is fixed.
 */
export function findConfig(
  deps: ConfigDeps,
  { workspaceId, credentials, headers, defaults }: ConfigQuery,
): FoundPlan | null {
  const options = headers === null ? null : readCallOptions(headers);
  refuseConfigOverride(defaults, credentials, options !== null);
  if (credentials.config === null) {
    if (defaults.configId !== null) return findStored(deps, workspaceId, defaults.configId, null, options);
    return options && { ...withoutConfig, options };
  }
  const { value, param } = credentials.config;
  if (typeof value !== 'string') {
    return { ...readConfig(value, param, deps.checkDestination), param, options, stored: null };
  }
  if (!value.trimStart().startsWith('{')) return findStored(deps, workspaceId, value, param, options);
  return { plan: readInlineConfig(deps, value, param), param, options, stored: null };
}

function findStored(
  { snapshot }: ConfigDeps,
  workspaceId: string,
  name: string,
  param: string | null,
  options: CallOptions | null,
): FoundPlan {
  const config = snapshot.findConfig(workspaceId, name);
  if (!config) throw noSuchConfig(name, param);
  const { id, slug, configVersion: version, secrets } = config;
  const plan = config.plan();
  if (plan === null) throw unreadableConfig(slug, param);
  return { plan, param: param ?? 'config', options, stored: { id, slug, version, secrets } };
}

/**
 * Returns a plan with the guardrails of the workspace before its own, and with each reference replaced by the stored
 * guardrail. Without guardrails it is the same object. Throws unavailable when they cannot be read, and NotInSnapshot,
 * so that no call is made without its checks.
 */
export function guardPlan(snapshot: GuardrailRecords, workspaceId: string, found: FoundPlan): FoundPlan {
  const ofWorkspace = snapshot.findGuardrails(workspaceId);
  if (ofWorkspace === null) throw unreadable();
  const guarded = ofWorkspace === undefined ? found.plan : addGuardrails(found.plan, ofWorkspace);
  const plan = guarded.namesGuardrails ? withStored(snapshot, workspaceId, guarded) : guarded;
  return plan === found.plan ? found : { ...found, plan };
}

// The plans that were made with guardrails of an older version are freed with it.
const made = new WeakMap<object, Map<string, WeakMap<Plan, Plan>>>();

function withStored(snapshot: GuardrailRecords, workspaceId: string, plan: Plan): Plan {
  const version = snapshot.guardrailsVersion();
  let ofVersion = made.get(version);
  if (ofVersion === undefined) made.set(version, (ofVersion = new Map()));
  let plans = ofVersion.get(workspaceId);
  if (plans === undefined) ofVersion.set(workspaceId, (plans = new WeakMap()));
  let resolved = plans.get(plan);
  if (resolved === undefined) {
    resolved = resolveGuardrails(plan, (name) => requireGuardrail(snapshot, workspaceId, name));
    plans.set(plan, resolved);
  }
  return resolved;
}

function requireGuardrail(snapshot: GuardrailRecords, workspaceId: string, name: string): Guardrail {
  const live = snapshot.findGuardrail(workspaceId, name);
  if (live === undefined) throw noSuchGuardrail(name, null);
  if (live.guardrail === null) throw unreadableGuardrail(live.slug);
  return live.guardrail;
}

const unreadable = (): GatewayError =>
  new GatewayError(
    'unavailable',
    'guardrails_unreadable',
    'This release cannot read the guardrails of the workspace. Set them again with PUT /v1/admin/guardrails.',
  );

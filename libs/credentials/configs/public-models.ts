import { plainPlan } from '#libs/calls/plan/plain-plan.ts';
import type { Leaf, Plan, PlanNode, PublicModelUse } from '#libs/calls/plan/plan.ts';
import { leafPart, replaceLeaves, type PlanPart } from '#libs/calls/plan/replace-leaves.ts';
import { configLimits } from '#libs/contracts/configs/config.ts';
import { matchWildcard, type PublicNames } from '#libs/contracts/configs/public-models.ts';
import type { Refreshable } from '#libs/identity/not-in-snapshot.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { PlanCache } from './plan-cache.ts';
import { noSuchModel } from '../not-found.ts';
import type { ConfigDefaults, RequestedCredential } from '../requested.ts';
import { isOpenLeaf } from '../resolve.ts';

/** The callers that can use a public model. Each list that is set must contain the caller. */
export type AllowedCallers = Readonly<Partial<Record<'workspaces' | 'keys' | 'roles', readonly string[] | undefined>>>;

/** A public model in memory. */
export type PublicModel = {
  readonly slug: string;
  /** The owner: a workspace or the organisation. */
  readonly workspaceId: string;
  /** As clients send it. A wildcard contains one `*`. */
  readonly name: string;
  readonly displayName: string;
  readonly createdAtMs: number;
  readonly allowed: AllowedCallers | null;
  /** The record as JSON, whose size determines the memory that is charged for its plans. */
  readonly text: string;
  /** The plan for a call with this name; `matched` is the part in place of the wildcard. null: it cannot be read. */
  readonly plan: (called: string, matched: string | null) => Plan | null;
};

/** The public models of one owner. */
export type OwnedModels = {
  readonly byName: ReadonlyMap<string, PublicModel>;
  readonly wildcards: readonly PublicModel[];
};

export type PublicModelRecords = {
  /**
   * The models of the workspace, then those of the organisation. Throws unavailable if the workspace is not loaded.
   * `version` is a new object after each change of a model.
   */
  findPublicModels(workspaceId: string): { owners: readonly OwnedModels[]; version: object };
  /** Throws unavailable if a public model of the workspace or the organisation cannot be read. */
  refuseUnreadableModels(workspaceId: string): void;
};

/** The caller of a model. `role`: that of a user in the workspace; null for a service key. */
export type ModelCaller = { workspaceId: string; keyId: string | null; role: string | null };

/** Groups public models by their owners for lookups. Pure. */
export function groupModels(models: Iterable<PublicModel>): Map<string, OwnedModels> {
  const owners = new Map<string, { byName: Map<string, PublicModel>; wildcards: PublicModel[] }>();
  for (const model of models) {
    let owner = owners.get(model.workspaceId);
    if (owner === undefined) owners.set(model.workspaceId, (owner = { byName: new Map(), wildcards: [] }));
    if (model.name.includes('*')) owner.wildcards.push(model);
    else owner.byName.set(model.name, model);
  }
  // The longest literal part first; among equals, the longer beginning.
  for (const { wildcards } of owners.values()) {
    wildcards.sort(
      (one, other) => other.name.length - one.name.length || other.name.indexOf('*') - one.name.indexOf('*'),
    );
  }
  return owners;
}

/** Whether a caller can use a public model. */
function permits({ allowed }: Pick<PublicModel, 'allowed'>, { workspaceId, keyId, role }: ModelCaller): boolean {
  if (allowed === null) return true;
  const { workspaces, keys, roles } = allowed;
  return (
    (workspaces === undefined || workspaces.includes(workspaceId)) &&
    (keys === undefined || (keyId !== null && keys.includes(keyId))) &&
    (roles === undefined || (role !== null && roles.includes(role)))
  );
}

/** Whether the workspace has a public model, independent of the caller. */
const hasModels = (owners: readonly OwnedModels[], workspaceId: string): boolean =>
  owners.some(({ byName, wildcards }) =>
    [...byName.values(), ...wildcards].some(({ allowed }) => allowed?.workspaces?.includes(workspaceId) ?? true),
  );

/** The models with exact names that the caller can use, each name once. */
function listPublicModels(owners: readonly OwnedModels[], caller: ModelCaller): PublicModel[] {
  const names = new Set(owners.flatMap(({ byName }) => [...byName.keys()]));
  return [...names]
    .flatMap((name) => matchModel(owners, name, caller)?.model ?? [])
    .filter(({ name }) => names.has(name));
}

type Match = { model: PublicModel; matched: string | null };

/**
 * Finds the model that a name refers to: the one with exactly this name, else the wildcard with the longest literal part.
 * Models of the workspace take precedence over those of the organisation. A model that the caller cannot use does not give
 * way to a less specific one: null, as for an unknown name.
 * @testOnly
 */
export function matchModel(owners: readonly OwnedModels[], name: string, caller: ModelCaller): Match | null {
  for (const { byName } of owners) {
    const model = byName.get(name);
    if (model !== undefined) return permits(model, caller) ? { model, matched: null } : null;
  }
  let best: Match | null = null;
  for (const { wildcards } of owners) {
    for (const model of wildcards) {
      if (best !== null && model.name.length <= best.model.name.length) break;
      const matched = matchWildcard(model.name, name);
      if (matched === null) continue;
      best = { model, matched };
      break;
    }
  }
  return best !== null && permits(best.model, caller) ? best : null;
}

/**
 * The public models for lists of models, newest first; null if the request names a credential or a config, or the workspace
 * has no public models.
 */
export function findListedModels(
  snapshot: PublicModelRecords,
  {
    credentials,
    defaults,
    caller,
  }: { credentials: RequestedCredential; defaults: ConfigDefaults; caller: ModelCaller },
): PublicModel[] | null {
  if (namesCredential(credentials) || credentials.config !== null || defaults.configId !== null) return null;
  const { owners } = snapshot.findPublicModels(caller.workspaceId);
  if (!hasModels(owners, caller.workspaceId)) return null;
  const newestFirst = (one: PublicModel, other: PublicModel): number =>
    other.createdAtMs - one.createdAtMs || (one.name < other.name ? -1 : 1);
  return listPublicModels(owners, caller).toSorted(newestFirst);
}

/** Finds a model by a name that the caller can call. Throws not_found (`model_not_found`). */
export function findUsableModel(snapshot: PublicModelRecords, name: string, caller: ModelCaller): PublicModel {
  const { owners } = snapshot.findPublicModels(caller.workspaceId);
  const match = matchModel(owners, name, caller);
  if (match === null) throw unknownModel(snapshot, owners, name, caller);
  return match.model;
}

function unknownModel(
  snapshot: PublicModelRecords,
  owners: readonly OwnedModels[],
  name: string,
  caller: ModelCaller,
): GatewayError {
  snapshot.refuseUnreadableModels(caller.workspaceId);
  const names = listPublicModels(owners, caller).map((model) => model.name);
  return noSuchModel(caller.workspaceId, name, names);
}

/** The names that the caller can use, as they are in the database now. Throws unavailable if it does not answer. */
export async function readPublicNames(
  snapshot: PublicModelRecords & Pick<Refreshable, 'refresh'>,
  caller: ModelCaller,
): Promise<PublicNames> {
  await snapshot.refresh();
  const { owners } = snapshot.findPublicModels(caller.workspaceId);
  const usable = owners.flatMap(({ wildcards }) => wildcards).filter((model) => permits(model, caller));
  return {
    exact: new Set(listPublicModels(owners, caller).map(({ name }) => name)),
    wildcards: usable.map(({ name }) => name),
  };
}

/** Whether the call itself names a credential or a destination, so that its model is one of that provider. */
export const namesCredential = ({ virtualKey, provider, providerKey, customHost }: RequestedCredential): boolean =>
  virtualKey !== null || provider !== null || providerKey !== null || customHost !== null;

type Query = { caller: ModelCaller; model: string | null };
type Deps = { snapshot: PublicModelRecords; plans: PlanCache };

const ids = new WeakMap<object, number>();
let lastId = 0;

/** A number that stands for an object in the keys of cached plans. */
function identify(value: object): number {
  let id = ids.get(value);
  if (id === undefined) ids.set(value, (id = lastId += 1));
  return id;
}

/** The public models in a plan, which all must permit the caller. */
const usedIn = new WeakMap<Plan, readonly PublicModel[]>();

/**
 * Returns a plan in which each target without a destination is replaced by the targets of the public model that it names,
 * by its own `model` or that of the call. The same object if there are none. A plan with a single target that names an
 * unknown model is refused. With several targets, such a target stays, and is refused if it is called.
 *
 * Throws NotInSnapshot (`model_not_found`), invalid_request (`model_cycle`, `model_too_large`) and unavailable.
 */
export function usePublicModels({ snapshot, plans }: Deps, plan: Plan, query: Query): Plan {
  const { caller, model } = query;
  const [named] = namesIn(plan, model);
  if (named === undefined) return plan;
  const { owners, version } = snapshot.findPublicModels(caller.workspaceId);
  const isSingle = plan.leaves.length === 1;
  const unknown = (): GatewayError => unknownModel(snapshot, owners, named, caller);
  if (plan === plainPlan) {
    const match = matchModel(owners, named, caller);
    if (match === null) throw unknown();
    const own = openPlan(match, named);
    if (namesIn(own, named).length === 0) return own;
  }
  const cacheKey = `public ${identify(version)} ${identify(plan)} ${caller.workspaceId} ${model ?? ''}`;
  const known = plans.find(cacheKey) ?? undefined;
  if (known !== undefined && usedIn.get(known)?.every((used) => permits(used, caller)) === true) return known;
  const splice = createSplice(owners, caller);
  const spliced = splice.into(plan, model, []);
  if (spliced === plan && isSingle) throw unknown();
  assertBounded(spliced, named);
  const { used, isHiding } = splice.seen();
  usedIn.set(spliced, used);
  // If the caller cannot use one of the models, the plan is only for this caller.
  if (spliced !== plan && !isHiding) plans.keep(cacheKey, `[${used.map(({ text }) => text).join(',')}]`, spliced);
  return spliced;
}

/** The names of public models to which the targets of a plan may refer. */
const namesIn = ({ leaves }: Plan, model: string | null): string[] =>
  leaves.flatMap((leaf) => publicName(leaf, model) ?? []);

/** null for a target with a destination, or with a model of the form `@slug/model`. */
function publicName(leaf: Leaf, model: string | null): string | null {
  if (!isOpenLeaf(leaf)) return null;
  const raw = leaf.overrides.get('model');
  const name = raw === undefined ? model : (JSON.parse(raw) as string);
  return name === null || name.startsWith('@') ? null : name;
}

function openPlan({ model, matched }: Match, called: string): Plan {
  const plan = model.plan(called, matched);
  if (plan !== null) return plan;
  const message = `This release cannot read the public model '${model.name}'. Store it again with PUT /v1/public-models/${model.slug}.`;
  throw new GatewayError('unavailable', 'model_unreadable', message, { param: 'model' });
}

function createSplice(owners: readonly OwnedModels[], caller: ModelCaller) {
  const used: PublicModel[] = [];
  let isHiding = false;

  /** `trail`: the models whose targets these are, from the outermost to the innermost. */
  const into = (plan: Plan, model: string | null, trail: readonly PublicModel[]): Plan => {
    const inner = new Map<Leaf, Plan>();
    for (const leaf of plan.leaves) {
      const name = publicName(leaf, model);
      const match = name === null ? null : matchModel(owners, name, caller);
      isHiding ||= name !== null && match === null;
      if (name === null || match === null) continue;
      const next = [...trail, match.model];
      if (trail.includes(match.model)) throw cycle(next);
      if (next.length > configLimits.depthMax) throw tooLarge(next[0]?.name ?? name);
      used.push(match.model);
      inner.set(leaf, into(openPlan(match, name), name, next));
    }
    if (inner.size === 0) return plan;
    return replaceLeaves(plan, (leaf) => {
      const part = inner.get(leaf);
      return part === undefined ? leafPart(leaf) : joinLeaf(leaf, part);
    });
  };
  return { into, seen: () => ({ used, isHiding }) };
}

/** The targets of a public model in the place of a leaf, whose settings apply where the model has none. */
function joinLeaf(outer: Leaf, model: Plan): PlanPart {
  const withoutModel = new Map([...outer.overrides].filter(([name]) => name !== 'model'));
  return replaceLeaves(model, (inner) =>
    leafPart({
      ...inner,
      path: outer.path + inner.path.slice('config'.length),
      name: inner.name ?? outer.name,
      defaults: new Map([...outer.defaults, ...inner.defaults]),
      overrides: new Map([...withoutModel, ...inner.overrides]),
      drops: [...outer.drops, ...inner.drops],
      retry: inner.retry ?? outer.retry,
      timeouts: inner.timeouts === null ? outer.timeouts : { ...outer.timeouts, ...inner.timeouts },
      cache: inner.cache ?? outer.cache,
      inputGuardrails: [...outer.inputGuardrails, ...inner.inputGuardrails],
      outputGuardrails: [...outer.outputGuardrails, ...inner.outputGuardrails],
      breaker: inner.breaker ?? outer.breaker,
      forwardHeaders: [...new Set([...outer.forwardHeaders, ...inner.forwardHeaders])],
      strict: inner.strict && outer.strict,
      unsupportedParams: outer.unsupportedParams === 'refuse' ? 'refuse' : inner.unsupportedParams,
      publicModel: outer.publicModel === null ? inner.publicModel : joinUse(outer.publicModel, inner.publicModel),
    }),
  );
}

/** The outermost model has the name of the call. Its price, if it has one, is that of the call. */
const joinUse = (outer: PublicModelUse, inner: PublicModelUse | null): PublicModelUse => ({
  name: outer.name,
  price: outer.price ?? inner?.price ?? null,
});

/** Throws for a plan that would not be accepted as a config. */
function assertBounded({ root, leaves }: Plan, name: string): void {
  if (leaves.length > configLimits.leavesMax || depthOf(root) > configLimits.depthMax) throw tooLarge(name);
}

function depthOf(node: PlanNode): number {
  switch (node.kind) {
    case 'leaf':
      return 0;
    case 'fallback':
      return 1 + Math.max(...node.options.map(depthOf));
    case 'loadbalance':
      return 1 + Math.max(...node.options.map((option) => depthOf(option.node)));
    case 'conditional':
      return 1 + Math.max(depthOf(node.otherwise), ...node.conditions.map((condition) => depthOf(condition.node)));
  }
}

const cycle = (trail: readonly PublicModel[]): GatewayError => {
  const names = trail.map(({ name }) => `'${name}'`).join(' -> ');
  const message = `The targets of public models lead back to the same model: ${names}. Give one of them a target with a provider.`;
  return new GatewayError('invalid_request', 'model_cycle', message, { param: 'model' });
};

const tooLarge = (name: string): GatewayError => {
  const { leavesMax, depthMax } = configLimits;
  const message = `The model '${name.slice(0, 200)}' has too many targets, together with those of the public models that it names. At most ${leavesMax} targets, nested ${depthMax} levels deep, are allowed.`;
  return new GatewayError('invalid_request', 'model_too_large', message, { param: 'model' });
};

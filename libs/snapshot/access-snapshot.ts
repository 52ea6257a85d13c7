import type { AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import type { LiveApiKey } from '#libs/identity/authenticate.ts';
import { createSnapshot, type Snapshot, type SnapshotOptions } from '#libs/identity/snapshot.ts';
import type { WorkspaceRole } from '#libs/contracts/people/people.ts';
import { liveKeys, type LiveKeys } from '#libs/identity/live-callers.ts';
import { reachesEveryWorkspace } from '#libs/http/rights.ts';
import { getWorkspaceRole, type LiveUser } from '#libs/http/roles.ts';
import { userKind } from '#libs/people/users/users.ts';
import { apiKeyKind } from '#libs/resources/api-keys/api-keys.ts';
import { configKind, type LiveConfig } from '#libs/resources/configs.ts';
import type { AnyResource, CachedKind } from '#libs/records/define-resource.ts';
import { guardrailKind, type LiveGuardrail } from '#libs/resources/guardrails.ts';
import { publicModelKind } from '#libs/resources/public-models.ts';
import {
  groupModels,
  type OwnedModels,
  type PublicModel,
  type PublicModelRecords,
} from '#libs/credentials/configs/public-models.ts';
import { findLive, refuseUnreadable } from '#libs/records/find-by-name.ts';
import {
  liveKind,
  loadLiveRecords,
  noRecords,
  type LiveKind,
  type LiveKinds,
  type LiveRecords,
} from '#libs/records/live/live-resources.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { integrationKind } from '#libs/resources/integrations/integrations.ts';
import type { LiveIntegration } from '#libs/resources/integrations/integration-data.ts';
import { providerKind, type LiveProvider } from '#libs/resources/integrations/providers.ts';
import type { LiveCredential } from '#libs/credentials/stored.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { workspaceKind, type LiveWorkspace } from '#libs/people/workspaces.ts';
import { createPlanCache, type PlanCache } from '#libs/credentials/configs/plan-cache.ts';
import { secretReferenceKind } from '#libs/resources/secret-references/secret-references.ts';
import type { LiveSecretReference } from '#libs/secret-managers/secret-manager.ts';
import { organisationId } from '#libs/http/caller.ts';
import { rateLimitPolicyKind } from '#libs/resources/limits/rate-limit-policies.ts';
import { usageLimitPolicyKind } from '#libs/resources/limits/usage-limit-policies.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { findIntegration, joinProviders, type ProviderCredentials } from './provider-credentials.ts';

/** Everything that authenticates and routes a request, as of one version of the database. It never changes. */
type AccessState = {
  /** The cached records of every kind. */
  readonly records: LiveRecords;
  readonly keys: LiveKeys;
  /** The lookups of calls, computed once for all of them. */
  readonly virtualKeys: LiveKind<LiveCredential>;
  readonly providers: ProviderCredentials;
  readonly configs: LiveKind<LiveConfig>;
  readonly models: LiveKind<PublicModel>;
  /** By owner. */
  readonly modelsOf: ReadonlyMap<string, OwnedModels>;
  /** By workspace; only workspaces that have guardrails. */
  readonly guardrails: ReadonlyMap<string, AddedGuardrails | null>;
};

export type AccessSnapshotOptions = SnapshotOptions & {
  secrets: Pick<Secrets, 'open'>;
  /** Called with the credentials that have changed since the last load, by an edit or by one of their integration. */
  onCredentialsChanged?: (changed: readonly Pick<LiveCredential, 'id' | 'workspaceId'>[]) => void;
  /** The records and the plans of configs are charged to it. Absent: all records are loaded. */
  memory?: MemoryBudget;
  /** Default: one for this snapshot alone. */
  plans?: PlanCache;
  /** The kinds to choose the cached ones from. Default: all kinds of this release. */
  kinds?: readonly AnyResource[];
};

export type AccessSnapshot = Omit<Snapshot<AccessState>, 'state'> &
  PublicModelRecords & {
    /** The active records of a kind at this moment. Ask again for every request. */
    live<Entry>(kind: { noun: string; cached?: CachedKind<never, Entry> }): LiveKind<Entry>;
    findApiKey(digest: string): LiveApiKey | undefined;
    /**
     * Throws unavailable for a workspace whose records do not fit into memory (`workspace_too_large`), or whose limits or
     * settings cannot be read (`record_unreadable`).
     */
    assertLoaded(workspaceId: string): void;
    /** The memory that the records of a workspace take up, in bytes. */
    memoryOf(workspaceId: string): number;
    /**
     * The memory of all records that are loaded, the number of workspaces whose records are not, and the number of
     * unreadable records.
     */
    recordStats(): { bytes: number; workspacesLeftOut: number; unreadable: number };
    /** A user's role in a workspace; null for someone who is not a user or not in the workspace. */
    roleOf(userId: string, workspaceId: string): WorkspaceRole | null;
    /** A virtual key or a provider: no two of a workspace have the same slug. */
    findCredential(workspaceId: string, slug: string): LiveCredential | undefined;
    findCredentialById(workspaceId: string, id: string): LiveCredential | undefined;
    findSecretReference(id: string): LiveSecretReference | undefined;
    findIntegration(workspaceId: string, slug: string): LiveIntegration | undefined;
    /** The limits that integrations set for their workspaces; a new object after a change of one. */
    integrationLimits(): ProviderCredentials['limited'];
    /** By slug or id. */
    findConfig(workspaceId: string, name: string): LiveConfig | undefined;
    /** undefined: the workspace has none; null: this process cannot read them. */
    findGuardrails(workspaceId: string): AddedGuardrails | null | undefined;
    /** A stored guardrail of the workspace or of the organisation, by slug or id. */
    findGuardrail(workspaceId: string, name: string): LiveGuardrail | undefined;
    /** A new object after each change of a stored guardrail. */
    guardrailsVersion(): object;
  };

/** Makes the snapshot of all cached records, in which a call finds what it needs. */
export function createAccessSnapshot({
  secrets,
  onCredentialsChanged,
  kinds = resourceKinds,
  memory,
  plans = createPlanCache(memory),
  ...options
}: AccessSnapshotOptions): AccessSnapshot {
  const lease = memory?.open('records');
  const deps = {
    db: options.db,
    logger: options.logger,
    secrets,
    plans,
    bytesMax: memory === undefined ? Number.POSITIVE_INFINITY : Math.floor(memory.stats().bytesMax * recordsShare),
    onBytes: (bytes: number) => lease?.become(bytes),
  };
  const { state, ...snapshot } = createSnapshot<AccessState>(options, {
    empty: stateOf(noRecords, null),
    async load(previous) {
      const next = stateOf(await loadLiveRecords(deps, kinds, previous.records), previous);
      const changed = onCredentialsChanged === undefined ? [] : changedCredentials(previous, next);
      // Called only after the new state is in use.
      if (changed.length > 0) setImmediate(() => onCredentialsChanged?.(changed));
      return next;
    },
  });
  const assertLoaded = (workspaceId: string): void => {
    const { leftOut, kinds: loaded } = state().records;
    if (leftOut.has(workspaceId)) throw tooLarge();
    for (const kind of restrictingKinds) refuseUnreadable(liveKind(loaded, kind), [workspaceId]);
  };
  return {
    ...snapshot,
    assertLoaded,
    memoryOf: (workspaceId) => state().records.bytesOf.get(workspaceId) ?? 0,
    recordStats() {
      const { bytes, leftOut, kinds: loaded } = state().records;
      const unreadable = loaded.values().reduce((count, kind) => count + kind.unreadable.size, 0);
      return { bytes, workspacesLeftOut: leftOut.size, unreadable };
    },
    live: (kind) => liveKind(state().records.kinds, kind),
    findApiKey(digest) {
      const key = state().keys.byDigest.get(digest);
      const { kinds: loaded } = state().records;
      if (key === undefined) refuseUnreadable(liveKind(loaded, apiKeyKind), null, digest);
      // The networks that the workspace allows are unknown. Keys of the organisation can repair it.
      else if (!reachesEveryWorkspace(key.caller)) {
        refuseUnreadable(liveKind(loaded, workspaceKind), [key.caller.workspaceId]);
      }
      return key;
    },
    roleOf(userId, workspaceId) {
      const user = state().keys.users.get(userId);
      return user === undefined ? null : getWorkspaceRole(user, workspaceId);
    },
    findCredential(workspaceId, slug) {
      assertLoaded(workspaceId);
      const { virtualKeys, providers } = state();
      const found = virtualKeys.bySlug.get(workspaceId)?.get(slug) ?? providers.bySlug.get(workspaceId)?.get(slug);
      if (found !== undefined) return found;
      refuseUnreadable(virtualKeys, [workspaceId], slug);
      refuseUnreadable(providers.providers, [workspaceId], slug);
      return undefined;
    },
    findCredentialById(workspaceId, id) {
      assertLoaded(workspaceId);
      const { virtualKeys, providers } = state();
      const credential = virtualKeys.byId.get(id) ?? providers.byId.get(id);
      return credential?.workspaceId === workspaceId ? credential : undefined;
    },
    findSecretReference(id) {
      const references = liveKind<LiveSecretReference>(state().records.kinds, secretReferenceKind);
      const found = references.byId.get(id);
      if (found === undefined) refuseUnreadable(references, null, id);
      return found;
    },
    findIntegration: (workspaceId, slug) => findIntegration(state().providers.integrations, workspaceId, slug),
    integrationLimits: () => state().providers.limited,
    findGuardrails(workspaceId) {
      assertLoaded(workspaceId);
      const { guardrails } = state();
      return guardrails.size === 0 ? undefined : guardrails.get(workspaceId);
    },
    findGuardrail: (workspaceId, name) =>
      findLive<LiveGuardrail>(liveKind(state().records.kinds, guardrailKind), [workspaceId, organisationId], name),
    guardrailsVersion: () => liveKind(state().records.kinds, guardrailKind),
    findPublicModels(workspaceId) {
      assertLoaded(workspaceId);
      const { models: version, modelsOf } = state();
      const owners = [modelsOf.get(workspaceId), modelsOf.get(organisationId)];
      return { owners: owners.filter((owner) => owner !== undefined), version };
    },
    refuseUnreadableModels: (workspaceId) => refuseUnreadable(state().models, [workspaceId, organisationId]),
    findConfig(workspaceId, name) {
      assertLoaded(workspaceId);
      return findLive(state().configs, [workspaceId], name);
    },
  };
}

/** An unchanged record keeps its decrypted secrets, so another object means that it was read again. */
function changedCredentials(previous: AccessState, next: AccessState): LiveCredential[] {
  const changedOf = (before: ReadonlyMap<string, LiveCredential>, after: ReadonlyMap<string, LiveCredential>) =>
    before === after
      ? []
      : [...after.values()].filter(({ id, secrets }) => (before.get(id) ?? { secrets }).secrets !== secrets);
  return [
    ...changedOf(previous.virtualKeys.byId, next.virtualKeys.byId),
    ...changedOf(previous.providers.byId, next.providers.byId),
  ];
}

/** Without one of these records, calls could do more than they are allowed to. */
const restrictingKinds = [workspaceKind, usageLimitPolicyKind, rateLimitPolicyKind];

/** The part of the memory budget that records can take up. */
const recordsShare = 1 / 2;

const tooLarge = (): GatewayError =>
  new GatewayError(
    'unavailable',
    'workspace_too_large',
    'The records of this workspace do not fit into the memory of this process, so it cannot make calls. Delete large ' +
      'configs, prompts and guardrails that are no longer used, or ask the operator to raise SLUICE_MEMORY_MAX.',
    { retryAfterMs: 60_000 },
  );

const stateOf = (records: LiveRecords, previous: AccessState | null): AccessState => {
  const { kinds } = records;
  const models = liveKind<PublicModel>(kinds, publicModelKind);
  return {
    records,
    keys: keysOf(kinds, previous?.keys ?? null),
    virtualKeys: liveKind(kinds, virtualKeyKind),
    providers: joinProviders(
      liveKind<LiveProvider>(kinds, providerKind),
      liveKind<LiveIntegration>(kinds, integrationKind),
      previous?.providers ?? null,
    ),
    configs: liveKind(kinds, configKind),
    models,
    modelsOf: previous?.models === models ? previous.modelsOf : groupModels(models.byId.values()),
    guardrails: guardrailsOf(liveKind(kinds, workspaceKind)),
  };
};

function keysOf(kinds: LiveKinds, previous: LiveKeys | null): LiveKeys {
  const keys = liveKind<LiveApiKey>(kinds, apiKeyKind).byLookup;
  const workspaces = liveKind<LiveWorkspace>(kinds, workspaceKind).byId;
  const users = liveKind<LiveUser>(kinds, userKind).byId;
  return liveKeys({ keys, workspaces, users }, previous);
}

function guardrailsOf({ byId }: LiveKind<LiveWorkspace>): Map<string, AddedGuardrails | null> {
  const found = new Map<string, AddedGuardrails | null>();
  for (const [id, { guardrails }] of byId) if (guardrails !== undefined) found.set(id, guardrails);
  return found;
}

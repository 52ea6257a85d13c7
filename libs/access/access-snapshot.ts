import type { AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import type { LiveApiKey } from '#libs/identity/authenticate.ts';
import { createSnapshot, type Snapshot, type SnapshotOptions } from '#libs/identity/snapshot.ts';
import type { WorkspaceRole } from '#libs/contracts/people.ts';
import { liveKeys, type LiveKeys } from '#libs/identity/live-callers.ts';
import { workspaceRoleOf, type LiveUser } from '#libs/identity/roles.ts';
import { userKind } from '#libs/resources/users.ts';
import { apiKeyKind } from '#libs/resources/api-keys.ts';
import { configKind, type LiveConfig } from '#libs/resources/configs.ts';
import type { AnyResource, CachedKind } from '#libs/resources/define-resource.ts';
import { guardrailKind, type LiveGuardrail } from '#libs/resources/guardrails.ts';
import { findLive } from '#libs/resources/find-by-name.ts';
import { liveKind, loadLiveKinds, type LiveKind, type LiveKinds } from '#libs/resources/live-resources.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { integrationKind } from '#libs/resources/integrations.ts';
import type { LiveIntegration } from '#libs/resources/integration-data.ts';
import { providerKind, type LiveProvider } from '#libs/resources/providers.ts';
import type { LiveCredential } from '#libs/resources/stored-credential.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys.ts';
import { workspaceKind, type LiveWorkspace } from '#libs/resources/workspaces.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { findIntegration, joinProviders, type ProviderCredentials } from './provider-credentials.ts';

/** Everything that authenticates and routes a request, as of one version of the database. It never changes. */
type AccessState = {
  /** The cached records of every kind, by noun. */
  readonly kinds: LiveKinds;
  readonly keys: LiveKeys;
  /** What calls look up, found once for all of them. */
  readonly virtualKeys: LiveKind<LiveCredential>;
  readonly providers: ProviderCredentials;
  readonly configs: LiveKind<LiveConfig>;
  /** By workspace; only workspaces that have guardrails. */
  readonly guardrails: ReadonlyMap<string, AddedGuardrails | null>;
};

export type AccessSnapshotOptions = SnapshotOptions & {
  secrets: Pick<Secrets, 'open'>;
  /** Called with the credentials that have changed since the last load, by an edit or by one of their integration. */
  onCredentialsChanged?: (changed: readonly Pick<LiveCredential, 'id' | 'workspaceId'>[]) => void;
  /** The kinds to choose the cached ones from. Default: all kinds of this release. */
  kinds?: readonly AnyResource[];
};

export type AccessSnapshot = Omit<Snapshot<AccessState>, 'state'> & {
  /** The active records of a kind at this moment. Ask again for every request. */
  live<Entry>(kind: { noun: string; cached?: CachedKind<never, Entry> }): LiveKind<Entry>;
  findApiKey(digest: string): LiveApiKey | undefined;
  /** A user's role in a workspace; null for someone who is not a user or not in the workspace. */
  roleOf(userId: string, workspaceId: string): WorkspaceRole | null;
  /** A virtual key or a provider: no two of a workspace have the same slug. */
  findCredential(workspaceId: string, slug: string): LiveCredential | undefined;
  findCredentialById(id: string): LiveCredential | undefined;
  findIntegration(workspaceId: string, slug: string): LiveIntegration | undefined;
  /** The limits that integrations set to their workspaces; another object after a change of one. */
  integrationLimits(): ProviderCredentials['limited'];
  /** By slug or id. */
  findConfig(workspaceId: string, name: string): LiveConfig | undefined;
  /** undefined: the workspace has none; null: this process cannot read them. */
  findGuardrails(workspaceId: string): AddedGuardrails | null | undefined;
  /** The stored guardrails of all workspaces, to which plans refer: a new object after each change of one. */
  storedGuardrails(): LiveKind<LiveGuardrail>;
};

/** Makes the snapshot of all cached records, in which a call finds what it needs. */
export function createAccessSnapshot({
  secrets,
  onCredentialsChanged,
  kinds = resourceKinds,
  ...options
}: AccessSnapshotOptions): AccessSnapshot {
  const deps = { db: options.db, logger: options.logger, secrets };
  const { state, ...snapshot } = createSnapshot<AccessState>(options, {
    empty: stateOf(new Map(), null),
    async load(previous) {
      const next = stateOf(await loadLiveKinds(deps, kinds, previous.kinds), previous);
      const changed = onCredentialsChanged === undefined ? [] : changedCredentials(previous, next);
      // Not before the new state is used.
      if (changed.length > 0) setImmediate(() => onCredentialsChanged?.(changed));
      return next;
    },
  });
  return {
    ...snapshot,
    live: (kind) => liveKind(state().kinds, kind),
    findApiKey: (digest) => state().keys.byDigest.get(digest),
    roleOf(userId, workspaceId) {
      const user = state().keys.users.get(userId);
      return user === undefined ? null : workspaceRoleOf(user, workspaceId);
    },
    findCredential(workspaceId, slug) {
      const { virtualKeys, providers } = state();
      return virtualKeys.bySlug.get(workspaceId)?.get(slug) ?? providers.bySlug.get(workspaceId)?.get(slug);
    },
    findCredentialById(id) {
      const { virtualKeys, providers } = state();
      return virtualKeys.byId.get(id) ?? providers.byId.get(id);
    },
    findIntegration: (workspaceId, slug) => findIntegration(state().providers.integrations, workspaceId, slug),
    integrationLimits: () => state().providers.limited,
    findGuardrails(workspaceId) {
      const { guardrails } = state();
      return guardrails.size === 0 ? undefined : guardrails.get(workspaceId);
    },
    storedGuardrails: () => liveKind(state().kinds, guardrailKind),
    findConfig: (workspaceId, name) => findLive(state().configs, [workspaceId], name),
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

const stateOf = (kinds: LiveKinds, previous: AccessState | null): AccessState => ({
  kinds,
  keys: keysOf(kinds, previous?.keys ?? null),
  virtualKeys: liveKind(kinds, virtualKeyKind),
  providers: joinProviders(
    liveKind<LiveProvider>(kinds, providerKind),
    liveKind<LiveIntegration>(kinds, integrationKind),
    previous?.providers ?? null,
  ),
  configs: liveKind(kinds, configKind),
  guardrails: guardrailsOf(liveKind(kinds, workspaceKind)),
});

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

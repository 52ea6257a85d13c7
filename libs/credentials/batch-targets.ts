import type { Kysely } from 'kysely';
import { plainLeaf } from '#libs/calls/plan/plain-plan.ts';
import type { Leaf } from '#libs/calls/plan/plan.ts';
import type { BatchCredential, BatchTarget, Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { withRefresh } from '#libs/identity/not-in-snapshot.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { whenAvailable } from '#libs/kernel/when-available.ts';
import type { SecretMembers, Secrets } from '#libs/secrets/secrets.ts';
import { createBatchPlans, type BatchPlanDeps } from './batch-plan.ts';
import { refuseUnstorable } from './configs/config-document.ts';
import { splitSecrets } from './configs/config-secrets.ts';
import { findConfig, guardPlan, routePublicModels, withoutConfig, type FoundPlan } from './configs/plan.ts';
import type { ModelCaller } from './configs/public-models.ts';
import { parseConfigText } from './configs/read-config.ts';
import { nothingRequested, type RequestedCredential } from './requested.ts';
import { chooseCredential, namesDestination, type Credential, type ResolvedTarget } from './resolve.ts';
import { createRouting, type RoutingDeps, type TargetRequest } from './routing.ts';
import { LRUCache } from 'lru-cache';
import { GatewayError } from '#libs/kernel/errors.ts';

type Deps = RoutingDeps &
  BatchPlanDeps & {
    db: Kysely<Database>;
    secrets: Secrets;
    snapshot: { assertFresh(): void };
    /** The name of the target's owner in error messages. Default `batch`. */
    holder?: string;
  };

/** The checked credentials and config of a create call. */
export type BatchChoice = {
  caller: Credential;
  /** The requested model without a slug; null for a request without one. */
  model: string | null;
  config:
    | null
    | { type: 'stored'; id: string; version: number; secrets: Readonly<Record<string, Secret>> }
    | { type: 'inline'; document: Record<string, unknown>; secrets: Readonly<Record<string, Secret>> };
};

export type BatchTargets = {
  /**
   * Checks the credentials and the config of a create call, outside any transaction. Returns `none` if there are none,
   * in which case each line names its virtual key. Every target of a config is checked, so that mistakes are reported
   * before any line runs. Throws like `findPlan` and `chooseCredential`.
   */
  choose(request: Omit<TargetRequest, 'model'> & { model?: string }): Promise<BatchChoice>;
  /**
   * Returns the data that the batch stores until it ends: the ID and version of a stored config, or the whole of one
   * that came with the call. Keys and secret settings, of the caller and of the config, are stored encrypted, as
   * secrets of this batch.
   */
  store(unit: UnitOfWork, batch: { workspaceId: string; batchId: string }, choice: BatchChoice): Promise<BatchTarget>;
  /**
   * Returns the batch's config with the current guardrails of the workspace; without both, the plain plan. If the batch has no
   * credential, `line` can name a public model, whose current targets are used. Absent: the plan for no line in particular.
   * Throws unavailable when the guardrails cannot be read, `config_unreadable`, and like `usePublicModels`.
   */
  planOf(
    workspaceId: string,
    target: BatchTarget,
    line?: { model: string | null; caller: Omit<ModelCaller, 'workspaceId'> },
  ): FoundPlan | Promise<FoundPlan>;
  /**
   * Returns where the calls of one target of the plan go. Checked again for each run of a line's plan, so that a
   * rotated key is used and a deleted or expired one is refused. A line's `@slug/model` takes precedence over the
   * batch's target. Throws GatewayError, which is the line's error: codes `virtual_key_deleted`, `virtual_key_expired`,
   * `virtual_key_not_found`, `missing_credentials`, and like `MappedSecrets`. Also throws `unavailable`, after which
   * the line waits.
   */
  resolveLeaf(
    workspaceId: string,
    target: BatchTarget,
    leaf: Leaf,
    model: string | null,
    isLeafsModel: boolean,
  ): ResolvedTarget | Promise<ResolvedTarget>;
  /** Deletes the batch's own secrets, if it has any, in the transaction that ends the batch. */
  release(unit: Pick<UnitOfWork, 'tx'>, target: BatchTarget): Promise<void>;
};

export function createBatchTargets(deps: Deps): BatchTargets {
  const { db, secrets, snapshot, holder = 'batch' } = deps;
  const cache = createBatchSecretCache(db, secrets, holder);
  const routing = createRouting(deps);
  const plans = createBatchPlans({ ...deps, readSecret: (workspaceId, id) => cache.read(workspaceId, id) });

  /**
   * The stored form of one credential of a batch. A caller's own key is stored, encrypted, as a secret of this batch.
   */
  const storeCredential = async (
    unit: UnitOfWork,
    owner: { workspaceId: string; ownerId: string },
    credential: Credential,
  ): Promise<BatchCredential> => {
    switch (credential.type) {
      case 'none':
        return { type: 'none' };
      case 'virtual_key':
        return { type: 'virtual_key', virtual_key_id: credential.key.id };
      case 'provider': {
        const { provider, customHost, apiKey, settings, secrets: others } = credential;
        const members = { ...others, ...(apiKey && { key: apiKey }) };
        const secretId = Object.keys(members).length > 0 ? await secrets.store(unit, owner, members) : null;
        const hasSettings = Object.keys(settings).length > 0;
        return {
          type: 'provider',
          provider,
          custom_host: customHost,
          secret_id: secretId,
          ...(hasSettings ? { settings: { ...settings } } : {}),
        };
      }
    }
  };

  return {
    choose: async (request) => await withRefresh(snapshot, () => choose(deps, request)),

    async store(unit, { workspaceId, batchId }, { caller: credential, config }) {
      const owner = { workspaceId, ownerId: batchId };
      const caller = await storeCredential(unit, owner, credential);
      if (config === null) return caller;
      // This includes the secrets of a stored config, which can be changed or deleted while the batch uses its version.
      const hasSecret = Object.keys(config.secrets).length > 0;
      const secretId = hasSecret ? await secrets.store(unit, owner, config.secrets) : null;
      if (config.type === 'stored') {
        const pinned = { type: 'config' as const, config_id: config.id, config_version: config.version, caller };
        return secretId === null ? pinned : { ...pinned, secret_id: secretId };
      }
      return { type: 'inline_config', config: config.document, secret_id: secretId, caller };
    },

    planOf(workspaceId, target, line) {
      const caller = 'caller' in target ? target.caller : target;
      const query = { workspaceId, credentials: nothingRequested };
      const complete = (found: FoundPlan): FoundPlan | Promise<FoundPlan> =>
        withRefresh(snapshot, () => {
          const isOpen = line !== undefined && caller.type === 'none';
          const routed = isOpen ? routePublicModels(deps, { ...query, ...line }, found) : found;
          return guardPlan(snapshot, workspaceId, routed);
        });
      return whenAvailable('caller' in target ? plans.planOf(workspaceId, target) : withoutConfig, complete);
    },

    resolveLeaf(workspaceId, target, leaf, model, isLeafsModel) {
      snapshot.assertFresh();
      const resolve = (credentials: RequestedCredential): ResolvedTarget | Promise<ResolvedTarget> =>
        routing.resolveLeaf({ workspaceId, credentials, leaf, param: 'config', model, isLeafsModel });
      const caller = 'caller' in target ? target.caller : target;
      const requested = requestedBy(caller, holder, (id) => cache.read(workspaceId, id));
      return whenAvailable(whenAvailable(requested, resolve), boundToOrigin);
    },

    async release(unit, target) {
      const stored = 'caller' in target ? target.caller : target;
      const ids = [stored.type === 'provider' ? stored.secret_id : null, 'caller' in target ? target.secret_id : null];
      for (const id of ids) {
        if (typeof id !== 'string') continue;
        await secrets.remove(unit, id);
        cache.forget(id);
      }
    },
  };
}

/** Throws NotInSnapshot for a miss, and like `BatchTargets.choose`. */
function choose(deps: Deps, request: Parameters<BatchTargets['choose']>[0]): BatchChoice {
  const { workspaceId, credentials, model = null } = request;
  const found = findConfig(deps, { ...request, headers: null });
  const sent = { ...credentials, config: null };
  const query = { workspaceId, credentials: sent, param: found?.param ?? 'config' };
  const chooseCaller = () => chooseCredential(deps, { ...query, leaf: plainLeaf, model, isLeafsModel: false });
  if (found === null) {
    const { credential: caller, model: asked } = chooseCaller();
    return { caller, model: asked, config: null };
  }
  // This reports a missing guardrail before any line runs.
  guardPlan(deps.snapshot, workspaceId, found);
  const { leaves } = found.plan;
  for (const leaf of leaves) {
    chooseCredential(deps, { ...query, leaf, model: readModel(leaf), isLeafsModel: true });
  }
  // The caller's own provider is not checked when no target uses it.
  const isUsed = !leaves.every(namesDestination) || sent.virtualKey !== null || sent.providerKey !== null;
  const caller: Credential = isUsed ? chooseCaller().credential : { type: 'none' };
  if (found.stored) return { caller, model, config: { type: 'stored', ...found.stored } };
  const value = credentials.config?.value ?? {};
  const document = typeof value === 'string' ? parseConfigText(value, found.param) : value;
  refuseUnstorable(document, found.param);
  return { caller, model, config: { type: 'inline', ...splitSecrets(document as Record<string, unknown>) } };
}

/** Converts a batch's stored credential to the form in which a call requests it. */
function requestedBy(
  stored: BatchCredential,
  holder: string,
  readSecret: (id: string) => Promise<SecretMembers>,
): RequestedCredential | Promise<RequestedCredential> {
  switch (stored.type) {
    case 'none':
      return nothingRequested;
    case 'virtual_key':
      return { ...nothingRequested, virtualKey: { id: stored.virtual_key_id, holder } };
    case 'provider': {
      const { provider, custom_host: customHost, secret_id: id, settings = {} } = stored;
      return whenAvailable(id === null ? {} : readSecret(id), ({ key: providerKey, ...others }: SecretMembers) => {
        const own = { settings, secrets: others, customHost };
        return { ...nothingRequested, provider, providerKey: providerKey ?? null, own };
      });
    }
  }
}

/** Every key that a batch stores is only sent to the origin of its target. */
function boundToOrigin(resolved: ResolvedTarget): ResolvedTarget {
  resolved.target.secretOrigin ??= resolved.target.baseUrl.origin;
  return resolved;
}

/** The model that a leaf sets in every body. It can name a virtual key. */
function readModel({ overrides }: Leaf): string | null {
  const raw = overrides.get('model');
  return raw === undefined ? null : (JSON.parse(raw) as string);
}

const secretsMax = 1_000;
/** A key must not stay in memory for long after its batch. */
const ttlMs = 300_000;

/**
 * Caches the decrypted secrets of running batches for a while, because a batch can have a million lines and one key.
 */
function createBatchSecretCache(db: Kysely<Database>, secrets: Secrets, holder: string) {
  const entries = new LRUCache<string, { workspaceId: string; members: Promise<SecretMembers> }>({
    max: secretsMax,
    ttl: ttlMs,
  });

  const fetch = async (workspaceId: string, id: string): Promise<SecretMembers> => {
    const members = await secrets.read(db, workspaceId, id);
    if (members) return members;
    throw new GatewayError(
      'invalid_request',
      'batch_credential_released',
      `The credential of this ${holder} was deleted because the ${holder} has ended.`,
    );
  };

  return {
    /** Concurrent requests for a secret share one query. */
    read(workspaceId: string, id: string): Promise<SecretMembers> {
      const cached = entries.get(id);
      if (cached?.workspaceId === workspaceId) return cached.members;
      const members = fetch(workspaceId, id);
      entries.set(id, { workspaceId, members });
      members.catch(() => entries.delete(id));
      return members;
    },
    forget: (id: string): void => void entries.delete(id),
  };
}

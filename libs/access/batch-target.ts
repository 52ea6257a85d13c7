import type { Kysely } from 'kysely';
import type { BatchPlace, BatchTarget, Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import type { Leaf } from '#libs/calls/plan/plan.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { createBatchPlans } from './batch-plan.ts';
import { secretIdsOf, storePlace } from './batch-place.ts';
import { createBatchSecretCache } from './batch-secret-cache.ts';
import { chooseCredential, type Credential } from './choose-credential.ts';
import type { PlanCache } from '#libs/credentials/plan-cache.ts';
import type { MappedSecrets } from './mapped-secrets.ts';
import { splitSecrets } from '#libs/credentials/config-secrets.ts';
import { hasOwnPlace, useLeaf } from './leaf-credentials.ts';
import type { LiveCredential } from '#libs/resources/stored-credential.ts';
import { atLeaf, parseConfigText } from '#libs/credentials/read-config.ts';
import { refuseUnstorable } from '#libs/credentials/refuse-unstorable.ts';
import { slugOfModel, type RequestCredentials } from './request-credentials.ts';
import { createRouting, withoutConfig, type FoundPlan, type TargetRequest } from './routing.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { withRefresh, type ResolvedTarget } from './target-of-credential.ts';
import { guardedPlan } from './guarded-plan.ts';

type Deps = {
  db: Kysely<Database>;
  secrets: Secrets;
  snapshot: Pick<
    AccessSnapshot,
    | 'findCredential'
    | 'findCredentialById'
    | 'assertLoaded'
    | 'findConfig'
    | 'findGuardrails'
    | 'storedGuardrails'
    | 'refresh'
    | 'absent'
    | 'assertFresh'
  >;
  clock: Clock;
  mappedSecrets: MappedSecrets;
  plans: PlanCache;
  checkDestination: (url: URL) => void;
  /** What error messages call the owner of the target. Default `batch`. */
  holder?: string;
  /** How many decrypted keys of running batches are cached. Default 1,000. */
  cachedSecretsMax?: number;
  /** How long a key is cached at most, because it must not outlive its batch in memory for long. Default 5 min. */
  cachedSecretsMs?: number;
};

/** The checked credentials and config of a create call. */
export type BatchChoice = {
  caller: Credential;
  config:
    | null
    | { type: 'stored'; id: string; version: number; secrets: Readonly<Record<string, Secret>> }
    | { type: 'inline'; document: Record<string, unknown>; secrets: Readonly<Record<string, Secret>> };
};

export type BatchTargets = {
  /**
   * Checks the credentials and the config of a create call, outside any transaction. Returns `none` if there are none:
   * then each line names its virtual key. Every target of a config is checked, so that mistakes are reported before any
   * line runs. Throws like `Routing.configOf` and `Routing.resolveLeaf`.
   */
  choose(request: Omit<TargetRequest, 'model'>): Promise<BatchChoice>;
  /**
   * Returns what the batch stores until it ends: the id and version of a stored config, or the whole of one that came
   * with the call. Keys and secret settings, of the caller and of the config, are stored encrypted, as secrets of this
   * batch.
   */
  store(unit: UnitOfWork, batch: { workspaceId: string; batchId: string }, choice: BatchChoice): Promise<BatchTarget>;
  /**
   * Returns the batch's config with the current guardrails of the workspace; without both, the plain plan. Throws
   * unavailable when the guardrails cannot be read, and `config_unreadable`.
   */
  planOf(workspaceId: string, target: BatchTarget): FoundPlan | Promise<FoundPlan>;
  /**
   * Returns where the calls of one target of the plan go. Checked again for each run of a line's plan, so that a
   * rotated key is used and a deleted or expired one is refused. A line's `@slug/model` takes precedence over the
   * batch's target. Throws GatewayError, which is the line's error: codes `virtual_key_deleted`, `virtual_key_expired`,
   * `virtual_key_not_found`, `missing_credentials`, and as `MappedSecrets`. Also throws `unavailable`, after which the line waits.
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

const noCredentials: RequestCredentials = {
  virtualKey: null,
  provider: null,
  providerKey: null,
  customHost: null,
  config: null,
};

export function createBatchTargets(deps: Deps): BatchTargets {
  const { secrets, snapshot, holder = 'batch' } = deps;
  const cache = createBatchSecretCache(deps);
  const routing = createRouting(deps);
  const plans = createBatchPlans({ ...deps, readSecret: (workspaceId, id) => cache.read(workspaceId, id) });

  const findById = (workspaceId: string, id: string): LiveCredential | null => {
    snapshot.assertLoaded(workspaceId);
    const key = snapshot.findCredentialById(id);
    return key?.workspaceId === workspaceId ? key : null;
  };

  const virtualKeyOf = (workspaceId: string, id: string): LiveCredential | Promise<LiveCredential> => {
    const key = findById(workspaceId, id);
    if (key) return key;
    if (snapshot.absent.has(id)) throw deletedVirtualKey(holder);
    // Created a moment ago by another process, or deleted.
    return snapshot.refresh().then(() => {
      const found = findById(workspaceId, id);
      if (found) return found;
      snapshot.absent.add(id);
      throw deletedVirtualKey(holder);
    });
  };

  /** What a batch has stored of its provider, in the form of a call's credentials. */
  const providerOf = async (
    workspaceId: string,
    { provider: id, custom_host: customHost, secret_id, settings = {} }: Extract<BatchPlace, { type: 'provider' }>,
  ): Promise<RequestCredentials> => {
    const { key: providerKey = null, ...secrets } = secret_id === null ? {} : await cache.read(workspaceId, secret_id);
    return { ...noCredentials, provider: id, providerKey, customHost, own: { settings, secrets } };
  };

  /** What a batch has stored, in the form of a call's credentials. */
  const credentialsOf = (workspaceId: string, place: BatchPlace): RequestCredentials | Promise<RequestCredentials> => {
    switch (place.type) {
      case 'none':
        return noCredentials;
      case 'virtual_key': {
        const bySlug = ({ slug }: LiveCredential): RequestCredentials => ({
          ...noCredentials,
          virtualKey: { slug, param: 'x-gateway-virtual-key' },
        });
        const key = virtualKeyOf(workspaceId, place.virtual_key_id);
        return key instanceof Promise ? key.then(bySlug) : bySlug(key);
      }
      case 'provider':
        return providerOf(workspaceId, place);
    }
  };

  return {
    async choose(request) {
      const found = await routing.configOf({ ...request, headers: null });
      const { workspaceId, credentials } = request;
      const sent = { ...credentials, config: null };
      const chooseCaller = () => withRefresh(snapshot, () => chooseCredential(deps, workspaceId, sent, null));
      if (found === null) return { caller: await chooseCaller(), config: null };
      // So that a missing guardrail is reported before any line runs.
      await withRefresh(snapshot, () => guardedPlan(snapshot, workspaceId, found.plan));
      const { leaves } = found.plan;
      for (const leaf of leaves) {
        await withRefresh(snapshot, () => {
          const use = useLeaf(sent, leaf, atLeaf(leaf, found.param));
          const named = slugOfModel(modelOf(leaf));
          return chooseCredential(deps, workspaceId, use.credentials, named?.slug ?? null, use.at);
        });
      }
      // The caller's own provider is not checked when no target uses it.
      const caller: Credential =
        leaves.every(hasOwnPlace) && sent.virtualKey === null && sent.providerKey === null
          ? { type: 'none' }
          : await chooseCaller();
      if (found.stored) return { caller, config: { type: 'stored', ...found.stored } };
      const value = credentials.config?.value ?? {};
      const document = typeof value === 'string' ? parseConfigText(value, found.param) : value;
      refuseUnstorable(document, found.param);
      return { caller, config: { type: 'inline', ...splitSecrets(document as Record<string, unknown>) } };
    },

    async store(unit, { workspaceId, batchId }, { caller: credential, config }) {
      const owner = { workspaceId, ownerId: batchId };
      const caller = await storePlace(secrets, unit, owner, credential);
      if (config === null) return caller;
      // Including those of a stored config, which may be changed or deleted while the batch uses its version.
      const hasSecret = Object.keys(config.secrets).length > 0;
      const secretId = hasSecret ? await secrets.store(unit, owner, config.secrets) : null;
      if (config.type === 'stored') {
        const pinned = { type: 'config' as const, config_id: config.id, config_version: config.version, caller };
        return secretId === null ? pinned : { ...pinned, secret_id: secretId };
      }
      return { type: 'inline_config', config: config.document, secret_id: secretId, caller };
    },

    planOf(workspaceId, target) {
      const guarded = (found: FoundPlan): FoundPlan | Promise<FoundPlan> =>
        withRefresh(snapshot, () => {
          const plan = guardedPlan(snapshot, workspaceId, found.plan);
          return plan === found.plan ? found : { ...found, plan };
        });
      return 'caller' in target ? plans.planOf(workspaceId, target).then(guarded) : guarded(withoutConfig);
    },

    resolveLeaf(workspaceId, target, leaf, model, isLeafsModel) {
      snapshot.assertFresh();
      // A virtual key of the target itself, or of the line's model, replaces the one that the batch was created with.
      const isElsewhere =
        leaf.credentials.virtualKey !== null || (slugOfModel(model) !== null && (isLeafsModel || !hasOwnPlace(leaf)));
      const place: BatchPlace = 'caller' in target ? target.caller : target;
      const credentials = isElsewhere ? noCredentials : credentialsOf(workspaceId, place);
      const toTarget = (own: RequestCredentials): ResolvedTarget | Promise<ResolvedTarget> =>
        routing.resolveLeaf({ workspaceId, credentials: own, leaf, param: 'config', model, isLeafsModel });
      const resolved = credentials instanceof Promise ? credentials.then(toTarget) : toTarget(credentials);
      return resolved instanceof Promise ? resolved.then(boundToOrigin) : boundToOrigin(resolved);
    },

    async release(unit, target) {
      const ids = 'caller' in target ? secretIdsOf(target.caller) : secretIdsOf(target);
      if ('caller' in target && typeof target.secret_id === 'string') ids.push(target.secret_id);
      for (const id of ids) {
        await secrets.remove(unit, id);
        cache.forget(id);
      }
    },
  };
}

/** Every key that a batch stores is only sent to the origin of its target. */
function boundToOrigin(resolved: ResolvedTarget): ResolvedTarget {
  resolved.target.secretOrigin ??= resolved.target.baseUrl.origin;
  return resolved;
}

/** The model that a leaf sets in every body. It may name a virtual key. */
function modelOf({ overrides }: Leaf): string | null {
  const raw = overrides.get('model');
  return raw === undefined ? null : (JSON.parse(raw) as string);
}

const deletedVirtualKey = (holder: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'virtual_key_deleted',
    `The virtual key that this ${holder} was created with has been deleted.`,
  );

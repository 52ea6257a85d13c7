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
import { splitSecrets } from './config-secrets.ts';
import { hasOwnPlace, useLeaf } from './leaf-credentials.ts';
import type { LiveVirtualKey } from './load-access.ts';
import { atLeaf, parseConfigText } from './read-config.ts';
import { refuseUnstorable } from './refuse-unstorable.ts';
import { slugOfModel, type RequestCredentials } from './request-credentials.ts';
import { createRouting, withoutConfig, type FoundPlan, type TargetRequest } from './routing.ts';
import type { Secrets } from './secrets.ts';
import { withSecondLook, type ResolvedTarget } from './target-of-credential.ts';
import { withWorkspaceGuardrails } from './workspace-guardrails.ts';

type Deps = {
  db: Kysely<Database>;
  secrets: Secrets;
  snapshot: Pick<
    AccessSnapshot,
    'findVirtualKey' | 'findVirtualKeyById' | 'findConfig' | 'findGuardrails' | 'refresh' | 'absent' | 'assertFresh'
  >;
  clock: Clock;
  checkDestination: (url: URL) => void;
  /** What the errors call the thing that lives long. Default `batch`. */
  holder?: string;
  /** Decrypted keys of running batches that are kept; more batches at a time read theirs again. Default 1,000. */
  cachedSecretsMax?: number;
  /** How long one is kept, at most; a key must not outlive its batch in memory for long. Default 5 min. */
  cachedSecretsMs?: number;
};

/** What a create call asks for, judged. */
export type BatchChoice = {
  caller: Credential;
  config:
    | null
    | { type: 'stored'; id: string; version: number; secrets: Readonly<Record<string, Secret>> }
    | { type: 'inline'; document: Record<string, unknown>; secrets: Readonly<Record<string, Secret>> };
};

export type BatchTargets = {
  /**
   * Judges the credentials and the config of a create call, outside of any transaction. `none` when it sends none: then
   * each line names its virtual key. Every target of a config is judged, so that no line is the first to find out.
   * Throws as `Routing.configOf` and `Routing.resolveLeaf`.
   */
  choose(request: Omit<TargetRequest, 'model'>): Promise<BatchChoice>;
  /**
   * What the batch keeps for its life: a stored config's id and version, the whole of one that came with the call. Keys
   * and secret settings, the caller's and the config's, are stored encrypted, as secrets of this batch.
   */
  store(unit: UnitOfWork, batch: { workspaceId: string; batchId: string }, choice: BatchChoice): Promise<BatchTarget>;
  /**
   * The batch's config with the guardrails that the workspace has now; without both the plain plan. Throws unavailable when
   * the guardrails cannot be read, and `config_unreadable`.
   */
  planOf(workspaceId: string, target: BatchTarget): FoundPlan | Promise<FoundPlan>;
  /**
   * Where the calls of one target of the plan go, judged again for each pass of a line: a rotated key is used, a deleted or
   * expired one is refused. A line's `@slug/model` wins over the batch's target. Throws GatewayError, which is the line's
   * error: codes `virtual_key_deleted`, `virtual_key_expired`, `virtual_key_not_found`, `missing_credentials`;
   * `unavailable` passes.
   */
  resolveLeaf(
    workspaceId: string,
    target: BatchTarget,
    leaf: Leaf,
    model: string | null,
    isLeafsModel: boolean,
  ): ResolvedTarget | Promise<ResolvedTarget>;
  /** Wipes the batch's own secrets, if it has any; part of the transaction that ends the batch. */
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

  const findById = (workspaceId: string, id: string): LiveVirtualKey | null => {
    const key = snapshot.findVirtualKeyById(id);
    return key?.workspaceId === workspaceId ? key : null;
  };

  const virtualKeyOf = (workspaceId: string, id: string): LiveVirtualKey | Promise<LiveVirtualKey> => {
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

  /** What a batch keeps of its provider, in the terms of a call's credentials. */
  const providerOf = async (
    workspaceId: string,
    { provider: id, custom_host: customHost, secret_id, settings = {} }: Extract<BatchPlace, { type: 'provider' }>,
  ): Promise<RequestCredentials> => {
    const { key: providerKey = null, ...secrets } = secret_id === null ? {} : await cache.read(workspaceId, secret_id);
    return { ...noCredentials, provider: id, providerKey, customHost, own: { settings, secrets } };
  };

  /** The place of a batch in the terms of a call's credentials. */
  const credentialsOf = (workspaceId: string, place: BatchPlace): RequestCredentials | Promise<RequestCredentials> => {
    switch (place.type) {
      case 'none':
        return noCredentials;
      case 'virtual_key': {
        const bySlug = ({ slug }: LiveVirtualKey): RequestCredentials => ({
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
      const chooseCaller = () => withSecondLook(snapshot, () => chooseCredential(deps, workspaceId, sent, null));
      if (found === null) return { caller: await chooseCaller(), config: null };
      const { leaves } = found.plan;
      for (const leaf of leaves) {
        await withSecondLook(snapshot, () => {
          const use = useLeaf(sent, leaf, atLeaf(leaf, found.param));
          const named = slugOfModel(modelOf(leaf));
          return chooseCredential(deps, workspaceId, use.credentials, named?.slug ?? null, use.at);
        });
      }
      // What nobody uses need not be whole.
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
      // Also those of a stored config: it may be changed or deleted while the batch goes on with its version.
      const hasSecret = Object.keys(config.secrets).length > 0;
      const secretId = hasSecret ? await secrets.store(unit, owner, config.secrets) : null;
      if (config.type === 'stored') {
        const pinned = { type: 'config' as const, config_id: config.id, config_version: config.version, caller };
        return secretId === null ? pinned : { ...pinned, secret_id: secretId };
      }
      return { type: 'inline_config', config: config.document, secret_id: secretId, caller };
    },

    planOf(workspaceId, target) {
      const guarded = (found: FoundPlan): FoundPlan => {
        const plan = withWorkspaceGuardrails(snapshot, workspaceId, found.plan);
        return plan === found.plan ? found : { ...found, plan };
      };
      return 'caller' in target ? plans.planOf(workspaceId, target).then(guarded) : guarded(withoutConfig);
    },

    resolveLeaf(workspaceId, target, leaf, model, isLeafsModel) {
      snapshot.assertFresh();
      // What the batch brought does not count beside a virtual key of the target's own, or of the line's model.
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

/** Whatever key it is, it was kept for this batch: it goes where the target says and nowhere else. */
function boundToOrigin(resolved: ResolvedTarget): ResolvedTarget {
  resolved.target.secretOrigin ??= resolved.target.baseUrl.origin;
  return resolved;
}

/** The model that a leaf puts into every body, which may name a virtual key. */
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

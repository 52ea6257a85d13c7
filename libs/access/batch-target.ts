import type { Kysely } from 'kysely';
import type { BatchPlace, BatchTarget, Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { Leaf } from '#libs/calls/plan/plan.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { callerCredentialId } from './caller-credential-id.ts';
import { createBatchPlans } from './batch-plan.ts';
import { secretIdsOf, storePlace } from './batch-place.ts';
import { createBatchSecretCache } from './batch-secret-cache.ts';
import { assertUsable, chooseCredential, missingCredentials, type Credential } from './choose-credential.ts';
import { noDefaults } from './config-override.ts';
import { splitSecrets } from './config-secrets.ts';
import { hasOwnPlace, useLeaf } from './leaf-credentials.ts';
import type { LiveVirtualKey } from './load-access.ts';
import { atLeaf, parseConfigText } from './read-config.ts';
import { refuseUnstorable } from './refuse-unstorable.ts';
import { slugOfModel, type RequestCredentials } from './request-credentials.ts';
import { createResolveTarget, type TargetRequest } from './resolve-target.ts';
import { bare, createRouting, type FoundPlan } from './routing.ts';
import type { Secrets } from './secrets.ts';
import { targetOfVirtualKey, withSecondLook, type ResolvedTarget } from './target-of-credential.ts';
import { unknownProvider } from './unknown-provider.ts';
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
   * Throws as `resolveTarget`.
   */
  choose(request: Omit<TargetRequest, 'model'>): Promise<BatchChoice>;
  /**
   * What the batch keeps for its life: a stored config's id and version, the whole of one that came with the call. Keys
   * and secret settings, the caller's and the config's, are stored encrypted, as secrets of this batch.
   */
  store(unit: UnitOfWork, batch: { workspaceId: string; batchId: string }, choice: BatchChoice): Promise<BatchTarget>;
  /**
   * Where an attempt of a line goes, judged again for each: a rotated key is used, a deleted or expired one is refused.
   * A line's `@slug/model` wins over the batch's target. Throws GatewayError, which is the line's error: codes
   * `virtual_key_deleted`, `virtual_key_expired`, `virtual_key_not_found`, `missing_credentials`; `unavailable` passes.
   * Of a batch with a config: where its calls go that have no target of their own.
   */
  resolve(workspaceId: string, target: BatchTarget, model: string | null): ResolvedTarget | Promise<ResolvedTarget>;
  /** Whether lines go by a plan, because of a config or of the workspace's guardrails; otherwise `resolve` says all. */
  isPlanned(workspaceId: string, target: BatchTarget): boolean;
  /** The batch's config with the guardrails that the workspace has now. Throws unavailable when they cannot be read. */
  planOf(workspaceId: string, target: BatchTarget): Promise<FoundPlan>;
  /** Where the calls of one of its targets go; as `resolve`. */
  resolveLeaf(
    workspaceId: string,
    target: BatchTarget,
    leaf: Leaf,
    model: string | null,
    isLeafsModel: boolean,
  ): Promise<ResolvedTarget>;
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
  const { secrets, snapshot, clock, holder = 'batch' } = deps;
  const cache = createBatchSecretCache(deps);
  const resolveTarget = createResolveTarget(deps);
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

  const resolveProvider = async (
    workspaceId: string,
    { provider: id, custom_host, secret_id, settings = {} }: Extract<BatchPlace, { type: 'provider' }>,
    model: string | null,
  ): Promise<ResolvedTarget> => {
    const provider = findProvider(id);
    const baseUrl = custom_host === null ? provider?.baseUrlOf(settings) : new URL(custom_host);
    if (!provider || !baseUrl) throw unknownProvider(id, 'x-gateway-provider');
    const { key: apiKey = null, ...others } = secret_id === null ? {} : await cache.read(workspaceId, secret_id);
    const own = { provider: provider.id, baseUrl, apiKey, settings, secrets: others };
    return {
      target: {
        ...own,
        secretOrigin: baseUrl.origin,
        label: provider.id,
        credentialId: callerCredentialId(workspaceId, own),
        workspaceId,
      },
      model,
    };
  };

  /** The place of a batch in the terms of a call's credentials. */
  const credentialsOf = async (workspaceId: string, place: BatchPlace): Promise<RequestCredentials> => {
    switch (place.type) {
      case 'none':
        return noCredentials;
      case 'virtual_key': {
        const { slug } = await virtualKeyOf(workspaceId, place.virtual_key_id);
        return { ...noCredentials, virtualKey: { slug, param: 'x-gateway-virtual-key' } };
      }
      case 'provider': {
        const { target } = await resolveProvider(workspaceId, place, null);
        const own = { settings: target.settings, secrets: target.secrets };
        const { provider, custom_host: customHost } = place;
        return { ...noCredentials, provider, providerKey: target.apiKey, customHost, own };
      }
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

    resolve(workspaceId, target, model) {
      snapshot.assertFresh();
      if (slugOfModel(model)) {
        return resolveTarget({ workspaceId, credentials: noCredentials, model, defaults: noDefaults });
      }
      const place = 'caller' in target ? target.caller : target;
      switch (place.type) {
        case 'none':
          throw missingCredentials();
        case 'virtual_key': {
          const toTarget = (key: LiveVirtualKey): ResolvedTarget => {
            assertUsable(key, clock, null);
            return targetOfVirtualKey(key, model);
          };
          const key = virtualKeyOf(workspaceId, place.virtual_key_id);
          return key instanceof Promise ? key.then(toTarget) : toTarget(key);
        }
        case 'provider':
          return resolveProvider(workspaceId, place, model);
      }
    },

    isPlanned: (workspaceId, target) => 'caller' in target || routing.isGuarded(workspaceId),

    async planOf(workspaceId, target) {
      const found = 'caller' in target ? await plans.planOf(workspaceId, target) : bare;
      return { ...found, plan: withWorkspaceGuardrails(snapshot, workspaceId, found.plan) };
    },

    async resolveLeaf(workspaceId, target, leaf, model, isLeafsModel) {
      snapshot.assertFresh();
      const { virtualKey } = leaf.credentials;
      const place: BatchPlace = 'caller' in target ? target.caller : target;
      const credentials = virtualKey === null ? await credentialsOf(workspaceId, place) : noCredentials;
      const resolved = await routing.resolveLeaf({
        workspaceId,
        credentials,
        leaf,
        param: 'config',
        model,
        isLeafsModel,
      });
      // Whatever key it is, it was kept for this batch: it goes where the target says and nowhere else.
      resolved.target.secretOrigin ??= resolved.target.baseUrl.origin;
      return resolved;
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

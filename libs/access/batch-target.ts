import type { Kysely } from 'kysely';
import type { BatchTarget, Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import {
  assertUsable,
  chooseCredential,
  missingCredentials,
  unknownProvider,
  type Credential,
} from './choose-credential.ts';
import { slugOfModel } from './request-credentials.ts';
import {
  createResolveTarget,
  targetOfVirtualKey,
  withSecondLook,
  type ResolvedTarget,
  type TargetRequest,
} from './resolve-target.ts';
import type { Secrets } from './secrets.ts';

type Deps = {
  db: Kysely<Database>;
  secrets: Secrets;
  snapshot: Pick<AccessSnapshot, 'findVirtualKey' | 'findVirtualKeyById' | 'refresh' | 'absent' | 'assertFresh'>;
  clock: Clock;
  /** What the errors call the thing that lives long. Default `batch`. */
  holder?: string;
  /** Decrypted keys of running batches that are kept; more batches at a time read theirs again. Default 1,000. */
  cachedSecretsMax?: number;
  /** How long one is kept, at most; a key must not outlive its batch in memory for long. Default 5 min. */
  cachedSecretsMs?: number;
};

export type BatchTargets = {
  /**
   * Judges the credentials of a create call, outside of any transaction. `none` when it sends none: then each line names
   * its virtual key. Throws as `resolveTarget`.
   */
  choose(request: Omit<TargetRequest, 'model'>): Credential | Promise<Credential>;
  /** What the batch keeps for its life. A caller's own key is stored, encrypted, as a secret of this batch. */
  store(
    unit: UnitOfWork,
    batch: { workspaceId: string; batchId: string },
    credential: Credential,
  ): Promise<BatchTarget>;
  /**
   * Where an attempt of a line goes, judged anew for each: a rotated key is used, a deleted or expired one is refused.
   * A line's `@slug/model` wins over the batch's target. Throws GatewayError, which is the line's error: codes
   * `virtual_key_deleted`, `virtual_key_expired`, `virtual_key_not_found`, `missing_credentials`; `unavailable` passes.
   */
  resolve(workspaceId: string, target: BatchTarget, model: string | null): ResolvedTarget | Promise<ResolvedTarget>;
  /** Wipes the batch's own secret, if it has one; part of the transaction that ends the batch. */
  release(unit: Pick<UnitOfWork, 'tx'>, target: BatchTarget): Promise<void>;
};

export function createBatchTargets(deps: Deps): BatchTargets {
  const { db, secrets, snapshot, clock, holder = 'batch' } = deps;
  const cache = createSecretCache(deps);
  const resolveTarget = createResolveTarget(deps);
  const noCredentials = { virtualKey: null, provider: null, providerKey: null, customHost: null, config: null };

  const resolveVirtualKey = (
    workspaceId: string,
    id: string,
    model: string | null,
  ): ResolvedTarget | Promise<ResolvedTarget> => {
    const find = (): ResolvedTarget | null => {
      const key = snapshot.findVirtualKeyById(id);
      if (!key || key.workspaceId !== workspaceId) return null;
      assertUsable(key, clock, null);
      return targetOfVirtualKey(key, model);
    };
    const found = find();
    if (found) return found;
    if (snapshot.absent.has(id)) throw deletedVirtualKey(holder);
    // Created a moment ago by another process, or deleted.
    return snapshot.refresh().then(() => {
      const foundNow = find();
      if (foundNow) return foundNow;
      snapshot.absent.add(id);
      throw deletedVirtualKey(holder);
    });
  };

  const resolveProvider = async (
    workspaceId: string,
    { provider: id, custom_host, secret_id }: Extract<BatchTarget, { type: 'provider' }>,
    model: string | null,
  ): Promise<ResolvedTarget> => {
    const provider = findProvider(id);
    const baseUrl = custom_host === null ? provider?.baseUrlOf({}) : new URL(custom_host);
    if (!provider || !baseUrl) throw unknownProvider(id, 'x-gateway-provider');
    const apiKey = secret_id === null ? null : await cache.read(workspaceId, secret_id);
    return {
      target: {
        provider: provider.id,
        baseUrl,
        apiKey,
        settings: {},
        secrets: {},
        secretOrigin: baseUrl.origin,
        label: provider.id,
      },
      model,
    };
  };

  return {
    choose: ({ workspaceId, credentials, defaults }) =>
      withSecondLook(snapshot, () => chooseCredential(deps, workspaceId, credentials, defaults, null)),

    async store(unit, { workspaceId, batchId }, credential) {
      switch (credential.type) {
        case 'none':
          return { type: 'none' };
        case 'virtual_key':
          return { type: 'virtual_key', virtual_key_id: credential.key.id };
        case 'provider': {
          const { provider, customHost, apiKey } = credential;
          const owner = { workspaceId, ownerId: batchId };
          const secretId = apiKey && (await secrets.store(unit, owner, { key: apiKey }));
          return { type: 'provider', provider, custom_host: customHost, secret_id: secretId };
        }
      }
    },

    resolve(workspaceId, target, model) {
      snapshot.assertFresh();
      if (slugOfModel(model)) {
        return resolveTarget({ workspaceId, credentials: noCredentials, model, defaults: { configId: null } });
      }
      switch (target.type) {
        case 'none':
          throw missingCredentials();
        case 'virtual_key':
          return resolveVirtualKey(workspaceId, target.virtual_key_id, model);
        case 'provider':
          return resolveProvider(workspaceId, target, model);
      }
    },

    async release(unit, target) {
      if (target.type !== 'provider' || target.secret_id === null) return;
      await secrets.remove(unit, target.secret_id);
      cache.forget(target.secret_id);
    },
  };

  function createSecretCache({ cachedSecretsMax = 1_000, cachedSecretsMs = 300_000 }: Deps) {
    const entries = new Map<string, { workspaceId: string; key: Promise<Secret>; untilMs: number }>();
    const fetch = async (workspaceId: string, id: string): Promise<Secret> => {
      const key = (await secrets.read(db, workspaceId, id))?.['key'];
      if (key) return key;
      throw new GatewayError(
        'invalid_request',
        'batch_credential_released',
        `The credential of this ${holder} was wiped, because the ${holder} has ended.`,
      );
    };
    return {
      /** One query for all the lines that ask at the same time. */
      read(workspaceId: string, id: string): Promise<Secret> {
        const cached = entries.get(id);
        if (cached?.workspaceId === workspaceId && cached.untilMs > clock.now()) return cached.key;
        entries.delete(id);
        if (entries.size >= cachedSecretsMax) entries.delete(entries.keys().next().value ?? '');
        const key = fetch(workspaceId, id);
        entries.set(id, { workspaceId, key, untilMs: clock.now() + cachedSecretsMs });
        key.catch(() => entries.delete(id));
        return key;
      },
      forget: (id: string): void => void entries.delete(id),
    };
  }
}

const deletedVirtualKey = (holder: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'virtual_key_deleted',
    `The virtual key that this ${holder} was created with has been deleted.`,
  );

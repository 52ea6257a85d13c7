import type { Kysely } from 'kysely';
import type { ApiKeyObject, CreateApiKeyRequest, Scope } from '#libs/contracts/api-keys.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { toUnixSeconds } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { announceAccessChange } from './access-change.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { apiKeyModel, type ApiKeyEvent, type ApiKeyRow } from './api-key-model.ts';
import { createGatewayKey, digestOf } from './gateway-key.ts';
import { refuseMoreRights, refuseRevokeOfStronger, type KeyRights } from './key-rights.ts';
import { listPage, type PageRequest } from './list-page.ts';
import { findConfig } from './configs.ts';
import { noSuchConfig } from './no-such-config.ts';
import { refusePastExpiry } from './refuse-past-expiry.ts';

type Deps = { db: Kysely<Database>; eventLog: EventLog; snapshot: Pick<AccessSnapshot, 'catchUp'> };

export type ApiKeys = {
  /**
   * A new key with at most the rights of `maker`. The key itself is in this answer and nowhere else: a repeat of the
   * call is a `conflict`, because nothing that was kept could answer it. Throws forbidden for more rights than the maker's.
   */
  create(
    call: CallIdentity,
    maker: KeyRights,
    metadata: EventMetadata,
    request: CreateApiKeyRequest,
  ): Promise<{ record: ApiKeyObject; key: Secret }>;
  /**
   * Ends a key; every process refuses it within a second. Revoking twice is as good as once.
   * Throws not_found, and forbidden for a key with more rights than `revoker`.
   */
  revoke(workspaceId: string, revoker: KeyRights, id: string, metadata: EventMetadata): Promise<void>;
  /** Throws not_found, also for another workspace's. */
  get(workspaceId: string, id: string): Promise<ApiKeyRow>;
  /** Up to `limit + 1`, newest first, revoked ones too. Throws invalid_request for a cursor that is none. */
  list(page: PageRequest): Promise<ApiKeyRow[]>;
};

export function createApiKeys({ db, eventLog, snapshot }: Deps): ApiKeys {
  const get = async (workspaceId: string, id: string): Promise<ApiKeyRow> => {
    const query = db.selectFrom('api_key').selectAll().where('id', '=', id).where('workspace_id', '=', workspaceId);
    const row = await query.executeTakeFirst();
    if (!row) throw noSuchKey(id);
    return row;
  };

  return {
    get,
    list: (page) => listPage<ApiKeyRow>(db, 'api_key', page),

    async create(call, maker, metadata, request) {
      const configId = request.defaults?.config_id;
      const config = configId === undefined ? null : await findConfig(db, call.workspaceId, configId);
      if (config === undefined) throw noSuchConfig(configId ?? '', 'defaults.config_id');
      refuseMoreRights(maker, request, config?.id ?? null);
      const key = createGatewayKey();
      const id = newId('key_');
      const command = { workspaceId: call.workspaceId, streams: [id], metadata };
      const result = await transactOnce<ApiKeyObject>(eventLog, call, command, async (unit) => {
        refusePastExpiry(request.expires_at, unit.now);
        const row = await unit.append(apiKeyModel, id, [toCreated(request, key, config?.id ?? null)]);
        await announceAccessChange(unit);
        return { status: 200, body: toApiKeyObject(row, unit.now.getTime()) };
      });
      if (result.replayed) throw keyShownBefore(result.body.id);
      await snapshot.catchUp();
      return { record: result.body, key };
    },

    async revoke(workspaceId, revoker, id, metadata) {
      refuseRevokeOfStronger(revoker, await get(workspaceId, id));
      await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
        const row = await unit.load(apiKeyModel, id);
        if (!row || row.revoked_at) return;
        await unit.append(apiKeyModel, id, [{ type: 'api_key.revoked', data: {} }]);
        await announceAccessChange(unit);
      });
      await snapshot.catchUp();
    },
  };
}

/** A default config is kept by its id: its slug may name another one some day. */
function toCreated(request: CreateApiKeyRequest, key: Secret, configId: string | null): ApiKeyEvent {
  const { metadata, allow_config_override: allowsOverride } = request.defaults ?? {};
  return {
    type: 'api_key.created',
    data: {
      name: request.name,
      digest: digestOf(key.reveal()),
      last_four: key.lastFour(),
      scopes: request.scopes ? [...new Set(request.scopes)] : null,
      defaults: {
        ...(configId === null ? {} : { config_id: configId }),
        ...(metadata ? { metadata } : {}),
        ...(allowsOverride === false ? { allow_config_override: false } : {}),
      },
      expires_at: request.expires_at?.toISOString() ?? null,
    },
  };
}

const noSuchKey = (id: string): GatewayError =>
  new GatewayError('not_found', 'api_key_not_found', `There is no API key '${id.slice(0, 100)}'.`, { param: 'id' });

const keyShownBefore = (id: string): GatewayError =>
  new GatewayError(
    'conflict',
    'idempotency_replay_unavailable',
    `This request was executed before and created the key ${id}, whose value was returned once and is not stored. If it was ` +
      'not received, delete that key and create another one with a new Idempotency-Key.',
  );

/** The public form of a key: never the key, never its digest. */
export function toApiKeyObject(row: ApiKeyRow, nowMs: number): ApiKeyObject {
  const isExpired = row.expires_at !== null && row.expires_at.getTime() <= nowMs;
  return {
    id: row.id,
    object: 'api-key',
    name: row.name,
    scopes: row.scopes as Scope[] | null,
    last_four: row.last_four,
    status: row.revoked_at ? 'revoked' : isExpired ? 'expired' : 'active',
    defaults: {
      config_id: row.defaults.config_id ?? null,
      metadata: row.defaults.metadata ?? null,
      allow_config_override: row.defaults.allow_config_override ?? true,
    },
    created_at: toUnixSeconds(row.created_at),
    expires_at: toUnixSeconds(row.expires_at),
  };
}

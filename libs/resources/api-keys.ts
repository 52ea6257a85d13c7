import { sql } from 'kysely';
import { createGatewayKey, digestOf } from '#libs/access/gateway-key.ts';
import { refuseMoreRights, refuseRevokeOfStronger } from '#libs/access/key-rights.ts';
import { noSuchConfig } from '#libs/access/no-such-config.ts';
import { refusePastExpiry } from '#libs/access/refuse-past-expiry.ts';
import { ApiKeyObject, apiKeyFields, type ApiKeyType, type Scope } from '#libs/contracts/api-keys.ts';
import type { ApiKeyDefaults } from '#libs/database/schema.ts';
import type { Caller, Principal } from '#libs/http/caller.ts';
import { toUnixSeconds } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { defineResource, type CheckContext } from './define-resource.ts';
import { resourceModel } from './resource-model.ts';

/** Enough to recognise a key and to tell it apart, not to use it. */
export type ApiKeyData = {
  name: string;
  /** SHA-256 of the key, hex. */
  digest: string;
  last_four: string;
  /** `<area>.<read|write>`; null for all, also those of later versions. */
  scopes: string[] | null;
  defaults: ApiKeyDefaults;
  /** ISO 8601 with milliseconds, null for never. */
  expires_at: string | null;
  /** Whose key it is. Absent: a service's of the workspace, as all keys were before there were others. */
  type?: ApiKeyType;
  /** Of a key of a user. */
  user_id?: string;
};

/** Requests of a key that were refused for one reason within a minute (refusal-log.ts); times in ISO 8601. */
export type RequestRefused = {
  method: string;
  route: string;
  code: string;
  message: string;
  count: number;
  addresses: string[];
  first_at: string;
  last_at: string;
};

export type LiveApiKey = {
  /** One object for all requests of the key. */
  readonly caller: Caller;
  /** Infinity for never. */
  readonly expiresAtMs: number;
};

/**
 * What clients of the gateway send. A key has at most the rights of the one that makes it, is shown once and never
 * changed; deleting revokes it, and its record stays.
 */
export const apiKeyKind = defineResource<typeof apiKeyFields, ApiKeyData, LiveApiKey>({
  noun: 'api_key',
  idPrefix: 'key_',
  area: 'api_keys',
  path: '/v1/api-keys',
  names: { one: 'API key', many: 'API keys', tag: 'API keys' },
  fields: apiKeyFields,
  hasUpdate: false,
  removal: { verb: 'revoked', isShown: true },
  lookup: (data) => data.digest,

  async check({ name = '', scopes, expires_at: expiresAt, defaults, type }, context) {
    const request = { scopes, expires_at: expiresAt, defaults, type };
    const configId = await defaultConfig(defaults?.config_id, context);
    refuseMoreRights(context.caller, request, configId);
    refusePastExpiry(expiresAt, context.unit.now);
    // A key that is made for another workspace says so, as one does whose type was given.
    const isForeign = context.workspaceId !== context.caller.workspaceId;
    const keyType = type ?? (isForeign ? 'workspace-service' : undefined);
    const key = createGatewayKey();
    return {
      data: {
        name,
        digest: digestOf(key.reveal()),
        last_four: key.lastFour(),
        scopes: scopes ? [...new Set(scopes)] : null,
        defaults: {
          // By its id: its slug may name another one some day.
          ...(configId === null ? {} : { config_id: configId }),
          ...(defaults?.metadata ? { metadata: defaults.metadata } : {}),
          ...(defaults?.allow_config_override === false ? { allow_config_override: false } : {}),
        },
        expires_at: expiresAt?.toISOString() ?? null,
        ...(keyType === undefined ? {} : { type: keyType }),
      },
      shownOnce: { key: key.reveal() },
    };
  },

  refuseReplay(record) {
    throw new GatewayError(
      'conflict',
      'idempotency_replay_unavailable',
      `This request was executed before and created the key ${(record as { id: string }).id}, whose value was returned once ` +
        'and is not stored. If it was not received, delete that key and create another one with a new Idempotency-Key.',
    );
  },

  checkRemoval: ({ id, data }, caller) => refuseRevokeOfStronger(caller, { id, ...data }),

  events: {
    rotated: (data, { data: fingerprint }) => ({ ...data, ...(fingerprint as Partial<ApiKeyData>) }),
    request_refused: (data) => data,
  },

  view: ({ id, workspace_id, data, created_at, deleted_at }, nowMs) => ({
    id,
    object: 'api-key',
    name: data.name,
    ...(data.type === undefined ? {} : { type: data.type, workspace_id }),
    scopes: data.scopes as Scope[] | null,
    last_four: data.last_four,
    status: deleted_at ? 'revoked' : expiryMs(data) <= nowMs ? 'expired' : 'active',
    defaults: {
      config_id: data.defaults.config_id ?? null,
      metadata: data.defaults.metadata ?? null,
      allow_config_override: data.defaults.allow_config_override ?? true,
    },
    created_at: toUnixSeconds(created_at),
    expires_at: data.expires_at === null ? null : toUnixSeconds(new Date(data.expires_at)),
  }),
  viewSchema: ApiKeyObject,

  cached: {
    leavesOutExpired: true,
    toEntry({ id, workspace_id: workspaceId, data }) {
      const { scopes, defaults } = data;
      const expiresAtMs = expiryMs(data);
      const caller = Object.freeze<Caller>({
        workspaceId,
        keyId: id,
        principal: Object.freeze(principalOf(id, data)),
        scopes: scopes === null ? 'all' : new Set(scopes),
        defaults: Object.freeze({
          configId: defaults.config_id ?? null,
          allowsConfigOverride: defaults.allow_config_override ?? true,
          metadata: defaults.metadata ?? null,
        }),
        expiresAtMs,
      });
      return { caller, expiresAtMs };
    },
  },
});

/** For the commands that make keys or record what they did, beside the routes. */
export const apiKeyModel = resourceModel([apiKeyKind]);

function principalOf(id: string, { type, user_id: userId }: ApiKeyData): Principal {
  if (type === 'workspace-user' && userId !== undefined) return { type: 'user', id: userId, role: null };
  return { type: type === 'organisation-service' ? 'organisation_key' : 'service_key', id, role: null };
}

const expiryMs = ({ expires_at: expiresAt }: ApiKeyData): number =>
  expiresAt === null ? Number.POSITIVE_INFINITY : Date.parse(expiresAt);

/** A default config must exist, so that the key does not refuse every request later. Returns its id. */
async function defaultConfig(
  name: string | undefined,
  { unit, workspaceId }: CheckContext<ApiKeyData>,
): Promise<string | null> {
  if (name === undefined) return null;
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'config' and workspace_id = ${workspaceId} and deleted_at is null
      and (slug = ${name} or id = ${name})`.execute(unit.tx);
  if (rows[0]) return rows[0].id;
  throw noSuchConfig(name, 'defaults.config_id');
}

import { z } from 'zod';
import { ApiKeyObject, ApiKeyPath, apiKeyFields, apiKeyUpdateFields } from '#libs/contracts/people/api-keys.ts';
import { allowedNetworks } from '#libs/http/allowed-networks.ts';
import { organisationId, type Caller, type Principal } from '#libs/http/caller.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { LiveApiKey } from '#libs/identity/authenticate.ts';
import { refuseStronger } from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import { expiryMs, isMadeBy, type ApiKeyData } from './api-key-data.ts';
import { keyTransitionEnd, rotateRoute } from './api-key-rotation.ts';
import { checkApiKey } from './check-api-key.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import type { RouteKit } from '#libs/records/kit.ts';
import { exhaustedRecords, rulesOfRow, shownLimits } from '#libs/resources/limits/own-limits.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import type { CallVerdict } from '#libs/request-log/columns.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { reportLeakedKeyRoute } from './report-leaked-key.ts';
import { keyErrors } from '#libs/resources/kind-texts.ts';

/**
 * Requests of a key that were refused for the same reason within a minute (libs/people/facts/fact-log.ts). `message` is absent
 * if it can quote the request. Times in ISO 8601.
 */
export type RequestRefused = {
  method: string;
  route: string;
  status: number;
  code: string;
  message?: string;
  count: number;
  addresses: string[];
  first_at: string;
  last_at: string;
};

/**
 * Reads of contents by a key within a minute. `ids`: those of the log records, files, batches or exports; the count of further
 * ones is `reads_of_others`.
 */
export type ContentsRead = {
  kind: 'recorded_bodies' | 'file' | 'batch_results' | 'log_export' | 'traffic_replay';
  count: number;
  ids: string[];
  reads_of_others: number;
  addresses: string[];
  first_at: string;
  last_at: string;
};

/** Live calls of a key that did not pass a guardrail within a minute. `status`: that of their answers. */
export type GuardrailFailed = CallVerdict & {
  status: number;
  count: number;
  addresses: string[];
  first_at: string;
  last_at: string;
};

/**
 * The keys that clients send to the gateway. A key has at most the rights of the key that creates it, and its value is shown
 * once. Deleting a key revokes it.
 */
export const apiKeyKind = defineKind<typeof apiKeyFields, ApiKeyData, LiveApiKey>({
  noun: 'api_key',
  idPrefix: 'key_',
  area: 'api_keys',
  texts: {
    create: {
      description: 'The value is only in this answer. `scopes` can only include scopes that the calling key has.',
      example: { name: 'search service', scopes: ['chat.write', 'batches.write', 'batches.read'] },
      errors: { ...keyErrors, user_not_found: '`user_id` is not a member of this workspace' },
    },
    update: {
      description: 'The value stays the same. Every process applies the change within about a second.',
      example: { name: 'search service', rate_limits: [{ type: 'requests', unit: 'rpm', value: 600 }] },
      errors: keyErrors,
    },
    delete: { description: 'Every process rejects the key within a second. Its log records are kept.' },
  },
  path: '/v1/api-keys',
  names: {
    one: 'API key',
    many: 'API keys',
    command: 'keys',
    tag: 'API keys',
    about: 'Keys that clients send, with their scopes and limits.',
  },
  fields: apiKeyFields,
  changes: { immutable: ['type', 'organisation_id', 'user_id'], fields: apiKeyUpdateFields },
  removal: { verb: 'revoked', check: ({ id, data }, caller) => refuseStronger(caller, { id, ...data }, 'revoke') },
  filters: {
    created_by: {
      schema: z
        .string()
        .min(1)
        .max(200)
        .describe(
          'The ID of a user or key. Returns the keys that it created or last rotated, directly or through one of these keys.',
        ),
      where: isMadeBy,
    },
  },
  history: {
    lookup: (data) => data.digest,
    events: {
      rotated: (data, { data: fingerprint }) => ({ ...data, ...(fingerprint as Partial<ApiKeyData>) }),
      rotation_due: (data, { recordedAt }) => ({ ...data, rotation_due_at: recordedAt.toISOString() }),
      request_refused: (data) => data,
      contents_read: (data) => data,
      guardrail_failed: (data) => data,
    },
  },

  check: checkApiKey,

  creation: {
    limit: ({ recordLimits }) => ({ max: recordLimits?.apiKeysMax ?? Infinity, variable: 'SLUICE_API_KEYS_MAX' }),
    shownOnce:
      'whose value was returned once and is not stored. If it was not received, delete that key and create another one ' +
      'with a new Idempotency-Key.',
  },

  view: ({ workspace_id, data, created_at }, nowMs) => ({
    key: `********${data.last_four}`,
    name: data.name,
    description: data.description ?? null,
    type: data.type ?? 'workspace-service',
    organisation_id: organisationId,
    workspace_id,
    user_id: data.user_id ?? null,
    creation_mode: data.creation_mode ?? 'api',
    scopes: data.scopes,
    last_four: data.last_four,
    status: expiryMs(data) <= nowMs ? 'expired' : 'active',
    defaults: {
      config_id: data.defaults.config_id ?? null,
      metadata: data.defaults.metadata ?? null,
      locked_metadata: data.defaults.locked_metadata ?? null,
      allow_config_override: data.defaults.allow_config_override ?? true,
      record_bodies: data.defaults.record_bodies ?? null,
    },
    usage_limits: shownLimits(data.usage_limits, created_at, nowMs),
    rate_limits: data.rate_limits ?? null,
    usage_reset_at: data.usage_reset_at ?? null,
    alert_emails: data.alert_emails ?? null,
    rotation_policy: data.rotation_policy ?? null,
    allowed_networks: data.allowed_networks ?? null,
    rotation_due_at: data.rotation_due_at ?? null,
    key_transition_expires_at: keyTransitionEnd(data, nowMs),
    expires_at: data.expires_at,
  }),
  viewSchema: ApiKeyObject,

  async related(rows, { db, clock }) {
    const exhausted = await exhaustedRecords(db, rows.flatMap(rulesOf), clock.now());
    return ({ id, data }) => (exhausted.has(id) && expiryMs(data) > clock.now() ? { status: 'exhausted' } : {});
  },

  cached: {
    limits: rulesOf,
    alwaysLoaded: true,
    leavesOutExpired: true,
    toEntry({ id, workspace_id: workspaceId, data }) {
      const { scopes, defaults } = data;
      const expiresAtMs = expiryMs(data);
      const networks = allowedNetworks('API key', data.allowed_networks);
      const caller = Object.freeze<Caller>({
        workspaceId,
        keyId: id,
        principal: Object.freeze(principalOf(id, data)),
        scopes: scopes === null ? 'all' : new Set(scopes),
        defaults: Object.freeze({
          configId: defaults.config_id ?? null,
          allowsConfigOverride: defaults.allow_config_override ?? true,
          metadata: defaults.metadata ?? null,
          ...(defaults.locked_metadata === undefined ? {} : { lockedMetadata: defaults.locked_metadata }),
          ...(defaults.record_bodies === undefined
            ? {}
            : { recording: defaults.record_bodies ? { redact: [] } : null }),
        }),
        expiresAtMs,
        keyDigest: data.digest,
        ...(networks === null ? {} : { networks: Object.freeze([networks]) }),
      });
      return { caller, expiresAtMs };
    },
    // A replaced key has its own expiry, and cannot create a key that works for longer.
    moreLookups: ({ data }, entry) =>
      (data.previous ?? []).map(({ digest, expires_at: end }) => {
        const expiresAtMs = Math.min(Date.parse(end), entry.expiresAtMs);
        const caller = Object.freeze({ ...entry.caller, expiresAtMs, keyDigest: digest });
        return [digest, { ...entry, caller, expiresAtMs }] as const;
      }),
  },

  // The first matching route is used, and {id}/rotate would also match {type}/{sub-type}.
  routes: (store, deps, kit) => [
    reportLeakedKeyRoute(deps, () => apiKeyModel),
    rotateRoute(store, deps, kit),
    createTypedRoute(kit),
  ],
});

/** For commands that create keys or record their actions outside the routes. */
export const apiKeyModel = resourceModel([apiKeyKind]);

/** The budget and the rates of a key. */
function rulesOf(row: ResourceRow<ApiKeyData>): LimitRule[] {
  return rulesOfRow(row, { noun: 'api_key', label: `the API key '${row.data.name}'`, of: 'api_key' });
}

function principalOf(id: string, { type, user_id: userId }: ApiKeyData): Principal {
  if (type === 'workspace-user' && userId !== undefined) return { type: 'user', id: userId, role: null };
  return { type: type === 'organisation-service' ? 'organisation_key' : 'service_key', id, role: null };
}

const { type: _ofPath, ...fieldsOfBody } = apiKeyFields;

/**
 * `sub-type`: clients send it back in this spelling. `scopes` is required, so that a client that omits it does not create a
 * key with all rights.
 */
const TypedBody = z.strictObject({
  ...fieldsOfBody,
  scopes: apiKeyFields.scopes.unwrap().describe('Null for all scopes that the type of the key allows.'),
  workspace_id: z.string().min(1).max(200).optional(),
  'sub-type': z.string().optional(),
});

/** POST /v1/api-keys/{type}/{sub-type}: like POST /v1/api-keys, with the type in the path. */
const createTypedRoute = (kit: RouteKit): Route => ({
  method: 'POST',
  path: '/v1/api-keys/:type/:sub_type',
  operationId: 'createApiKeyOfType',
  summary: 'Create an API key of the organisation, of a service, or of a user',
  description:
    'Like `POST /v1/api-keys` with `type`, but `scopes` is required. An organisation key works in every workspace.',
  example: { name: 'search service', workspace_id: 'ws_abc', scopes: ['chat.write'] },
  errors: { ...keyErrors, organisation_key_required: 'only organisation keys and owners can create organisation keys' },
  ...kit.write,
  responses: { 200: { description: 'The API key. `key` is shown once.', schema: ApiKeyObject } },
  ...withInput({ params: ApiKeyPath, body: TypedBody }, async ({ params, body }, request, response) => {
    const { 'sub-type': repeated = params.sub_type, ...fields } = body;
    const type = `${params.type}-${params.sub_type}`;
    if (repeated !== params.sub_type) {
      const message = `Invalid 'sub-type': the path of this request has '${params.sub_type}'. Leave it out, or send the same.`;
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'sub-type' });
    }
    if (type === 'organisation-user') {
      const message = 'A user has keys only in workspaces. Use /api-keys/workspace/user.';
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'sub_type' });
    }
    await kit.create({ ...fields, type }, request, response);
  }),
});

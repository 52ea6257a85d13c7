import { isDeepStrictEqual } from 'node:util';
import { sql } from 'kysely';
import type { z } from 'zod';
import type { apiKeyFields } from '#libs/contracts/people/api-keys.ts';
import type { ApiKeyDefaults } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { createGatewayKey, hashKey } from '#libs/identity/gateway-key.ts';
import {
  inheritedNetworks,
  refuseForeignKey,
  refuseLongerLife,
  refuseMoreRights,
  refuseStronger,
  refuseUnknownScopes,
} from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { noSuchConfig } from '#libs/credentials/not-found.ts';
import { madeWith, type ApiKeyData } from './api-key-data.ts';
import { readRotationPolicy } from './api-key-rotation.ts';
import type { Checked } from '#libs/records/kit.ts';
import type { CheckContext } from '#libs/resources/define-kind.ts';
import { idOfName } from '#libs/records/find-by-name.ts';
import { refuseLimited } from './refuse-limited.ts';
import { refusePastExpiry } from '#libs/resources/refuse-past-expiry.ts';
import { storedLimits } from '#libs/resources/limits/own-limits.ts';

type Input = Partial<z.output<z.ZodObject<typeof apiKeyFields>>> & { reset_usage?: boolean };

/**
 * Returns the data to store for a new or changed key. Throws GatewayError, such as forbidden for rights beyond the caller's.
 */
export const checkApiKey = (input: Input, context: CheckContext<ApiKeyData>): Promise<Checked<ApiKeyData>> =>
  context.row === null ? checkNew(input, context) : checkChange(input, context.row, context);

async function checkNew(input: Input, context: CheckContext<ApiKeyData>): Promise<Checked<ApiKeyData>> {
  const { caller, unit } = context;
  const defaults = await readDefaults(input.defaults, {}, context);
  // A key that is created for another workspace stores its type explicitly, like one whose type was given.
  const isForeign = context.workspaceId !== caller.workspaceId;
  const type = input.type ?? (isForeign ? 'workspace-service' : undefined);
  const scopes = input.scopes ? [...new Set(input.scopes)] : null;
  refuseUnknownScopes(scopes ?? [], context.scopes());
  const networks = inheritedNetworks(caller, input.allowed_networks);
  refuseMoreRights(caller, { ...(type === undefined ? {} : { type }), scopes, defaults, ...networks });
  await refuseLimited(context, 'create another key');
  refusePastExpiry(input.expires_at, unit.now);
  refuseLongerLife(caller, input.expires_at?.getTime() ?? Number.POSITIVE_INFINITY);
  const userId = await readUser(input, context);
  const key = createGatewayKey();
  return {
    data: {
      name: input.name ?? '',
      digest: hashKey(key.reveal()),
      last_four: key.lastFour(),
      scopes,
      defaults,
      expires_at: input.expires_at?.toISOString() ?? null,
      ...(type === undefined ? {} : { type }),
      ...(userId === undefined ? {} : { user_id: userId }),
      ...readSettings(input, null, unit.now),
      made_with: madeWith(caller),
      ...networks,
    },
    shownOnce: { key: key.reveal() },
  };
}

async function checkChange(
  input: Input,
  { id, data }: NonNullable<CheckContext<ApiKeyData>['row']>,
  context: CheckContext<ApiKeyData>,
): Promise<Checked<ApiKeyData>> {
  const { caller, unit } = context;
  refuseStronger(caller, { id, ...data }, 'change');
  const change: Partial<ApiKeyData> = readSettings(input, data, unit.now);
  if (input.name !== undefined) change.name = input.name;
  if (input.scopes) refuseUnknownScopes(input.scopes, context.scopes().union(new Set(data.scopes)));
  if (input.scopes !== undefined) change.scopes = input.scopes && [...new Set(input.scopes)];
  if (input.defaults !== undefined) change.defaults = await readDefaults(input.defaults, data.defaults, context);
  if (input.allowed_networks !== undefined) change.allowed_networks = input.allowed_networks;
  const isOfRights = ['scopes', 'defaults', 'allowed_networks'].some((member) => member in change);
  if (isOfRights) refuseMoreRights(caller, { ...data, ...change });
  const expiresAt = input.expires_at;
  if (expiresAt !== undefined) {
    refuseLongerLife(caller, expiresAt?.getTime() ?? Number.POSITIVE_INFINITY);
    change.expires_at = expiresAt?.toISOString() ?? null;
  }
  if (input.reset_usage === true) change.usage_reset_at = unit.now.toISOString();
  const isOfLimits =
    'usage_limits' in change ||
    'rate_limits' in change ||
    'usage_reset_at' in change ||
    !isDeepStrictEqual((change.defaults ?? data.defaults).locked_metadata, data.defaults.locked_metadata);
  if (isOfLimits) await refuseLimited(context, 'change limits');
  return { data: change };
}

/** For a new key, all members that were given; for a change, those that the request names. */
function readSettings(input: Input, before: ApiKeyData | null, now: Date): Partial<ApiKeyData> {
  const settings: Partial<ApiKeyData> = {};
  const { description, usage_limits: usage, rate_limits: rates, alert_emails: emails, rotation_policy: policy } = input;
  if (description !== undefined) settings.description = description;
  if (usage !== undefined) settings.usage_limits = storedLimits(usage);
  if (rates !== undefined) settings.rate_limits = rates;
  if (emails !== undefined) settings.alert_emails = emails;
  if (policy === undefined) return settings;
  const stored = before?.rotation_policy ?? null;
  settings.rotation_policy = readRotationPolicy(policy, stored, now);
  // A new date has to be recorded again when it has passed.
  const isSameDate = settings.rotation_policy?.next_rotation_at === stored?.next_rotation_at;
  if (before?.rotation_due_at && !isSameDate) settings.rotation_due_at = null;
  return settings;
}

/** A default config must exist; otherwise, the key would refuse every request later. Omitted members keep their values. */
async function readDefaults(
  wanted: Input['defaults'],
  before: ApiKeyDefaults,
  context: CheckContext<ApiKeyData>,
): Promise<ApiKeyDefaults> {
  const {
    config_id: config,
    metadata,
    allow_config_override: mayOverride,
    record_bodies,
    locked_metadata,
  } = wanted ?? {};
  const { config_id: configBefore = null, metadata: metadataBefore = null } = before;
  const configId = config === undefined ? configBefore : config && (await configIdOf(config, context));
  const labels = metadata === undefined ? metadataBefore : metadata;
  const locked = (locked_metadata === undefined ? before.locked_metadata : locked_metadata) ?? {};
  const recorded = record_bodies === undefined ? before.record_bodies : record_bodies;
  const isFixed = mayOverride === undefined ? before.allow_config_override === false : !mayOverride;
  return {
    // Stored by ID, because its slug can refer to another config later.
    ...(configId === null ? {} : { config_id: configId }),
    ...(labels === null ? {} : { metadata: labels }),
    ...(Object.keys(locked).length === 0 ? {} : { locked_metadata: locked }),
    ...(isFixed ? { allow_config_override: false } : {}),
    ...(recorded == null ? {} : { record_bodies: recorded }),
  };
}

async function configIdOf(name: string, { unit, workspaceId }: CheckContext<ApiKeyData>): Promise<string> {
  const id = idOfName('config', name, sql`workspace_id = ${workspaceId}`);
  const { rows } = await sql<{ id: string | null }>`select ${id} as id`.execute(unit.tx);
  if (rows[0]?.id) return rows[0].id;
  throw noSuchConfig(name, 'defaults.config_id');
}

/**
 * The user of a key of type workspace-user: the given one, or the creator of the key. Throws not_found for an unknown user.
 */
async function readUser(
  { type, user_id: given }: Input,
  { unit, caller, workspaceId }: CheckContext<ApiKeyData>,
): Promise<string | undefined> {
  const refuse = (message: string): GatewayError =>
    new GatewayError('invalid_request', 'invalid_value', message, { param: 'user_id' });
  if (type !== 'workspace-user') {
    if (given === undefined) return undefined;
    throw refuse("Invalid 'user_id': only keys of the type workspace-user belong to a user. Leave it out.");
  }
  const userId = given ?? (caller.principal.type === 'user' ? caller.principal.id : undefined);
  if (userId === undefined)
    throw refuse("Missing 'user_id': a key of the type workspace-user belongs to a user. Send the ID of the user.");
  refuseForeignKey(caller, userId);
  // Owners and admins of the organisation belong to every workspace.
  const find = sql`
    select from resource where kind = 'user' and id = ${userId} and deleted_at is null
      and (data ->> 'role' <> 'member' or data -> 'workspaces' ? ${workspaceId})`;
  // Users belong to the organisation.
  const { rows } = await asSystem(() => find.execute(unit.tx));
  if (rows.length > 0) return userId;
  const message = `There is no user '${userId.slice(0, 100)}' in this workspace.`;
  throw new GatewayError('not_found', 'user_not_found', message, { param: 'user_id' });
}

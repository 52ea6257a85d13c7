import { sql, type Kysely, type RawBuilder } from 'kysely';
import { z } from 'zod';
import type { Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Caller } from '#libs/http/caller.ts';
import { refuseStronger, requireScope } from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { isMadeBy, type ApiKeyData } from '#libs/resources/api-keys/api-key-data.ts';
import { apiKeyModel } from '#libs/resources/api-keys/api-keys.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';

/**
 * How many service keys one removal can revoke. Their streams are locked together, and Postgres limits the number of locks.
 */
const createdKeysMax = 500;

/** Query members of a request that removes a person. */
export const createdKeysQuery = {
  revoke_keys: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: also revoke the service keys that the person created or rotated. Otherwise they keep working'),
};

/** The creator of the keys: in all workspaces, or in one (`workspaceId`). */
type Creator = { userId: string; workspaceId: string | null };
type Query = { revoke_keys?: unknown };

/** The streams to lock for `revokeCreatedKeys`. */
export const createdKeyStreams = async (db: Kysely<Database>, creator: Creator, query: Query): Promise<string[]> =>
  query.revoke_keys === 'true' ? findCreatedKeys(db, creator) : [];

/**
 * Revokes the service keys whose value a removed person has seen, if the query asks for it. Throws forbidden if the caller
 * cannot revoke one of them, and conflict if there are too many or if one is not in `locked` because it is new.
 */
export async function revokeCreatedKeys(
  unit: UnitOfWork,
  creator: Creator,
  { caller, locked, query }: { caller: Caller; locked: readonly string[]; query: Query },
): Promise<void> {
  if (query.revoke_keys !== 'true') return;
  requireScope(caller, 'api_keys.write');
  const ids = await findCreatedKeys(unit.tx, creator);
  if (ids.length > createdKeysMax) throw tooMany(creator);
  if (ids.some((id) => !locked.includes(id))) throw createdMeanwhile();
  for (const id of ids) {
    const row = (await unit.load(apiKeyModel, id)) as ResourceRow<ApiKeyData>;
    refuseStronger(caller, { id, ...row.data }, 'revoke');
  }
  await revokeKeys(unit, ids);
}

/** Returns the working keys, at most one more than a removal can revoke. */
async function findCreatedKeys(db: Kysely<Database>, { userId, workspaceId }: Creator): Promise<string[]> {
  const isThere: RawBuilder<unknown> = workspaceId === null ? sql`true` : sql`workspace_id = ${workspaceId}`;
  const { rows } = await sql<{ id: string }>`
    select id from resource
    where kind = 'api_key' and deleted_at is null and data ->> 'user_id' is null and ${isThere} and ${isMadeBy(userId)}
      and coalesce((data ->> 'expires_at')::timestamptz > clock_timestamp(), true)
    order by created_at desc, id desc limit ${createdKeysMax + 1}`.execute(db);
  return rows.map(({ id }) => id);
}

const tooMany = ({ userId }: Creator): GatewayError =>
  new GatewayError(
    'conflict',
    'too_many_keys',
    `The user created more than ${createdKeysMax} service keys, the maximum that one request revokes. Revoke some of ` +
      `GET /v1/api-keys?created_by=${userId} first (DELETE /v1/api-keys/{id}), or omit 'revoke_keys'.`,
    { param: 'revoke_keys' },
  );

const createdMeanwhile = (): GatewayError =>
  new GatewayError(
    'conflict',
    'keys_changed',
    'A service key of the user was created at the same moment. Send the request again.',
  );

/** The IDs of a user's API keys that are not revoked, in one workspace or (null) in all. */
export async function findUserKeys(
  db: Kysely<Database>,
  userId: string,
  workspaceId: string | null,
): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'api_key' and deleted_at is null and data ->> 'user_id' = ${userId}
      and (${workspaceId}::text is null or workspace_id = ${workspaceId})`.execute(db);
  return rows.map(({ id }) => id);
}

/**
 * Revokes keys whose streams are locked. A key that is created in the meantime is not included. It is refused nevertheless,
 * because its user no longer has a role in its workspace (libs/identity/live-callers.ts).
 */
export async function revokeKeys(unit: UnitOfWork, ids: readonly string[]): Promise<void> {
  for (const id of ids) {
    const row = await unit.load(apiKeyModel, id);
    if (row && !row.deleted_at) await unit.append(apiKeyModel, id, [{ type: 'api_key.revoked', data: {} }]);
  }
}

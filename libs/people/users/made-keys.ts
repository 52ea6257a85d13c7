import { sql, type Kysely, type RawBuilder } from 'kysely';
import { z } from 'zod';
import type { Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Caller } from '#libs/http/caller.ts';
import { hasScope, refuseStronger, requireScope } from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { isMadeBy, type ApiKeyData } from '#libs/resources/api-keys/api-key-data.ts';
import { apiKeyModel } from '#libs/resources/api-keys/api-keys.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { revokeKeys } from './user-keys.ts';

/** How many service keys one removal lists or revokes. Their streams are locked together, which Postgres bounds. */
const madeKeysMax = 500;

/** Members of the query of a request that removes a person. */
export const madeKeysQuery = {
  revoke_keys: z
    .enum(['true', 'false'])
    .optional()
    .describe('true: also revoke the service keys that the person made or rotated. Otherwise they go on working'),
};

const MadeKey = z.object({
  id: z.string(),
  name: z.string(),
  workspace_id: z.string(),
  scopes: z.array(z.string()).nullable().describe('null: everything'),
  revoked: z.boolean(),
});

/** Members of its answer. */
export const madeKeysAnswer = {
  service_keys: z
    .array(MadeKey)
    .nullable()
    .describe(
      'the service keys that the person, or such a key, made or was the last to rotate; null: the key of the request lacks api_keys.read',
    ),
  has_more_service_keys: z.boolean().describe(`there are more than the ${madeKeysMax} in service_keys`),
};

/** Whose keys: of all workspaces, or (`workspaceId`) of one alone. */
type Made = { userId: string; workspaceId: string | null };
type Wanted = { revoke_keys?: unknown };
type MadeRow = { id: string; name: string; workspace_id: string; scopes: string[] | null };

/** The streams to lock for `endOfMadeKeys`. */
export async function madeKeyStreams(db: Kysely<Database>, made: Made, query: Wanted): Promise<string[]> {
  return query.revoke_keys === 'true' ? (await findMadeKeys(db, made)).map(({ id }) => id) : [];
}

/**
 * Returns the service keys whose value somebody who is removed has seen, as the answer to the removal has them, and revokes them if
 * the query asks for it. Throws forbidden for a caller who may not revoke one of them, and conflict if there are too many, or
 * one that is not among the `locked` streams because it was just made.
 */
export async function endOfMadeKeys(
  unit: UnitOfWork,
  made: Made,
  { caller, locked, query }: { caller: Caller; locked: readonly string[]; query: Wanted },
): Promise<z.output<z.ZodObject<typeof madeKeysAnswer>>> {
  const isRevoked = query.revoke_keys === 'true';
  if (isRevoked) requireScope(caller, 'api_keys.write');
  const found = await findMadeKeys(unit.tx, made);
  const hasMore = found.length > madeKeysMax;
  if (isRevoked) {
    if (hasMore) throw tooMany(made);
    if (found.some(({ id }) => !locked.includes(id))) throw madeMeanwhile();
    for (const { id } of found) {
      const row = (await unit.load(apiKeyModel, id)) as ResourceRow<ApiKeyData>;
      refuseStronger(caller, { id, ...row.data }, 'revoke');
    }
    await revokeKeys(
      unit,
      found.map(({ id }) => id),
    );
  }
  const keys = found.slice(0, madeKeysMax).map((key) => ({ ...key, revoked: isRevoked }));
  return { service_keys: hasScope(caller, 'api_keys.read') ? keys : null, has_more_service_keys: hasMore };
}

/** Those that work, the newest first: one more than a removal deals with says that there are more. */
async function findMadeKeys(db: Kysely<Database>, { userId, workspaceId }: Made): Promise<MadeRow[]> {
  const isThere: RawBuilder<unknown> = workspaceId === null ? sql`true` : sql`workspace_id = ${workspaceId}`;
  const { rows } = await sql<MadeRow>`
    select id, data ->> 'name' as name, workspace_id, nullif(data -> 'scopes', 'null') as scopes from resource
    where kind = 'api_key' and deleted_at is null and data ->> 'user_id' is null and ${isThere} and ${isMadeBy(userId)}
      and coalesce((data ->> 'expires_at')::timestamptz > clock_timestamp(), true)
    order by created_at desc, id desc limit ${madeKeysMax + 1}`.execute(db);
  return rows;
}

const tooMany = ({ userId }: Made): GatewayError =>
  new GatewayError(
    'conflict',
    'too_many_keys',
    `The user made more than ${madeKeysMax} service keys, and one request revokes at most as many. Revoke some of ` +
      `GET /v1/api-keys?created_by=${userId} first (DELETE /v1/api-keys/{id}), or leave out 'revoke_keys'.`,
    { param: 'revoke_keys' },
  );

const madeMeanwhile = (): GatewayError =>
  new GatewayError(
    'conflict',
    'keys_changed',
    'A service key of the user was made at the same moment. Send the request again.',
  );

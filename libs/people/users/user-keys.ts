import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { apiKeyModel } from '#libs/resources/api-keys/api-keys.ts';

/** The ids of a user's API keys that are not revoked, in one workspace or (null) in all. */
export async function keysOfUser(db: Kysely<Database>, userId: string, workspaceId: string | null): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'api_key' and deleted_at is null and data ->> 'user_id' = ${userId}
      and (${workspaceId}::text is null or workspace_id = ${workspaceId})`.execute(db);
  return rows.map(({ id }) => id);
}

/**
 * Revokes keys whose streams are locked. One that is created meanwhile is not among them: it is refused all the same,
 * because its user has no business in its workspace any more (libs/identity/live-callers.ts).
 */
export async function revokeKeys(unit: UnitOfWork, ids: readonly string[]): Promise<void> {
  for (const id of ids) {
    const row = await unit.load(apiKeyModel, id);
    if (row && !row.deleted_at) await unit.append(apiKeyModel, id, [{ type: 'api_key.revoked', data: {} }]);
  }
}

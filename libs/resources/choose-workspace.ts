import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/**
 * The workspace of a request whose `workspace_id` (id or slug) is `wanted`: absent, the caller's own. A key of the
 * organisation can choose any; another key can only name its own. Throws not_found, for those that exist as well.
 */
export async function chosenWorkspace(
  db: Kysely<Database>,
  caller: Pick<Caller, 'workspaceId' | 'principal'>,
  wanted: string | undefined,
): Promise<string> {
  if (wanted === undefined || wanted === caller.workspaceId) return caller.workspaceId;
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'workspace' and deleted_at is null and (id = ${wanted} or slug = ${wanted})
    limit 1`.execute(db);
  const id = rows[0]?.id;
  if (id !== undefined && (caller.principal.type === 'organisation_key' || id === caller.workspaceId)) return id;
  const message = `There is no workspace '${wanted.slice(0, 100)}'.`;
  throw new GatewayError('not_found', 'workspace_not_found', message, { param: 'workspace_id' });
}

import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { organisationId } from '#libs/http/caller.ts';

/**
 * Returns, by ID, the names of these API keys of a workspace (null: of any), and the e-mail addresses of users who signed in
 * by token. Includes deleted ones, but not organisation keys.
 */
export async function namesOfKeys(
  db: Kysely<Database>,
  workspaceId: string | null,
  ids: readonly (string | null)[],
): Promise<ReadonlyMap<string, string>> {
  const wanted = [...new Set(ids)].filter((id) => id !== null);
  if (wanted.length === 0) return new Map();
  // Users belong to the organisation. The IDs come from calls of the workspace, which its members can see anyway.
  const { rows } = await asSystem(() =>
    sql<{ id: string; name: string }>`
      select id, coalesce(data ->> 'name', data ->> 'email') as name from resource where id = any(${wanted}::text[])
        and ((kind = 'api_key' and ${workspaceId === null ? sql`true` : sql`workspace_id = ${workspaceId}`}) or (kind = 'user' and workspace_id = ${organisationId}))
        and coalesce(data ->> 'name', data ->> 'email') is not null`.execute(db),
  );
  return new Map(rows.map(({ id, name }) => [id, name]));
}

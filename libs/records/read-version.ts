import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { versionId } from '#libs/records/resource-model.ts';

/** Returns what a version of a record has stored, without its secrets. undefined: there is no such version. */
export async function readVersion(
  db: Kysely<Database>,
  { workspaceId, id, number }: { workspaceId: string; id: string; number: number },
): Promise<Record<string, unknown> | undefined> {
  const { rows } = await sql<{ data: Record<string, unknown> }>`
    select data from resource_version
    where id = ${versionId(id, number)} and workspace_id = ${workspaceId}`.execute(db);
  return rows[0]?.data;
}

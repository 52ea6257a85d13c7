import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** The slugs of a workspace's virtual keys, in their order; those of deleted ones are free again. */
export async function virtualKeySlugs(db: Kysely<Database>, workspaceId: string): Promise<string[]> {
  const rows = await db
    .selectFrom('virtual_key')
    .select('slug')
    .where('workspace_id', '=', workspaceId)
    .where('deleted_at', 'is', null)
    .orderBy('slug')
    .execute();
  return rows.map((row) => row.slug);
}

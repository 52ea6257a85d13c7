import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** The virtual keys of a workspace by their slugs; the slugs of deleted ones are free again. */
export async function listLivingKeys(
  db: Kysely<Database>,
  workspaceId: string,
): Promise<{ id: string; slug: string; provider: string }[]> {
  return await db
    .selectFrom('virtual_key')
    .select(['id', 'slug', 'provider'])
    .where('workspace_id', '=', workspaceId)
    .where('deleted_at', 'is', null)
    .orderBy('slug')
    .execute();
}

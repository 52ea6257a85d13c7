import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/**
 * Whether anything still needs a blob: a file that is neither deleted nor expired, or a batch that has not ended and
 * reads its input from it.
 */
export async function isBlobReferenced(db: Kysely<Database>, blob: string): Promise<boolean> {
  const { rows } = await sql<{ referenced: boolean }>`
    select exists (
      select from file where blob = ${blob} and (
        deleted_at is null
        or exists (
          select from batch where input_file_id = file.id
            and status in ('validating', 'in_progress', 'finalizing', 'cancelling')
        )
      )
    ) as referenced`.execute(db);
  return rows[0]?.referenced ?? true;
}

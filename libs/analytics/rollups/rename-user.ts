import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { metadataKeyPrefix, userKey } from '../aggregate-calls.ts';

/** Counts the calls of a user under the user's ID instead of these e-mail addresses, which are in lower case. */
export async function renameUser(
  db: Kysely<Database>,
  { userId, emails }: { userId: string; emails: readonly string[] },
): Promise<void> {
  for (const [table, key] of [
    ['metadata_rollup', userKey],
    ['value_rollup', `${metadataKeyPrefix}${userKey}`],
  ] as const) {
    await sql`
      update ${sql.table(table)} set value = ${userId} where key = ${key} and lower(value) = any(${emails}::text[])`.execute(
      db,
    );
  }
}

import { sql, type Kysely } from 'kysely';

/**
 * No counter of a limit can be below 0, which would be a credit for everybody who shares the limit. `not valid`, because
 * rows that are negative already are repaired with an event each when the first process starts; it then validates the
 * constraint.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    alter table limit_counter add constraint limit_counter_not_negative check (
      max >= 0 and used >= 0 and assumed >= 0 and unpriced >= 0
      and not jsonb_path_exists(leases, '$.*.amount ? (@ starts with "-")')
    ) not valid`.execute(db);
}

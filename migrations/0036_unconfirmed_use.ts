import { sql, type Kysely } from 'kysely';

/** The part of a counter's use that calls reserved whose own use is not known, because their answers were lost. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    alter table limit_counter add unconfirmed numeric not null default 0
      constraint limit_counter_unconfirmed_not_negative check (unconfirmed >= 0)`.execute(db);
}

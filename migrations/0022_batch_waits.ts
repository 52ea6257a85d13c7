import { sql, type Kysely } from 'kysely';

/** What the lines of a batch wait for, where that is a budget. Processes of the release before leave it as it is. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table batch add column waiting jsonb`.execute(db);
}

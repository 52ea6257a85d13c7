import { sql, type Kysely } from 'kysely';

/** The audit log of an organisation key covers all workspaces, newest first. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`create index activity_of_all on activity (recorded_at desc, id desc)`.execute(db);
}

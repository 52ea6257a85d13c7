import { sql, type Kysely } from 'kysely';

/** Which release each process runs, and where: nulls for processes of releases that do not say it. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table request_log_process add column version text, add column host text`.execute(db);
}

import { sql, type Kysely } from 'kysely';

/**
 * The attempts and guardrails of a call with the time of each, where there is more to tell than one attempt. Null for all
 * others, so that their rows do not grow; no default, so that no row is rewritten.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table request_log add column steps jsonb`.execute(db);
}

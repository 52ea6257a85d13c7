import { sql, type Kysely } from 'kysely';

/** Guardrails of a workspace; null for one without. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table workspace add column guardrails jsonb`.execute(db);
}

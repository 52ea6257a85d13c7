import { sql, type Kysely } from 'kysely';

/** Each event's canonical JSON (RFC 8785) and its SHA-256, which seals cover; null for events from before. */
export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`alter table event add column canonical text, add column sha256 bytea`.execute(db);
}

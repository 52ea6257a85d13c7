import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** Events whose stored text does not have the stored SHA-256; `first` contains the IDs of some. */
export type DigestCheck = { checked: number; wrong: number; first: string[] };

const isWrong = sql`sha256 <> sha256(convert_to(canonical, 'UTF8'))`;

/** Computes the digests of all events again. Reads the whole log once, in the database. */
export async function checkDigests(db: Kysely<Database>): Promise<DigestCheck> {
  const { rows } = await sql<{ checked: number; wrong: number }>`
    select count(*) as checked, count(*) filter (where ${isWrong}) as wrong from event`.execute(db);
  const { checked = 0, wrong = 0 } = rows[0] ?? {};
  return { checked, wrong, first: wrong === 0 ? [] : await findFirstWrong(db) };
}

async function findFirstWrong(db: Kysely<Database>): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select event_id::text as id from event where ${isWrong} order by position limit 20`.execute(db);
  return rows.map(({ id }) => id);
}

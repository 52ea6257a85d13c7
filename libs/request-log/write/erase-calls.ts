import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

const rowsAtOnce = 5_000;

/** Returns those of these workspaces in which a user has made calls. */
export async function findWorkspacesWithCalls(
  db: Kysely<Database>,
  userId: string,
  workspaces: readonly string[],
): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select held as id from unnest(${workspaces}::text[]) as held
    where exists (select from request_log where workspace_id = held and user_id = ${userId})`.execute(db);
  return rows.map(({ id }) => id);
}

/**
 * Replaces the e-mail addresses of a user, which are in lower case, by the user's ID in the metadata of calls, and removes
 * the recorded bodies of the user's calls. (What remains of these in shared blobs is encrypted, and is deleted with the
 * blobs.) Returns how many calls were changed.
 */
export async function eraseCallsOfUser(
  db: Kysely<Database>,
  { userId, emails }: { userId: string; emails: readonly string[] },
): Promise<number> {
  const isNamed = sql`lower(metadata ->> '_user') = any(${emails}::text[])`;
  const metadata = sql`
    case when ${isNamed} then jsonb_set(metadata, '{_user}', to_jsonb(${userId}::text)) else metadata end`;
  const { rows: days } = await sql<{ day: string }>`
    select distinct recorded_on::text as day from request_log where user_id = ${userId} order by 1`.execute(db);
  let calls = 0;
  for (const { day } of days) {
    for (let isWhole = false; !isWhole;) {
      const { numAffectedRows = 0n } = await sql`
        update request_log_row set bodies_blob = null, metadata = ${metadata}
        where recorded_on = ${day}::date and id in (
          select id from request_log_row where recorded_on = ${day}::date and user_id = ${userId}
            and (bodies_blob is not null or ${isNamed})
          limit ${rowsAtOnce})`.execute(db);
      calls += Number(numAffectedRows);
      isWhole = numAffectedRows < rowsAtOnce;
    }
    const { rows: packs } = await sql<{ lines: number }>`
      update request_log_pack set metadata = ${metadata}
      where recorded_on = ${day}::date and user_id = ${userId} and ${isNamed} returning lines`.execute(db);
    calls += packs.reduce((sum, { lines }) => sum + lines, 0);
  }
  return calls;
}

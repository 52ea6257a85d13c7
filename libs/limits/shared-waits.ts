import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { insertLimits, type CallLimitName } from './call-limit-store.ts';

/** How many waits of a workspace are read at one time, and of all together. */
const readMax = { perWorkspace: 100, all: 2_000 };

/** Writes how long a credential and model must not be called. 0 or less: the wait is over. */
export async function writeWait(db: Kysely<Database>, name: CallLimitName, leftMs: number): Promise<void> {
  await db.transaction().execute(async (tx) => {
    if (leftMs > 0) await insertLimits(tx, [name]);
    const until = sql`greatest(limited_until, clock_timestamp() + make_interval(secs => ${leftMs / 1_000}))`;
    await sql`
      update call_limit set limited_until = ${leftMs > 0 ? until : null}, updated_at = clock_timestamp()
      where id = ${name.id}`.execute(tx);
  });
}

/**
 * Returns the waits of all processes. Those with the IDs of `own` are always among them; a workspace with many others
 * does not displace those of other workspaces.
 */
export async function readWaits(
  db: Kysely<Database>,
  own: readonly string[],
): Promise<readonly { id: string; leftMs: number }[]> {
  const { rows } = await sql<{ id: string; leftMs: number }>`
    select id, (extract(epoch from limited_until - clock_timestamp()) * 1000)::float8 as "leftMs"
    from (
      select id, limited_until, id = any(${own}::text[]) as is_own,
        row_number() over (partition by workspace_id order by limited_until desc) as place
      from call_limit where limited_until > clock_timestamp()
    ) as waits
    where is_own or place <= ${readMax.perWorkspace} order by is_own desc, place limit ${readMax.all}`.execute(db);
  return rows;
}

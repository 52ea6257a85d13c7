import { sql, type Kysely } from 'kysely';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { Database } from '#libs/database/schema.ts';

/**
 * Makes the clock of a new database movable, before the platform connects to it: its sessions, and the defaults of its
 * tables, find functions in `public` instead of Postgres's own. Returns a function that sets the clock forward or back.
 */
export async function makeClockMovable(db: Kysely<Database>): Promise<(byMs: number) => Promise<void>> {
  await sql`create table rig_clock (ahead interval not null)`.execute(db);
  await sql`insert into rig_clock values ('0')`.execute(db);
  await sql`grant select on rig_clock to public`.execute(db); // requests read as another role
  for (const name of ['clock_timestamp', 'now']) {
    await sql`create function ${sql.ref(`public.${name}`)}() returns timestamptz language sql volatile
      as ${sql.lit(`select pg_catalog.${name}() + ahead from public.rig_clock`)}`.execute(db);
  }
  await sql`do $$ begin
    execute format('alter database %I set search_path = public, pg_catalog', current_database());
  end $$`.execute(db);
  return async (byMs) => {
    // Another fault can have stopped Postgres.
    await retryDuringOutage(() => sql`select`.execute(db), { delayMs: 200 });
    // The trigger of the event log has its own path. It was made by the platform since then.
    await sql`alter function place_event() set search_path = public, pg_catalog`.execute(db);
    await sql`update rig_clock set ahead = ahead + ${`${byMs} milliseconds`}::interval`.execute(db);
  };
}

import { sql } from 'kysely';
import type { TestDatabase } from './postgres.ts';

export type DatabaseClock = {
  /** Moves the clock by this much: for deadlines, for work that waits, and for what is recorded from now on. */
  pass(ms: number): Promise<void>;
};

/**
 * A clock that a test can move, for a database to which only the test is connected yet. Deadlines are compared with the
 * database's clock, and a test that waits for a real deadline depends on the speed of the machine. Sessions that begin
 * after this read the clock through the function of the same name in `public`. The time of pg-boss, which reads
 * `now()`, is not moved, because the claims of running jobs would be lost.
 */
export async function moveClockOf({ db, connectionString }: TestDatabase): Promise<DatabaseClock> {
  const name = new URL(connectionString).pathname.slice(1);
  await sql`create table passed_time (total interval not null)`.execute(db);
  await sql`insert into passed_time values ('0')`.execute(db);
  await sql`grant select on passed_time to public`.execute(db); // requests read as another role
  await sql`create function public.clock_timestamp() returns timestamptz language sql volatile
    as 'select pg_catalog.clock_timestamp() + total from public.passed_time'`.execute(db);
  await sql`alter database ${sql.ref(name)} set search_path = public, pg_catalog`.execute(db);
  // The trigger of the event log has its own path. It compares times with `now()` too.
  await sql`create schema moved_clock`.execute(db);
  await sql`create function moved_clock.now() returns timestamptz language sql volatile
    as 'select pg_catalog.now() + total from public.passed_time'`.execute(db);
  await sql`alter function place_event() set search_path = moved_clock, public, pg_catalog`.execute(db);
  return {
    async pass(ms) {
      const interval = `${ms} milliseconds`;
      await sql`update passed_time set total = total + ${interval}::interval`.execute(db);
    },
  };
}

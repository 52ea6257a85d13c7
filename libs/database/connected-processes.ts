import { sql, type Kysely } from 'kysely';
import type { Database } from './schema.ts';

/** A session of a Sluice process on this database. `address` is null on a Unix socket. */
export type ConnectedSession = { application: string; pid: number; address: string | null; since: Date };

/** The maximum number of listed sessions. */
const sessionsMax = 200;

/**
 * The sessions that processes of Sluice have on this database, oldest first, without those of `exceptApplication`, which is
 * the caller. Postgres shows the names of sessions only to the role that opened them, or to a superuser.
 */
export async function listConnectedSessions(
  db: Kysely<Database>,
  exceptApplication: string,
): Promise<ConnectedSession[]> {
  const { rows } = await sql<ConnectedSession>`
    select application_name as application, pid, host(client_addr) as address, backend_start as since
    from pg_stat_activity
    where datname = current_database() and application_name like 'sluice-%' and application_name <> ${exceptApplication}
    order by backend_start, pid limit ${sessionsMax}`.execute(db);
  return rows;
}

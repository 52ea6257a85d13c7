import { sql } from 'kysely';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';

/** Where every process listens for changes of keys. */
export const accessChannel = 'sluice_access';

/**
 * Tells every process that its snapshot is out of date; the last statement of each command that changes keys. The
 * version's row lock, held until the commit, puts such commands in one order: whoever sees a version sees all up to it.
 */
export async function announceAccessChange({ tx }: Pick<UnitOfWork, 'tx'>): Promise<void> {
  await sql`
    with changed as (update access_version set version = version + 1 returning version)
    select pg_notify(${accessChannel}, version::text) from changed`.execute(tx);
}

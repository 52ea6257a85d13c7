import { sql } from 'kysely';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';

/** The channel on which every process listens for changes of keys. */
export const accessChannel = 'sluice_access';

/**
 * Makes every process refresh its snapshot; must be the last statement of a command that changes cached records. The
 * lock of the version's row is held until the commit and serialises such commands, so that a reader of a version sees
 * all changes up to it.
 */
export async function announceAccessChange({ tx }: Pick<UnitOfWork, 'tx'>): Promise<void> {
  await sql`
    with changed as (update access_version set version = version + 1 returning version)
    select pg_notify(${accessChannel}, version::text) from changed`.execute(tx);
}

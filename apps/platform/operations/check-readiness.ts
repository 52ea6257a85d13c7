import { sql, type Kysely } from 'kysely';
import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import { missingRequirement, pendingMigrations } from '#libs/database/migrate.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBoundedRead } from '../bounded-read.ts';
import type { Readiness } from './operational-routes.ts';

/** The phase of a process: `ok` from the end of its start to the beginning of its stop. */
export type Phase = 'starting' | 'ok' | 'stopping';

/**
 * Checks whether this process should get requests: database, migrations and access snapshot are usable, and the process
 * has started and is not stopping. The database is read at most once per second, and an answer takes at most 2 s. The
 * state of the workers is only informative, because live calls do not need them.
 */
export function createReadinessCheck(deps: {
  db: Kysely<Database>;
  snapshot: Pick<AccessSnapshot, 'assertFresh'>;
  phase: () => Phase;
}): () => Promise<Readiness> {
  const { db, snapshot, phase } = deps;
  const look = createBoundedRead(
    async () => {
      const [migrations, workers] = await Promise.all([checkMigrations(db), countWorkers(db)]);
      return { migrations, workers };
    },
    { everyMs: 1_000, waitMs: 2_000 },
  );
  return async () => {
    const { value, isCurrent } = await look();
    const { migrations, workers } = isCurrent && value ? value : unknown;
    return {
      required: {
        process: phase(),
        database: workers === 'unknown' ? 'does not answer' : 'ok',
        migrations,
        access: isFresh(snapshot) ? 'ok' : 'stale',
      },
      informative: { workers },
    };
  };
}

const unknown = { migrations: 'unknown', workers: 'unknown' };

// The database's error messages are not returned, because they can contain hosts and users.
async function checkMigrations(db: Kysely<Database>): Promise<string> {
  try {
    const [pending, required] = await Promise.all([pendingMigrations(db), missingRequirement(db)]);
    if (required !== null)
      return `this release is too old; the database needs a release with the migration ${required}`;
    return pending.length === 0 ? 'ok' : `pending: ${pending.join(', ')}`;
  } catch {
    return 'unknown';
  }
}

function isFresh(snapshot: Pick<AccessSnapshot, 'assertFresh'>): boolean {
  try {
    snapshot.assertFresh();
    return true;
  } catch {
    return false;
  }
}

/** Whether a worker has a session on this database. */
async function countWorkers(db: Kysely<Database>): Promise<'connected' | 'none' | 'unknown'> {
  try {
    const { rows } = await sql<{ sessions: number }>`
      select count(*)::int as sessions from pg_stat_activity
      where application_name = 'sluice-queue-worker' and datname = current_database()`.execute(db);
    return (rows[0]?.sessions ?? 0) > 0 ? 'connected' : 'none';
  } catch {
    return 'unknown';
  }
}

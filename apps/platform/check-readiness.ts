import { sql, type Kysely } from 'kysely';
import type { AccessSnapshot } from '#libs/access/access-snapshot.ts';
import { missingRequirement, pendingMigrations } from '#libs/database/migrate.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBoundedRead } from './bounded-read.ts';
import type { Readiness } from './operational-routes.ts';

/** How far a process is: `ok` from the end of its start to the beginning of its stop. */
export type Phase = 'starting' | 'ok' | 'stopping';

/**
 * Whether requests should come here: database, migrations and access snapshot, and the process has started and is not
 * stopping. The database is looked at once a second at most, however many ask, and an answer takes 2 s at most.
 * Workers are told for people and scripts only, because live calls do not need them.
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

// No reasons of the database's own in the answer: they may name hosts and users.
async function checkMigrations(db: Kysely<Database>): Promise<string> {
  try {
    const [pending, required] = await Promise.all([pendingMigrations(db), missingRequirement(db)]);
    if (required !== null) return `this release is too old: the database needs one that has ${required}`;
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

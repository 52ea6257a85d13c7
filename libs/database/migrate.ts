import fs from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { sql, type Kysely } from 'kysely';
import { Migrator, type Migration } from 'kysely/migration';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { getSqlState } from './database-error.ts';
import { isolateWorkspaces } from './isolate-workspaces.ts';
import { createDatabase, createPool } from './pool.ts';
import type { Database } from './schema.ts';

const projectFolder = fileURLToPath(new URL('../../migrations/', import.meta.url));
const migrationName = /^\d{4}_[a-z0-9_]+$/;

/** An arbitrary number that differs from the other advisory locks of this database. */
export const migrationLock = 7_358_221_904_113;

type MigrateOptions = {
  /** A direct connection: a session lock does not work through a transaction pooler like PgBouncer. */
  connectionString: string;
  logger: Logger;
  /** Absolute path of the folder with `NNNN_what.sql` files. Default: the project's `migrations/`. */
  folder?: string;
  /** How long to wait for another process that is migrating. Default 10 min, enough for a large migration. */
  waitMs?: number;
  /** When it aborts, the migration is given up and the database is left unchanged. */
  signal?: AbortSignal | undefined;
};

/**
 * Applies all pending migrations and returns their names, oldest first. They run in one transaction, so a failure
 * leaves the database unchanged. If several processes start together, one migrates and the others wait. A migration
 * waits at most 10 s for a table that live traffic holds, because everything else would queue up behind it; then it
 * fails and can be repeated. Afterwards, tables with a workspace_id get the policies that isolate workspaces
 * (isolate-workspaces.ts).
 *
 * Migrations of a newer release that the database already has are not touched, so that a process of the previous
 * release can start during a rolling upgrade or after it.
 *
 * Throws ConfigurationError if a newer release has made the database unusable for this one (`missingRequirement`), or
 * if a checkout from before the first migration created it. Throws if a file name is malformed, if an applied migration
 * is missing from the folder, with the error of a failed migration (its name is in the message), or if the signal
 * aborts. After a lost connection it can be called again.
 */
export async function migrate(options: MigrateOptions): Promise<string[]> {
  const { connectionString, logger, folder = projectFolder, waitMs = 600_000, signal } = options;
  const unlimited = { statementTimeoutMs: 0, idleInTransactionTimeoutMs: 0, transactionTimeoutMs: 0 };
  const pool = createPool(
    { connectionString, applicationName: 'sluice-migrate', max: 1, ...unlimited, lockTimeoutMs: waitMs },
    logger,
  );
  const db = createDatabase(pool);
  const over = new AbortController();
  try {
    return await db.connection().execute(async (session) => {
      const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(session);
      const giveUp = (): void => void endSession(connectionString, rows[0]?.pid, logger);
      signal?.addEventListener('abort', giveUp, { signal: over.signal });
      signal?.throwIfAborted();
      // Also held while Kysely creates its own tables, which Kysely's lock does not cover.
      await sql`select pg_advisory_lock(${migrationLock})`.execute(session);
      await sql`set lock_timeout = '10s'`.execute(session);
      const applied = await runPending(session, folder, logger);
      await isolateWorkspaces(session, logger);
      return applied;
    });
  } catch (error) {
    signal?.throwIfAborted(); // The error of a session that was ended contains no useful information.
    throw error;
  } finally {
    over.abort();
    await db.destroy(); // This ends the session and releases the lock.
  }
}

/**
 * A server notices that a client has disconnected only when it answers. Without this, a long migration of a stopped
 * process would continue and hold its locks.
 */
async function endSession(connectionString: string, pid: number | undefined, logger: Logger): Promise<void> {
  const pool = createPool({ connectionString, applicationName: 'sluice-migrate', max: 1 }, logger);
  await pool.query('select pg_terminate_backend($1)', [pid]).catch((error: unknown) => {
    logger.warn({ err: error }, 'the running migration did not stop'); // Only its own time limits can end it.
  });
  await pool.end();
}

async function runPending(session: Kysely<Database>, folder: string, logger: Logger): Promise<string[]> {
  const known = await listMigrations(folder);
  const alreadyApplied = await appliedMigrations(session);
  if (alreadyApplied.size > 0 && known[0] !== undefined && !alreadyApplied.has(known[0])) {
    throw new ConfigurationError(
      `This database was created by a checkout of Sluice from before version 0.1.0 and cannot be upgraded. Start with an empty database or another data directory (SLUICE_DATA_DIR), or use the old checkout.`,
    );
  }
  const required = await missingRequirement(session, folder);
  if (required !== null) {
    throw new ConfigurationError(
      `This release is too old for the database. The database has the migration ${required}, but the latest one in this release is ${known.at(-1) ?? 'none'}. Start a newer release, or restore the backup from before the upgrade.`,
    );
  }
  const migrations: Record<string, Migration> = {};
  // Kysely rejects a database with a migration that is not in its list. These are applied already and never run.
  for (const name of newerThan(known, alreadyApplied)) migrations[name] = { up: async () => {} };
  for (const name of known) {
    const statements = await fs.readFile(path.join(folder, `${name}.sql`), 'utf8');
    migrations[name] = { up: async (db) => void (await sql.raw(statements).execute(db)) };
  }
  const migrator = new Migrator({ db: session, provider: { getMigrations: async () => migrations } });
  const { error, results = [] } = await migrator.migrateToLatest();
  if (error !== undefined) {
    const failed = results.find((result) => result.status === 'Error')?.migrationName;
    const reason = error instanceof Error ? error.message : 'unknown';
    throw new Error(
      `${failed === undefined ? 'The database was not migrated' : `Migration ${failed} failed`}: ${reason}`,
      {
        cause: error,
      },
    );
  }
  const applied = results.map((result) => result.migrationName);
  if (applied.length > 0) logger.info({ migrations: applied }, 'database migrated');
  return applied;
}

/**
 * The pending migrations, oldest first, for readiness checks. One small query. Unknown migrations of a newer release are
 * ignored, so that rolling deployments work.
 */
export async function pendingMigrations(db: Kysely<Database>, folder: string = projectFolder): Promise<string[]> {
  const [known, applied] = await Promise.all([listMigrations(folder), appliedMigrations(db)]);
  return known.filter((name) => !applied.has(name));
}

/** Name of the row in `installation` with the newest migration that a release must know. */
const requirementName = 'required_migration';

/**
 * Returns the migration that a process must know to work with this database, if this process does not know it;
 * otherwise null. A migration that breaks earlier releases writes its own name to the row `required_migration` of
 * `installation`. One small query.
 */
export async function missingRequirement(db: Kysely<Database>, folder: string = projectFolder): Promise<string | null> {
  const known = await listMigrations(folder);
  try {
    const row = await db
      .selectFrom('installation')
      .select('value')
      .where('name', '=', requirementName)
      .executeTakeFirst();
    return row === undefined || known.includes(row.value) ? null : row.value;
  } catch (error) {
    if (getSqlState(error) === '42P01') return null; // The table does not exist: no migration was ever applied.
    throw error;
  }
}

/** Applied migrations that are newer than all known ones: those of a newer release. */
function newerThan(known: readonly string[], applied: ReadonlySet<string>): string[] {
  const last = known.at(-1);
  return last === undefined ? [] : [...applied].filter((name) => name > last);
}

async function appliedMigrations(db: Kysely<Database>): Promise<Set<string>> {
  try {
    const { rows } = await sql<{ name: string }>`select name from kysely_migration`.execute(db);
    return new Set(rows.map((row) => row.name));
  } catch (error) {
    if (getSqlState(error) === '42P01') return new Set(); // The table does not exist: no migration was ever applied.
    throw error;
  }
}

/** The folder's migrations in order. A misnamed file is an error, so that no migration is skipped. */
async function listMigrations(folder: string): Promise<string[]> {
  const files = (await fs.readdir(folder)).filter((file) => file.endsWith('.sql'));
  const names = files.map((file) => file.slice(0, -'.sql'.length)).sort();
  const wrong = names.find((name) => !migrationName.test(name));
  if (wrong !== undefined)
    throw new Error(`The migration ${wrong}.sql must be named NNNN_what.sql, for example 0007_add_labels.sql.`);
  const twice = names.find((name, index) => name.slice(0, 4) === names[index - 1]?.slice(0, 4));
  if (twice !== undefined)
    throw new Error(`Two migrations have the number ${twice.slice(0, 4)}; one of them is ${twice}.sql.`);
  return names;
}

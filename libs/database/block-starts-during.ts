import { sql } from 'kysely';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { migrationLock } from './migrate.ts';
import { createDatabase, createPool } from './pool.ts';

/**
 * Runs `work` while no process can start: each takes the lock of the migrations first, and waits for it for up to ten minutes.
 * Throws ConfigurationError if another process has the lock, because it migrates or restores.
 */
export async function blockStartsDuring<Result>(
  options: { connectionString: string; applicationName: string },
  logger: Logger,
  work: () => Promise<Result>,
): Promise<Result> {
  const unlimited = { statementTimeoutMs: 0, idleInTransactionTimeoutMs: 0, transactionTimeoutMs: 0 };
  const pool = createPool({ ...options, max: 1, ...unlimited }, logger);
  const db = createDatabase(pool);
  try {
    return await db.connection().execute(async (session) => {
      const { rows } = await sql<{ held: boolean }>`select pg_try_advisory_lock(${migrationLock}) as held`.execute(
        session,
      );
      if (rows[0]?.held !== true) {
        throw new ConfigurationError(
          'Another process is migrating or restoring this database. Wait until it has finished.',
        );
      }
      return await work();
    });
  } finally {
    await db.destroy(); // This ends the session and releases the lock.
  }
}

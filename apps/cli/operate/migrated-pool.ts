import type { Pool } from 'pg';
import { missingRequirement, pendingMigrations } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';

/**
 * Runs `work` with a small pool without a statement timeout, because the work reads whole tables.
 * Throws ConfigurationError if migrations are pending or the database needs a newer release: this code could not read
 * its tables.
 */
export async function withMigratedPool<Result>(
  options: { connectionString: string; applicationName: string },
  logger: Logger,
  work: (pool: Pool) => Promise<Result>,
): Promise<Result> {
  const unlimited = { statementTimeoutMs: 0, transactionTimeoutMs: 0 };
  const pool = createPool({ max: 4, ...options, ...unlimited }, logger);
  try {
    const db = createDatabase(pool);
    const required = await missingRequirement(db);
    if (required !== null) {
      throw new ConfigurationError(`The database needs a newer release of Sluice, with migration ${required}.`);
    }
    const pending = await pendingMigrations(db);
    if (pending.length > 0) {
      throw new ConfigurationError(`Migrations are pending (${pending.join(', ')}). Run: npm run sluice -- migrate`);
    }
    return await work(pool);
  } finally {
    await pool.end();
  }
}

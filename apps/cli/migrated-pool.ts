import type { Pool } from 'pg';
import { missingRequirement, pendingMigrations } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';

/**
 * One connection for work that reads whole tables, without the time limits that protect the live path; closed when the
 * work is over. Throws ConfigurationError when the database lacks migrations, or needs a newer release: its tables are
 * not the ones that are read.
 */
export async function withMigratedPool<Result>(
  options: { connectionString: string; applicationName: string },
  logger: Logger,
  work: (pool: Pool) => Promise<Result>,
): Promise<Result> {
  const unlimited = { statementTimeoutMs: 0, transactionTimeoutMs: 0 };
  const pool = createPool({ ...options, ...unlimited, max: 1 }, logger);
  try {
    const db = createDatabase(pool);
    const required = await missingRequirement(db);
    if (required !== null) {
      throw new ConfigurationError(`The database needs a newer release than this one, with the migration ${required}.`);
    }
    const pending = await pendingMigrations(db);
    if (pending.length > 0) {
      throw new ConfigurationError(
        `The database lacks migrations (${pending.join(', ')}). Run: npm run sluice -- migrate`,
      );
    }
    return await work(pool);
  } finally {
    await pool.end();
  }
}

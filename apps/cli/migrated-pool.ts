import type { Pool } from 'pg';
import { pendingMigrations } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';

/**
 * One connection for work that reads whole tables, without the time limits that protect the live path; closed when the
 * work is over. Throws ConfigurationError when the database lacks migrations: its tables are not the ones that are read.
 */
export async function withMigratedPool<Result>(
  options: { connectionString: string; applicationName: string },
  logger: Logger,
  work: (pool: Pool) => Promise<Result>,
): Promise<Result> {
  const unlimited = { statementTimeoutMs: 0, transactionTimeoutMs: 0 };
  const pool = createPool({ ...options, ...unlimited, max: 1 }, logger);
  try {
    const pending = await pendingMigrations(createDatabase(pool));
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

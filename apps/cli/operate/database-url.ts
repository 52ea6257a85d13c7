import { existsSync } from 'node:fs';
import path from 'node:path';
import { startEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError, readEnv } from '#libs/kernel/read-env.ts';
import { readRuntimeFile } from '../../standalone/files/runtime-file.ts';
import { CliConfig } from './config.ts';

/**
 * The database that a command uses: DATABASE_URL; otherwise the embedded one of a running `npm start`; otherwise the
 * embedded one in the data directory, which is started for the command. `close` stops what was started.
 * Throws ConfigurationError if there is none and `mayCreate` is false. Otherwise a command in the wrong directory would
 * report on a new, empty database.
 */
export async function openDatabaseUrl(
  options: { mayCreate: boolean },
  logger: Logger,
): Promise<{ url: string; close: () => Promise<void> }> {
  const config = readEnv(CliConfig);
  const nothing = async (): Promise<void> => {};
  if (config.DATABASE_URL !== undefined) return { url: config.DATABASE_URL, close: nothing };
  const dataDir = path.resolve(config.SLUICE_DATA_DIR);
  const running = await readRuntimeFile(dataDir);
  if (running !== undefined) return { url: running.databaseUrl, close: nothing };
  if (!options.mayCreate && !existsSync(path.join(dataDir, 'postgres'))) {
    throw new ConfigurationError(
      `There is no database in ${dataDir}. Set DATABASE_URL, or set SLUICE_DATA_DIR to the data directory of npm start.`,
    );
  }
  const server = await startEmbeddedPostgres({ dataDir, logger });
  return { url: server.connectionString, close: () => server.stop() };
}

import { startEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { readEnv } from '#libs/kernel/read-env.ts';
import { readRuntimeFile } from '../standalone/runtime-file.ts';
import { CliConfig } from './config.ts';

/**
 * The database that a command works on: DATABASE_URL; else the embedded one of a running `npm start`; else the embedded
 * one of the data directory, started for the time of the command. `close` ends what was started.
 */
export async function openDatabaseUrl(logger: Logger): Promise<{ url: string; close: () => Promise<void> }> {
  const config = readEnv(CliConfig);
  if (config.DATABASE_URL !== undefined) return { url: config.DATABASE_URL, close: async () => {} };
  const running = await readRuntimeFile(config.SLUICE_DATA_DIR);
  if (running !== undefined) return { url: running.databaseUrl, close: async () => {} };
  const server = await startEmbeddedPostgres({ dataDir: config.SLUICE_DATA_DIR, logger });
  return { url: server.connectionString, close: () => server.stop() };
}

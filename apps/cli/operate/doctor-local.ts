import { access, constants, readFile, statfs } from 'node:fs/promises';
import path from 'node:path';
import { compareMasterKeys } from '#libs/secrets/master-key.ts';
import { missingRequirement, pendingMigrations } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { eventsBehindMax, listSubscribers } from '#libs/event-log/subscriber.ts';
import { createLogDestination } from '#libs/kernel/logging/log-destination.ts';
import { createLogger, type Logger } from '#libs/kernel/logging/logger.ts';
import { ConfigurationError, readEnv } from '#libs/kernel/read-env.ts';
import { blobFolder, openBlobs } from '#apps/platform/blobs.ts';
import { toFileError } from '../terminal/file-problem.ts';
import { formatBytes } from '../terminal/quantities.ts';
import { CliConfig } from './config.ts';
import { readMasterKeys } from './keys.ts';
import { existsSync } from 'node:fs';
import { startEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { readRuntimeFile } from '#apps/standalone/files/runtime-file.ts';

/** The result of one check of `sluice doctor`. `hint` says how to fix a problem. */
export type Diagnosis = { check: string; state: 'ok' | 'warning' | 'problem'; message: string; hint?: string };

/** Enough for the results of a large batch. */
const freeBytesMin = 2 * 1_073_741_824;
/** The API alone can have 4,096 connections to providers, in addition to those of its clients. */
const openFilesMin = 16_384;
const databaseTimeoutMs = 10_000;
const lagSecondsMax = 60;

/**
 * Checks a server on its own machine: its files, system limits and database. Does not change anything. Expects the same
 * environment as the processes of the server.
 */
export async function* checkLocal(): AsyncGenerator<Diagnosis> {
  yield await attempt(
    'files',
    checkBlobs,
    'Set SLUICE_BLOBS or SLUICE_DATA_DIR as on the server, and check the owner of the folder.',
  );
  yield await attempt('open files', checkOpenFiles, 'Raise the limit of the server (ulimit -n, LimitNOFILE).');
  const logger = createLogger({ name: 'cli', level: 'silent' }, createLogDestination({ fd: 2 }));
  let database: Awaited<ReturnType<typeof openDatabaseUrl>>;
  try {
    database = await openDatabaseUrl({ mayCreate: false }, logger);
  } catch (error) {
    yield { check: 'database', state: 'problem', message: messageOf(error) };
    return;
  }
  const timeouts = { statementTimeoutMs: databaseTimeoutMs, transactionTimeoutMs: databaseTimeoutMs };
  const pool = createPool(
    { connectionString: database.url, max: 1, applicationName: 'sluice-doctor', ...timeouts },
    logger,
  );
  const db = createDatabase(pool);
  try {
    const answer = await attempt(
      'database',
      async () => {
        const startedMs = performance.now();
        const { rows } = await pool.query<{ server_version: string }>('show server_version');
        return `Postgres ${rows[0]?.server_version} answers in ${Math.round(performance.now() - startedMs)} ms`;
      },
      'Check that it is running and that DATABASE_URL is the same as on the server.',
    );
    yield answer;
    if (answer.state !== 'ok') return;
    const migrations = await attempt(
      'migrations',
      async () => {
        const required = await missingRequirement(db);
        if (required !== null) throw new Error(`the database needs a newer release, with migration ${required}`);
        const pending = await pendingMigrations(db);
        if (pending.length > 0) throw new Error(`pending: ${pending.join(', ')}`);
        return 'all applied';
      },
      'Run sluice migrate, or start the server, which also migrates.',
    );
    yield migrations;
    if (migrations.state !== 'ok') return;
    yield await attempt(
      'master key',
      async () => {
        await compareMasterKeys(db, await readMasterKeys());
        return 'matches the database';
      },
      'Restore it from a backup: without it, stored provider keys cannot be decrypted.',
    );
    for (const { name, eventsBehind, secondsBehind, failures, lastError } of await listSubscribers(db)) {
      const isLate = secondsBehind > lagSecondsMax || failures > 0;
      const behind = `${eventsBehind >= eventsBehindMax ? 'at least ' : ''}${eventsBehind} events behind`;
      yield {
        check: `subscriber`,
        state: isLate ? 'warning' : 'ok',
        message: `${name} is ${behind}${lastError === null ? '' : `: ${lastError}`}`,
        ...(isLate ? { hint: `Check that a worker is running. To retry now: sluice subscribers restart ${name}` } : {}),
      };
    }
  } finally {
    await pool.end();
    await database.close();
  }
}

async function attempt(check: string, look: () => Promise<string>, hint: string): Promise<Diagnosis> {
  try {
    return { check, state: 'ok', message: await look() };
  } catch (error) {
    return { check, state: 'problem', message: messageOf(error), hint };
  }
}

const messageOf = (error: unknown): string =>
  toFileError(error)?.message.replace(/\.$/, '') ??
  (error instanceof AggregateError && error.errors[0] instanceof Error
    ? error.errors[0].message
    : error instanceof Error
      ? error.message
      : String(error));

async function checkBlobs(): Promise<string> {
  const config = readEnv(CliConfig);
  const folder = blobFolder(config);
  if (folder === null) {
    await openBlobs(config);
    return `${config.SLUICE_BLOBS} can be used`;
  }
  await access(folder, constants.R_OK | constants.W_OK | constants.X_OK);
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  if (free < freeBytesMin) throw new Error(`${folder} has only ${formatBytes(free)} free`);
  return `${folder} is writable, ${formatBytes(free)} free`;
}

async function checkOpenFiles(): Promise<string> {
  if (process.platform !== 'linux') return 'not checked on this system';
  const limits = await readFile('/proc/self/limits', 'utf8');
  const text = /^Max open files\s+(\S+)/m.exec(limits)?.[1] ?? 'unknown';
  if (text !== 'unlimited' && Number(text) < openFilesMin)
    throw new Error(`this shell can open ${text} files, but a busy server needs ${openFilesMin}`);
  return `limit: ${text}`;
}

/**
 * The database that a command uses: SLUICE_DATABASE_DIRECT_URL or DATABASE_URL; otherwise the embedded one of a running `npm start`; otherwise the
 * embedded one in the data directory, which is started for the command. `close` stops the database if it was started here.
 * Throws ConfigurationError if there is none and `mayCreate` is false. Otherwise, a command in the wrong directory would
 * report on a new, empty database.
 */
export async function openDatabaseUrl(
  options: { mayCreate: boolean },
  logger: Logger,
): Promise<{ url: string; close: () => Promise<void> }> {
  const config = readEnv(CliConfig);
  const nothing = async (): Promise<void> => {};
  const given = config.SLUICE_DATABASE_DIRECT_URL ?? config.DATABASE_URL;
  if (given !== undefined) return { url: given, close: nothing };
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

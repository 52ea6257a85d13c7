import { access, constants, readFile, statfs } from 'node:fs/promises';
import path from 'node:path';
import { compareMasterKeys } from '#libs/secrets/master-key.ts';
import { missingRequirement, pendingMigrations } from '#libs/database/migrate.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { eventsBehindMax, listSubscribers } from '#libs/event-log/subscriber.ts';
import { createLogDestination } from '#libs/kernel/logging/log-destination.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { readEnv } from '#libs/kernel/read-env.ts';
import { blobFolder } from '../../platform/config.ts';
import { problemOfFile } from '../terminal/file-problem.ts';
import { bytesOf } from '../terminal/quantities.ts';
import { CliConfig } from './config.ts';
import { openDatabaseUrl } from './database-url.ts';
import { readMasterKeys } from './keys.ts';

/** One thing that `sluice doctor` looked at, here or on the server. `hint` says what to do about it. */
export type Diagnosis = { check: string; state: 'ok' | 'warning' | 'problem'; message: string; hint?: string };

/** Room for the results of a large batch. */
const freeBytesMin = 2 * 1_073_741_824;
/** The API alone may hold 4,096 connections to providers, beside those of its clients. */
const openFilesMin = 16_384;
const databaseTimeoutMs = 10_000;
const lagSecondsMax = 60;

/**
 * Checks a server on its own machine: the folder of its files, limits of the system, the database and what is in it. It
 * changes nothing. The processes of the server are expected to have the same environment.
 */
export async function* checkLocal(): AsyncGenerator<Diagnosis> {
  yield await attempt(
    'files',
    checkBlobs,
    'Set SLUICE_BLOBS or SLUICE_DATA_DIR as the server has it, and check who owns the folder.',
  );
  yield await attempt('open files', checkOpenFiles, 'Raise it where the server is started (ulimit -n, LimitNOFILE).');
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
      'Is it running, and is DATABASE_URL that of the server?',
    );
    yield answer;
    if (answer.state !== 'ok') return;
    const migrations = await attempt(
      'migrations',
      async () => {
        const required = await missingRequirement(db);
        if (required !== null)
          throw new Error(`the database needs a newer release, one that has migration ${required}`);
        const pending = await pendingMigrations(db);
        if (pending.length > 0) throw new Error(`${pending.join(', ')} are pending`);
        return 'all are applied';
      },
      'Run sluice migrate, or start the server, which does the same.',
    );
    yield migrations;
    if (migrations.state !== 'ok') return;
    yield await attempt(
      'master key',
      async () => {
        await compareMasterKeys(db, await readMasterKeys());
        return 'is the one that the database was set up with';
      },
      'Without it, stored provider keys cannot be decrypted: restore it from a backup.',
    );
    for (const { name, eventsBehind, secondsBehind, failures, lastError } of await listSubscribers(db)) {
      const isLate = secondsBehind > lagSecondsMax || failures > 0;
      const behind = `${eventsBehind >= eventsBehindMax ? 'at least ' : ''}${eventsBehind} events behind`;
      yield {
        check: `subscriber`,
        state: isLate ? 'warning' : 'ok',
        message: `${name} is ${behind}${lastError === null ? '' : `: ${lastError}`}`,
        ...(isLate ? { hint: `Is a worker running? sluice subscribers restart ${name} lets it try again.` } : {}),
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
  problemOfFile(error)?.message.replace(/\.$/, '') ??
  (error instanceof AggregateError && error.errors[0] instanceof Error
    ? error.errors[0].message
    : error instanceof Error
      ? error.message
      : String(error));

async function checkBlobs(): Promise<string> {
  const folder = path.resolve(blobFolder(readEnv(CliConfig)));
  await access(folder, constants.R_OK | constants.W_OK | constants.X_OK);
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  if (free < freeBytesMin) throw new Error(`${folder} has only ${bytesOf(free)} free`);
  return `${folder} is writable, ${bytesOf(free)} free`;
}

async function checkOpenFiles(): Promise<string> {
  if (process.platform !== 'linux') return 'not checked on this system';
  const limits = await readFile('/proc/self/limits', 'utf8');
  const text = /^Max open files\s+(\S+)/m.exec(limits)?.[1] ?? 'unknown';
  if (text !== 'unlimited' && Number(text) < openFilesMin)
    throw new Error(`this shell may open ${text} files, and a busy server needs ${openFilesMin}`);
  return `at most ${text} at once`;
}

import { randomBytes } from 'node:crypto';
import { rm } from 'node:fs/promises';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { allQueues } from '#apps/platform/queues.ts';
import { startEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { tenantRole } from '#libs/database/isolate-workspaces.ts';
import { migrate } from '#libs/database/migrate.ts';
import { createLogger, type Logger } from '#libs/kernel/logging/logger.ts';
import { createJobQueue, type AnyQueue } from '#libs/queue/job-queue.ts';
import { makeDatabaseFolder } from './database-folder.ts';

/** What tests get from `inject('postgres')`. Use test/postgres.ts instead of reading it. */
export type TestPostgres = {
  /** May create databases for the owner's role. */
  adminUrl: string;
  /** The migrated template of every test database, as seen by its owner, who is not a superuser if possible. */
  templateUrl: string;
};

declare module 'vitest' {
  export interface ProvidedContext {
    postgres: TestPostgres;
  }
}

/** What every test database contains, in this order. Each runs once, as the owner of the template. */
const prepareTemplate: ((connectionString: string, logger: Logger) => Promise<unknown>)[] = [
  (connectionString, logger) => migrate({ connectionString, logger }),
  (connectionString, logger) => installQueue(connectionString, allQueues, logger),
];

/** What killed runs left on a server of your own is dropped when it is older than this. */
const leftoverAgeMs = 6 * 3_600_000;

type Server = { adminUrl: string; stop(): Promise<unknown> };

/**
 * Vitest's global set-up: one server for the run, with one template database. DATABASE_URL: an existing server and a
 * role that may create databases. SLUICE_TEST_POSTGRES=containers: PostgreSQL 18 in Docker. Neither: the embedded one,
 * without fsync, in memory if there is plenty (test/database-folder.ts).
 */
export default async function setUpPostgres(project: TestProject): Promise<() => Promise<void>> {
  const logger = createLogger({ name: 'test-postgres', level: process.env.SLUICE_LOG_LEVEL || 'error' });
  const server = await startServer(logger);
  const run = `sluice_test_${Date.now().toString(36)}_${randomBytes(3).toString('hex')}`;
  try {
    await dropDatabases(server.adminUrl, isOldLeftover);
    const ownerUrl = await createOwner(server.adminUrl, run);
    const templateUrl = await createTemplate(server.adminUrl, ownerUrl, run, logger);
    project.provide('postgres', { adminUrl: server.adminUrl, templateUrl });
    return async () => {
      await dropDatabases(server.adminUrl, (name) => name.startsWith(run)).finally(() => server.stop());
    };
  } catch (error) {
    await server.stop();
    throw error;
  }
}

async function startServer(logger: Logger): Promise<Server> {
  const { DATABASE_URL: url, SLUICE_TEST_POSTGRES: kind } = process.env;
  if (kind === 'containers') return startContainer();
  if (kind) throw new Error(`SLUICE_TEST_POSTGRES is "${kind}"; it may be "containers" or absent.`);
  if (url) return { adminUrl: url, stop: async () => {} };
  const dataDir = await makeDatabaseFolder('sluice-test-');
  const server = await startEmbeddedPostgres({ dataDir, logger, durable: false, maxConnections: 300 });
  return {
    adminUrl: server.adminConnectionString,
    stop: () => server.stop().finally(() => rm(dataDir, { recursive: true, force: true })),
  };
}

async function startContainer(): Promise<Server> {
  const { PostgreSqlContainer } = await import('@testcontainers/postgresql'); // slow to load, rarely needed
  const container = await new PostgreSqlContainer('postgres:18')
    .withCommand(['postgres', '-c', 'fsync=off', '-c', 'full_page_writes=off', '-c', 'max_connections=300'])
    .start()
    .catch((error: unknown) => {
      throw new Error(
        'SLUICE_TEST_POSTGRES=containers needs a Docker daemon that can run the image postgres:18 ' +
          '(tools/docker-images makes it where no registry can be reached). Without the variable, the tests use the ' +
          'embedded Postgres.',
        { cause: error },
      );
    });
  return { adminUrl: container.getConnectionUri(), stop: () => container.stop() };
}

async function withClient<Result>(url: string, work: (client: pg.Client) => Promise<Result>): Promise<Result> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {}); // the query reports the error
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}

/**
 * The role that owns the test databases: a separate one without superuser rights, as in production, so that rights that
 * a migration revokes are really missing. If we may not create roles, the role that we have.
 */
async function createOwner(adminUrl: string, run: string): Promise<URL> {
  const owner = new URL(adminUrl);
  await withClient(adminUrl, async (client) => {
    const { rows } = await client.query<{ rolsuper: boolean }>(
      'select rolsuper from pg_roles where rolname = current_user',
    );
    if (!rows[0]?.rolsuper) return;
    owner.username = run;
    owner.password = randomBytes(16).toString('hex');
    await client.query(`create role ${run} login password '${owner.password}'`);
    const tenants = await client.query('select from pg_roles where rolname = $1', [tenantRole]);
    if (tenants.rowCount === 0) await client.query(`create role ${tenantRole} nologin`);
    await client.query(`grant ${tenantRole} to ${run}`);
  });
  return owner;
}

async function createTemplate(adminUrl: string, ownerUrl: URL, run: string, logger: Logger): Promise<string> {
  const template = new URL(ownerUrl);
  template.pathname = `/${run}`;
  const role = decodeURIComponent(template.username);
  await withClient(adminUrl, (client) => client.query(`create database ${run} owner ${client.escapeIdentifier(role)}`));
  for (const prepare of prepareTemplate) await prepare(template.href, logger);
  return template.href;
}

function isOldLeftover(name: string): boolean {
  const [, time] = /^sluice_test_([0-9a-z]+)_/.exec(name) ?? [];
  return time !== undefined && Number.parseInt(time, 36) < Date.now() - leftoverAgeMs;
}

/** Drops databases with their sessions, and the role of the same name that owned them. */
async function dropDatabases(adminUrl: string, isMeant: (name: string) => boolean): Promise<void> {
  await withClient(adminUrl, async (client) => {
    const databases = await client.query<{ name: string }>('select datname as name from pg_database');
    for (const { name } of databases.rows.filter((row) => isMeant(row.name))) {
      await client.query(`drop database if exists ${client.escapeIdentifier(name)} with (force)`);
    }
    const roles = await client.query<{ name: string }>('select rolname as name from pg_roles');
    for (const { name } of roles.rows.filter((row) => isMeant(row.name))) {
      await client.query(`drop role if exists ${client.escapeIdentifier(name)}`);
    }
  });
}

/** Creates pg-boss's schema and the queues in a database, as the first process that uses it would. */
async function installQueue(connectionString: string, queues: readonly AnyQueue[], logger: Logger): Promise<void> {
  const queue = createJobQueue({ connectionString, role: 'sender', queues, logger, poolSizeMax: 1 });
  await queue.start?.();
  await queue.stop?.();
}

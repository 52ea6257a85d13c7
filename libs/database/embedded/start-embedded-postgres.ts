import { rm } from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import path from 'node:path';
import pg from 'pg';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { tenantRole } from '../isolate-workspaces.ts';
import { findBinaries, locatePackagedBinaries, type PackagedBinaries } from './binaries.ts';
import {
  assertSameVersion,
  initialiseCluster,
  makeClusterHome,
  openCluster,
  readClusterFile,
  saveClusterFile,
  superuser,
  type Cluster,
} from './cluster.ts';
import { acquireDirectoryLock, type DirectoryLock } from './directory-lock.ts';
import { embeddedPostgresError } from './embedded-error.ts';
import { launchServer, type RunningServer, type ServerExit } from './launch-server.ts';

export type EmbeddedPostgresOptions = {
  /** Sluice's data directory. The database is created in its `postgres` folder. Created if it is missing. */
  dataDir: string;
  logger: Logger;
  /**
   * false for throw-away test databases: no fsync. A killed process still loses no data, but a power failure can lose some.
   */
  durable?: boolean;
  /** The maximum connections of all processes together. Default 120: a dozen processes with ten each. */
  maxConnections?: number;
  /**
   * As root: the user to run the server as. Default: the data's owner, otherwise the first user in server-user.ts that
   * exists.
   */
  serverUser?: string;
  /** As root: the place for the data if that user cannot reach `dataDir`. Default /var/lib/sluice. */
  outsideDir?: string;
  /**
   * The place for a copy of the binaries if those in node_modules cannot be run. Default: a cache folder of the user.
   */
  cacheDir?: string;
  /** The source of the binaries. Default: the npm package of this platform. */
  packaged?: PackagedBinaries;
  /** How long another Sluice process can hold the data directory's lock while it stops. Default 5 s. */
  lockWaitMs?: number;
  /** How long the server can take to become ready. After a crash it replays its log first. Default 5 min. */
  startTimeoutMs?: number;
  /**
   * Cancels the start when it aborts. A server that replays its log is stopped in order, and continues at the next
   * start.
   */
  signal?: AbortSignal;
  /** How long an orderly stop can take before it is forced, which costs a replay at the next start. Default 20 s. */
  stopTimeoutMs?: number;
};

export type EmbeddedPostgres = {
  /**
   * Database `sluice` as its owner, the role `sluice`, which is not a superuser. It stays the same after a restart if
   * the port is free.
   */
  connectionString: string;
  /** Database `postgres` as the superuser; for tests and maintenance, never for the application. */
  adminConnectionString: string;
  /** Process id of the postmaster. */
  pid: number;
  /**
   * Calls the listener when the server ends without `stop`, or immediately if it has already ended. The listener can
   * start it again.
   */
  onExit(listener: (exit: ServerExit) => void): void;
  /** Ends the server in order (fast shutdown, then by force) and releases the data directory. Idempotent. */
  stop(): Promise<void>;
};

const role = 'sluice';

/**
 * Starts the Postgres that is bundled with Sluice, on a free port of 127.0.0.1, and returns when it answers. On the
 * first start it creates the cluster, the role and the database. Works as root (the server then runs as another user),
 * as an ordinary user, with npm's --ignore-scripts, and below folders that the server's user cannot enter.
 *
 * Only one process can run the server of a data directory. A server that a killed process left behind is stopped first,
 * whatever its postmaster.pid contains. If the process is alive, its server is not touched and the start is refused.
 * The server ends in order soon after this process dies. Throws GatewayError `embedded_postgres_failed`, or the reason
 * of the signal.
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const { dataDir, logger, durable = true } = options;
  const ownUid = process.getuid?.();
  if (ownUid === undefined) {
    throw embeddedPostgresError('The embedded Postgres runs on Linux and macOS only. Set DATABASE_URL.');
  }
  const home = await makeClusterHome(dataDir);
  const lock = await lockHome(home, options.lockWaitMs ?? 5_000);
  try {
    const cluster = await openCluster({
      home,
      ownUid,
      serverUser: options.serverUser,
      outsideDir: options.outsideDir ?? '/var/lib/sluice',
      logger,
    });
    const binaries = await findBinaries({
      packaged: options.packaged ?? locatePackagedBinaries(),
      identity: cluster.identity,
      cacheDirs: options.cacheDir === undefined ? defaultCacheDirs(ownUid, cluster) : [options.cacheDir],
      logger,
    });
    if (cluster.isNew) await initialiseCluster(cluster, binaries, durable);
    await assertSameVersion(cluster, binaries);
    options.signal?.throwIfAborted();
    const server = await launchServer({
      cluster,
      program: binaries.postgres,
      durable,
      maxConnections: options.maxConnections ?? 120,
      startTimeoutMs: options.startTimeoutMs ?? 300_000,
      stopTimeoutMs: options.stopTimeoutMs ?? 20_000,
      signal: options.signal,
      logger,
    });
    return await completeStart(cluster, server, lock);
  } catch (error) {
    lock.release();
    throw error;
  }
}

async function lockHome(home: string, waitMs: number): Promise<DirectoryLock> {
  const lock = await acquireDirectoryLock(path.join(home, 'lock'), waitMs);
  if (lock !== undefined) return lock;
  throw embeddedPostgresError(
    `Another Sluice process is using the database in ${home}. Stop it first, or choose another SLUICE_DATA_DIR.`,
  );
}

/** The last one always works: the server's user can reach the cluster's own folder. The others are shared. */
function defaultCacheDirs(ownUid: number, { file, home }: Cluster): string[] {
  const shared = ownUid === 0 ? '/var/cache/sluice' : path.join(homedir(), '.cache', 'sluice');
  return [shared, path.join(tmpdir(), `sluice-cache-${ownUid}`), path.join(file.outside ?? home, 'binaries')];
}

async function completeStart(cluster: Cluster, server: RunningServer, lock: DirectoryLock): Promise<EmbeddedPostgres> {
  const { file } = cluster;
  const address = `127.0.0.1:${server.port}`;
  const adminConnectionString = `postgres://${superuser}:${file.superuserPassword}@${address}/postgres`;
  try {
    await createRoleAndDatabase(adminConnectionString, file.applicationPassword);
    if (!file.initialised || file.port !== server.port) {
      await saveClusterFile(cluster, { initialised: true, port: server.port });
    }
  } catch (error) {
    await server.stop();
    throw error;
  }
  // The directory is released as soon as the server has ended, so that a listener of onExit can start it again.
  void server.exited.then(() => lock.release());
  return {
    connectionString: `postgres://${role}:${file.applicationPassword}@${address}/${role}`,
    adminConnectionString,
    pid: server.pid,
    onExit: (listener) =>
      void server.exited.then((exit) => {
        if (!exit.requested) listener(exit);
      }),
    stop: async () => {
      await server.stop();
      lock.release();
    },
  };
}

/** Runs on each start, so that a first start that was killed halfway is completed by the second. */
async function createRoleAndDatabase(connectionString: string, password: string): Promise<void> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => {}); // The query below reports it.
  await client.connect();
  try {
    const roles = await client.query('select from pg_roles where rolname = $1', [role]);
    if (roles.rowCount === 0)
      await client.query(`create role ${role} login password ${client.escapeLiteral(password)}`);
    // The role for statements of one workspace (libs/database/isolate-workspaces.ts). The application cannot create
    // roles.
    const tenants = await client.query('select from pg_roles where rolname = $1', [tenantRole]);
    if (tenants.rowCount === 0) await client.query(`create role ${tenantRole} nologin`);
    await client.query(`grant ${tenantRole} to ${role}`);
    const databases = await client.query('select from pg_database where datname = $1', [role]);
    if (databases.rowCount === 0) await client.query(`create database ${role} owner ${role}`);
  } finally {
    await client.end();
  }
}

/**
 * Deletes the database of a data directory, even if it was placed outside; for temporary directories. Throws when a
 * Sluice process still runs it.
 */
export async function removeEmbeddedPostgres(dataDir: string): Promise<void> {
  const home = await makeClusterHome(dataDir);
  const lock = await lockHome(home, 5_000);
  try {
    const file = await readClusterFile(home);
    if (file?.outside !== undefined) await rm(file.outside, { recursive: true, force: true });
    await rm(home, { recursive: true, force: true });
  } finally {
    lock.release();
  }
}

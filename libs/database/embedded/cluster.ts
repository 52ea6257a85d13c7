import { createHash, randomBytes } from 'node:crypto';
import {
  chmod,
  chown,
  mkdir,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  stat,
  statfs,
  writeFile,
} from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Binaries } from './binaries.ts';
import { embeddedPostgresError } from './embedded-error.ts';
import { runProgram, type Identity } from './run-program.ts';
import { chooseServerUser } from './server-user.ts';

// <dataDir>/postgres/
//   cluster.json   0600, the state that a restart needs
//   lock           locked while a Sluice process runs this server
//   data/          Postgres's data directory, owned by the user that the server runs as
//
// If this process runs as root, the server runs as another user. If that user cannot reach <dataDir> (a project below
// /root, mode 0700), the data directory is created in <outsideDir>/postgres-<random> instead, and cluster.json contains
// its path. Root's home must not be opened to everyone, and a path made from the project's name would bring an old
// database back after the data directory was deleted for a fresh start.

const ClusterFile = z.object({
  /** The absolute path of the folder that contains `data/`, if it is not the folder of this file. */
  outside: z.string().optional(),
  /**
   * Set by the first start that succeeds. From then on, a missing data directory is a loss to report, not a first
   * start.
   */
  initialised: z.boolean(),
  superuserPassword: z.string(),
  applicationPassword: z.string(),
  /** The last port, used again when it is free, so that clients that know the old address find the server. */
  port: z.number().int().optional(),
});
export type ClusterFile = z.output<typeof ClusterFile>;

export type Cluster = {
  /** The `postgres` folder in Sluice's data directory. */
  home: string;
  /** Postgres's own data directory. */
  dataDir: string;
  identity: Identity;
  file: ClusterFile;
  /**
   * Shown in the title of each of the server's processes. It is made from the path, so that it identifies the server.
   */
  name: string;
  isNew: boolean;
};

export const superuser = 'postgres';

/** Creates `<dataDir>/postgres` if it is missing and returns its path without symbolic links. */
export async function makeClusterHome(dataDir: string): Promise<string> {
  const home = path.join(dataDir, 'postgres');
  try {
    await mkdir(home, { recursive: true });
    await chmod(home, 0o711);
    return await realpath(home);
  } catch (error) {
    throw embeddedPostgresError(
      `The folder ${home} cannot be created or belongs to another user. ` +
        'Start Sluice as that user or choose another SLUICE_DATA_DIR.',
      error,
    );
  }
}

type OpenOptions = {
  home: string;
  ownUid: number;
  serverUser?: string | undefined;
  outsideDir: string;
  logger: Logger;
};

/**
 * Reads the state of the cluster, or decides where a new one is created and which user runs it. It writes cluster.json
 * first, so that a crash at any point can be recovered from. Call it with the home's lock held. Throws when the data is
 * missing, belongs to another user, or belongs to another Sluice data directory.
 */
export async function openCluster({ home, ownUid, serverUser, outsideDir, logger }: OpenOptions): Promise<Cluster> {
  const known = await readClusterFile(home);
  const knownDataDir = path.join(known?.outside ?? home, 'data');
  const owner = await stat(knownDataDir).catch(() => undefined);
  if (known?.initialised && owner === undefined) {
    throw embeddedPostgresError(
      `The database that belongs to ${home} is missing: ${knownDataDir} does not exist. Restore it, or delete ${home} to start with an empty database.`,
    );
  }
  if (known === undefined && owner !== undefined) {
    throw embeddedPostgresError(
      `${home}/cluster.json is missing. The database cannot be used without the passwords in it. Restore the file, or delete the folder to start with an empty database.`,
    );
  }
  const identity = await chooseServerUser({
    ownUid,
    owner: owner && { uid: owner.uid, gid: owner.gid },
    serverUser,
    dataDir: knownDataDir,
  });
  const file = known ?? {
    ...((await canEnter(home, identity)) ? {} : { outside: await newOutsideFolder(outsideDir, identity, logger) }),
    initialised: false,
    superuserPassword: randomBytes(24).toString('hex'),
    applicationPassword: randomBytes(24).toString('hex'),
  };
  if (known === undefined) await writeClusterFile(home, file);
  if (file.outside !== undefined) await claimOutsideFolder(file.outside, home);
  const dataDir = path.join(file.outside ?? home, 'data');
  const name = `sluice-${createHash('sha256').update(dataDir).digest('hex').slice(0, 12)}`;
  return { home, dataDir, identity, file, name, isNew: owner === undefined };
}

/**
 * Creates the data directory. initdb writes to a temporary folder next to it, which is then renamed, so that a killed
 * start leaves no incomplete directory. Text is UTF-8, sorted by code point by Postgres itself: no upgrade of the
 * system's C library can change the order under an index, and no locale needs to be installed.
 */
export async function initialiseCluster(cluster: Cluster, binaries: Binaries, durable: boolean): Promise<void> {
  const { dataDir, identity, file } = cluster;
  const parent = path.dirname(dataDir);
  // Every attempt has a new name, because the initdb of a killed start could still be writing to its folder.
  const temporary = `${dataDir}.new-${randomBytes(4).toString('hex')}`;
  const passwordFile = path.join(parent, 'initdb-password');
  for (const name of await readdir(parent)) {
    if (name.startsWith('data.new-'))
      await rm(path.join(parent, name), { recursive: true, force: true, maxRetries: 5 });
  }
  await assertRoom(parent);
  await mkdir(temporary, { mode: 0o700 });
  await writeFile(passwordFile, file.superuserPassword, { mode: 0o600 });
  try {
    await giveTo(identity, temporary, passwordFile);
    const { ok, output } = await runProgram(
      binaries.initdb,
      [
        `--pgdata=${temporary}`,
        `--username=${superuser}`,
        `--pwfile=${passwordFile}`,
        '--auth=scram-sha-256',
        '--encoding=UTF8',
        '--locale=C',
        '--locale-provider=builtin',
        '--builtin-locale=C.UTF-8',
        '--data-checksums',
        ...(durable ? [] : ['--no-sync']),
      ],
      { identity },
    );
    if (!ok) throw embeddedPostgresError(`The database could not be created in ${dataDir}: ${explainInitdb(output)}`);
    await rename(temporary, dataDir);
  } finally {
    await rm(passwordFile, { force: true });
    await rm(temporary, { recursive: true, force: true });
  }
}

/** A new database takes 45 MB, and its write-ahead log grows immediately. */
const roomMb = 100;

async function assertRoom(folder: string): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  const freeMb = Math.floor((bavail * bsize) / 1_048_576);
  if (freeMb >= roomMb) return;
  throw embeddedPostgresError(
    `The disk of ${folder} has ${freeMb} MB of free space, but a new database needs ${roomMb} MB. ` +
      'Free some space, or choose another SLUICE_DATA_DIR.',
  );
}

/** The problem that initdb reports, without its account of the previous steps. */
function explainInitdb(whole: string): string {
  const problems = whole.split('\n').filter((line) => /(?:error|FATAL|PANIC|hint|DETAIL):/.test(line));
  const output = problems.length === 0 ? whole : problems.join('\n');
  if (!output.includes('could not look up effective user ID')) return output;
  return `${output}\nThis process runs under a user ID without a name. Add the user to /etc/passwd, or set DATABASE_URL.`;
}

/**
 * The newest release's binaries cannot read an older major version's files. Postgres's own message would be less
 * helpful.
 */
export async function assertSameVersion(cluster: Cluster, binaries: Binaries): Promise<void> {
  const found = (await readFile(path.join(cluster.dataDir, 'PG_VERSION'), 'utf8')).trim();
  if (found === binaries.version) return;
  throw embeddedPostgresError(
    `The database in ${cluster.dataDir} was created by PostgreSQL ${found}, but this release of Sluice includes PostgreSQL ${binaries.version}. Start the previous release, dump the database with pg_dump, and restore it into a new data directory.`,
  );
}

/** Changes cluster.json, in memory and on disk. */
export async function saveClusterFile(cluster: Cluster, change: Partial<ClusterFile>): Promise<void> {
  Object.assign(cluster.file, change);
  await writeClusterFile(cluster.home, cluster.file);
}

/** The content of cluster.json in this folder; undefined when there is none. */
export async function readClusterFile(home: string): Promise<ClusterFile | undefined> {
  const file = path.join(home, 'cluster.json');
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw embeddedPostgresError(
      `${file} cannot be read. It belongs to the user who created the database. Start Sluice as that user.`,
      error,
    );
  }
  try {
    return ClusterFile.parse(JSON.parse(text));
  } catch (error) {
    throw embeddedPostgresError(`${file} is damaged. Restore it from a backup.`, error);
  }
}

async function writeClusterFile(home: string, file: ClusterFile): Promise<void> {
  const target = path.join(home, 'cluster.json');
  await writeFile(`${target}.new`, JSON.stringify(file), { mode: 0o600, flush: true });
  await rename(`${target}.new`, target);
}

/** Whether the user can reach the folder. This is tried, because modes, ACLs and mounts all have an effect. */
async function canEnter(folder: string, identity: Identity): Promise<boolean> {
  return identity.uid === undefined || (await runProgram('/bin/sh', ['-c', 'cd "$0"', folder], { identity })).ok;
}

async function newOutsideFolder(outsideDir: string, identity: Identity, logger: Logger): Promise<string> {
  if ((await mkdir(outsideDir, { recursive: true })) !== undefined) await chmod(outsideDir, 0o711);
  const folder = path.join(outsideDir, `postgres-${randomBytes(8).toString('hex')}`);
  await mkdir(folder);
  await chmod(folder, 0o711);
  if (!(await canEnter(folder, identity))) {
    await rm(folder, { recursive: true, force: true });
    throw embeddedPostgresError(
      `Postgres cannot run as root, and the user ID ${identity.uid} has no access to the data directory or to ${outsideDir}. Choose a SLUICE_DATA_DIR that other users can enter (mode 0711), or set DATABASE_URL.`,
    );
  }
  logger.info(
    { directory: folder },
    'the database is stored outside the data directory because its user has no access to that directory',
  );
  return folder;
}

/** A data directory that was moved brings its cluster along. A copied one must not share the original's. */
async function claimOutsideFolder(folder: string, home: string): Promise<void> {
  const ownerFile = path.join(folder, 'owner');
  const owner = await readFile(ownerFile, 'utf8').catch(() => home);
  if (owner !== home && (await readClusterFile(owner).catch(() => undefined))?.outside === folder) {
    throw embeddedPostgresError(
      `The database in ${folder} belongs to ${owner}, and ${home} seems to be a copy of it. To start with an empty database, delete ${home}.`,
    );
  }
  await writeFile(ownerFile, home, { mode: 0o600 });
}

async function giveTo({ uid, gid }: Identity, ...paths: string[]): Promise<void> {
  if (uid === undefined || gid === undefined) return;
  for (const item of paths) await chown(item, uid, gid);
}

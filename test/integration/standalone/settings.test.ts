import { spawnSync } from 'node:child_process';
import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import packageFile from '../../../package.json' with { type: 'json' };

const program = path.resolve(import.meta.dirname, '../../../apps/standalone/main.ts');
let folder = '';

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-settings-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
});

/** Runs `npm start` in the folder of the test. Each of these starts ends by itself, before a database is started. */
function start(args: string[], env: Record<string, string> = {}) {
  const { PATH = '' } = process.env;
  return new Promise<{ code: number; stdout: string; stderr: string }>((resolve) => {
    const child = execFile(
      process.execPath,
      [program, ...args],
      { cwd: folder, env: { PATH, ...env } },
      (_error, stdout, stderr) => resolve({ code: child.exitCode ?? -1, stdout, stderr }),
    );
  });
}

test('--help lists the usual settings, --version prints the release, and other arguments are refused', async () => {
  const [help, version, rubbish] = await Promise.all([start(['--help']), start(['--version']), start(['rubbish'])]);
  expect([help.code, version.code, rubbish.code]).toEqual([0, 0, 2]);
  expect(help.stdout).toMatch(/PORT=8787 .*SLUICE_EGRESS_ALLOW=/s);
  expect(version.stdout.trim()).toBe(packageFile.version);
  expect(rubbish.stderr).toContain('npm start -- --help');
});

test('settings come from .env, and variables of the process win', async () => {
  await writeFile(path.join(folder, '.env'), 'PORT=99999\nSLUICE_LOG_LEVEL=loud\n');
  const { code, stderr } = await start([], { SLUICE_LOG_LEVEL: 'whisper', PORT: '70000' });
  expect(code).toBe(1);
  expect(stderr).toContain('PORT: must be a whole number');
  const mended = await start([], { SLUICE_LOG_LEVEL: 'info' });
  expect([mended.stderr.includes('PORT:'), mended.stderr.includes('SLUICE_LOG_LEVEL:')]).toEqual([true, false]);
});

test('a .env that cannot be read ends the start with one sentence', async () => {
  await mkdir(path.join(folder, '.env'));
  const { code, stderr } = await start([]);
  expect([code, stderr]).toEqual([
    1,
    '.env in the current folder cannot be read. It must be a text file of NAME=value lines.\n',
  ]);
});

test('a data directory that cannot be, and a variable that is misspelled, get one sentence each', async () => {
  await writeFile(path.join(folder, 'file'), '');
  const impossible = path.join(folder, 'file', 'data');
  const { code, stdout, stderr } = await start([], { SLUICE_DATA_DIR: impossible, SLUICE_EGRES_ALLOW: 'x' });
  expect([code, stdout]).toEqual([1, 'starting sluice\n']);
  expect(stderr.trim().split('\n')).toEqual([
    'SLUICE_EGRES_ALLOW is not a variable of Sluice and has no effect. Did you mean SLUICE_EGRESS_ALLOW?',
    `The data directory ${impossible} is not writable (ENOTDIR). Choose another SLUICE_DATA_DIR.`,
  ]);
});

test('a disk without room for a database gets one sentence', async ({ skip }) => {
  const disk = path.join(folder, 'disk');
  // As root, the database is put elsewhere if its own user cannot enter the folder.
  await chmod(folder, 0o711);
  await mkdir(disk);
  const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=40m', 'tmpfs', disk]);
  if (mounted.status !== 0) skip('needs the right to mount a file system');
  try {
    const { code, stderr } = await start([], { SLUICE_DATA_DIR: path.join(disk, 'data'), PORT: '0' });
    expect([code, stderr.replace(/ \d+ MB of free/, ' few MB of free')]).toEqual([
      1,
      `The disk of ${disk}/data/postgres has few MB of free space, but a new database needs 100 MB. ` +
        'Free some space, or choose another SLUICE_DATA_DIR.\n',
    ]);
  } finally {
    spawnSync('umount', [disk]);
  }
});

import { execFile } from 'node:child_process';
import { mkdir, stat, symlink } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { beforeAll, expect, test } from 'vitest';
import { chatLines, toJsonl } from './batch-kit.ts';
import { setUp } from './cli-kit.ts';

// Files and pipes that the command line cannot write, or must not.

const at = setUp();
const { write, read } = at;

const input = toJsonl(chatLines(3));
let id = '';
beforeAll(async () => {
  const { stderr } = await at.cli.run(['batch', 'run', await write('in.jsonl', input), '-o', 'out.jsonl']);
  id = /batch_[0-9a-f]{32}/.exec(stderr)?.[0] ?? '';
});

test('results are written into a pipe that has a name, which stays a pipe', async () => {
  const pipe = path.join(at.cli.folder, 'pipe');
  await promisify(execFile)('mkfifo', [pipe]);
  const reader = promisify(execFile)('cat', [pipe]);
  expect(await at.cli.run(['batch', 'results', id, '-o', 'pipe'])).toMatchObject({ code: 0 });
  expect((await reader).stdout).toBe(await read('out.jsonl'));
  expect((await stat(pipe)).isFIFO()).toBe(true);
  const since = ['--since', '1h', '-o', 'pipe'];
  const exported = promisify(execFile)('cat', [pipe]);
  expect(await at.cli.run(['logs', 'export', ...since])).toMatchObject({ code: 0 });
  await exported;
  expect((await stat(pipe)).isFIFO()).toBe(true);
});

test('a batch does not start when its results could not be written, and never overwrites its input', async () => {
  await write('first.jsonl', input);
  await mkdir(path.join(at.cli.folder, 'folder'));
  const before = (await at.cli.run(['batch', 'list'])).stdout;
  const refused = async (...args: string[]) => {
    const { code, stdout, stderr } = await at.cli.run(['batch', 'run', 'first.jsonl', '--again', ...args]);
    expect(stdout).toBe('');
    return `${code} ${stderr}`;
  };
  expect(await refused('-o', 'first.jsonl')).toBe('2 error: first.jsonl cannot be written: it is the input file.\n');
  expect(await refused('--errors', './folder/../first.jsonl')).toMatch(/^2 error: .*: it is the input file\.\n$/);
  expect(await refused('-o', 'a', '--errors', './a')).toBe(
    '2 error: ./a cannot be written: another option names the same file.\n',
  );
  expect(await refused('-o', 'folder')).toBe('1 error: folder is a folder. Name a file in it.\n');
  expect(await refused('-o', 'none/a')).toBe('1 error: none/a cannot be written: its folder does not exist.\n');
  expect(await refused('-o', 'first.jsonl/a')).toBe(
    '1 error: first.jsonl/a cannot be written: a part of its path is not a folder.\n',
  );
  expect(await read('first.jsonl')).toBe(input);
  expect((await at.cli.run(['batch', 'list'])).stdout).toBe(before);
});

const hasFullDevice = (await stat('/dev/full').catch(() => null))?.isCharacterDevice() ?? false;

test.skipIf(!hasFullDevice)('a disk that is full is one sentence, for a file as for stdout', async () => {
  const toFile = await at.cli.run(['batch', 'results', id, '-o', '/dev/full']);
  expect(toFile).toEqual({ code: 1, stdout: '', stderr: 'error: /dev/full cannot be written: the disk is full.\n' });
  const redirected = await at.cli.run(['batch', 'list'], { redirectTo: '/dev/full' });
  expect(redirected).toEqual({ code: 1, stdout: '', stderr: 'error: stdout cannot be written: the disk is full.\n' });
});

test('a reader that goes away ends a command without a word', async () => {
  const { stderr } = await at.cli.run(['batch', 'results', id], { onStart: (child) => child.stdout?.destroy() });
  expect(stderr).toBe('');
});

test('a batch runs where nothing can be remembered, and says so', async () => {
  await write('file', '');
  const env = { XDG_STATE_HOME: path.join(at.cli.folder, 'file') };
  const { code, stdout, stderr } = await at.cli.run(['batch', 'run', await write('in.jsonl', input), '--again'], {
    env,
  });
  expect([code, stdout.trimEnd().split('\n').length]).toEqual([0, 3]);
  expect(stderr).toMatch(/^warning: repeating the command will not find this batch, because .* is not a folder\.\n/);
  expect(stderr.match(/warning/g)).toHaveLength(1);
  await symlink('nowhere/at/all', path.join(at.cli.folder, 'sluice'));
  const login = await at.cli.run(['login', '--server', at.platform.baseUrl], {
    env: { XDG_CONFIG_HOME: at.cli.folder },
    stdin: at.platform.adminKey,
  });
  expect([login.code, login.stderr]).toEqual([
    1,
    expect.stringMatching(/^error: .*profiles\.json cannot be written: .*\n {2}Nothing was stored\./),
  ]);
});

test('other commands that write files say what keeps them from it', async () => {
  await write('plain', '');
  for (const command of [
    ['logs', 'export', '--since', '1h', '-o', 'plain/a'],
    ['files', 'download', 'file-any', '-o', 'plain/a'],
    ['export', '-d', 'plain/a'],
  ]) {
    const { code, stderr } = await at.cli.run(command);
    expect([code, stderr]).toEqual([
      1,
      expect.stringMatching(/^error: plain\/a\S* cannot be written: a part of its path/),
    ]);
  }
  expect((await at.cli.run(['log-exports', 'list'])).stdout.trim().split('\n')).toHaveLength(1);
});

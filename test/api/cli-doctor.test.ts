import { execFile } from 'node:child_process';
import { chmod, mkdir } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { beforeAll, expect, test } from 'vitest';
import { version } from '#libs/kernel/version.ts';
import { setUp } from './cli-kit.ts';

// `sluice doctor` and `sluice completion`.

const at = setUp({ worker: false });
beforeAll(async () => {
  await mkdir(path.join(at.platform.dataDir, 'blobs'), { recursive: true });
});

const examine = async (args: string[], env: Record<string, string> = {}) => {
  const { code, stdout, stderr } = await at.cli.run(['doctor', ...args], { env });
  expect(stderr).toBe('');
  const checks = stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as { check: string; state: string; message: string; hint?: string });
  return { code, checks, states: checks.map(({ check, state }) => `${check}: ${state}`) };
};

test('a server and a key that work are fine in every respect', async () => {
  const { code, checks, states } = await examine([]);
  expect(code).toBe(0);
  expect(states).toEqual(['server: ok', 'ready: ok', 'clock: ok', 'key: ok', 'scopes: ok', 'version: ok']);
  expect(checks.at(-1)?.message).toBe(version);
  const table = await at.cli.run(['doctor', '--table']);
  expect(table.stdout).toMatch(/^ok {7}server {7}http:\/\/127\.0\.0\.1:\d+ \(SLUICE_URL\) answers in \d+ ms\n/);
});

test('what is wrong is a line with what to do, and exit code 1', async () => {
  const wrongKey = await examine([], { SLUICE_API_KEY: 'sk-wrong' });
  expect([wrongKey.code, wrongKey.states.at(-1)]).toEqual([1, 'key: problem']);
  expect(wrongKey.checks.at(-1)?.hint).toContain('sluice login');
  const away = await examine(['--server', 'http://127.0.0.1:9']);
  expect([away.code, away.states]).toEqual([1, ['server: problem']]);
  const made = await at.cli.run(['keys', 'create', '--set', 'name=few', '--set', 'scopes=["batches.read"]']);
  const { key } = JSON.parse(made.stdout) as { key: string };
  const few = await examine([], { SLUICE_API_KEY: key });
  expect([few.code, few.checks.find(({ check }) => check === 'scopes')?.message]).toEqual([
    0,
    'the key lacks batches.write, files.read, files.write',
  ]);
});

test('profiles that others can read are a problem', async () => {
  const server = new URL(at.platform.baseUrl).origin;
  expect((await at.cli.run(['login', '--server', server], { stdin: at.platform.adminKey })).code).toBe(0);
  await chmod(path.join(at.cli.folder, '.config/sluice/profiles.json'), 0o644);
  const { code, states } = await examine([]);
  expect([code, states[0]]).toEqual([1, 'profiles: problem']);
});

test('on the machine of the server, its database, files, keys and subscribers are looked at', async () => {
  const { states } = await examine(['--local'], at.platform.environment);
  expect(states).toEqual(expect.arrayContaining(['database: ok', 'migrations: ok', 'master key: ok']));
  expect(states.filter((state) => state.startsWith('files: '))).toHaveLength(1);
  const wrong = { ...at.platform.environment, SLUICE_MASTER_KEY: Buffer.alloc(32, 7).toString('base64') };
  const otherKey = await examine(['--local'], wrong);
  expect([otherKey.code, otherKey.states]).toEqual([1, expect.arrayContaining(['master key: problem'])]);
  const noFiles = await examine(['--local'], { ...at.platform.environment, SLUICE_BLOBS: 'file:/nowhere/at/all' });
  expect([noFiles.code, noFiles.states[0]]).toEqual([1, 'files: problem']);
  const noDatabase = await examine(['--local'], {
    ...at.platform.environment,
    DATABASE_URL: 'postgres://127.0.0.1:9/none',
  });
  expect([noDatabase.code, noDatabase.states.at(-1)]).toEqual([1, 'database: problem']);
});

test('the completion of bash knows commands, subcommands and options', async () => {
  const script = (await at.cli.run(['completion', 'bash'])).stdout;
  const complete = async (...words: string[]): Promise<string[]> => {
    const last = words.length;
    const text = `${script}\nCOMP_WORDS=(sluice ${words.map((word) => `"${word}"`).join(' ')})\nCOMP_CWORD=${last}\n_sluice\necho "\${COMPREPLY[@]}"`;
    return (await promisify(execFile)('bash', ['-c', text])).stdout.trim().split(' ');
  };
  expect(await complete('bat')).toEqual(['batch']);
  expect(await complete('batch', 're')).toEqual(expect.arrayContaining(['results', 'retry', 'resume']));
  expect(await complete('batch', 'run', '--ag')).toEqual(['--again']);
  expect(await complete('batch', 'run', 'in.jsonl', '--out')).toEqual(['--output']);
  for (const shell of ['zsh', 'fish']) {
    const { code, stdout } = await at.cli.run(['completion', shell]);
    expect([code, stdout]).toEqual([0, expect.stringContaining('virtual-keys')]);
  }
  expect((await at.cli.run(['completion', 'tcsh'])).code).toBe(2);
});

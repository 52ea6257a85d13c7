import { spawn } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { chown, mkdir, rm } from 'node:fs/promises';
import { once } from 'node:events';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { makeDatabaseFolder } from '#test/database-folder.ts';
import { eventually } from '#test/eventually.ts';
import { freePort } from '#test/free-port.ts';
import { readCommands } from '#test/page-commands.ts';
import { chatLines, createBatch, ended, resultsOf } from '../../api/batch-kit.ts';
import { projectFolder } from './app-process.ts';
import { prepareInstallation, run, sdk, sqlOn } from './installation.ts';

// The commands of docs/backup.md, word by word, with the pg_dump and the server that this machine has.

const versions = '/usr/lib/postgresql';
const programs = (existsSync(versions) ? readdirSync(versions) : [])
  .map((version) => path.join(versions, version, 'bin'))
  .findLast((folder) => ['initdb', 'postgres', 'pg_dump'].every((name) => existsSync(path.join(folder, name))));

/** A Postgres of the machine's own version, in a folder of its own; resolves with the URL of its superuser. */
async function startOwnPostgres(folder: string): Promise<string> {
  const data = path.join(folder, 'postgres');
  await mkdir(data, { mode: 0o700 });
  const isRoot = process.getuid?.() === 0;
  const idOf = async (flag: string): Promise<number> => Number((await run('id', [flag, 'postgres'], {})).stdout);
  const user = isRoot ? { uid: await idOf('-u'), gid: await idOf('-g') } : {};
  if (user.uid !== undefined && user.gid !== undefined) await chown(data, user.uid, user.gid);
  const port = await freePort();
  const start = (name: string, args: string[]) =>
    spawn(path.join(programs ?? '', name), args, { ...user, cwd: data, stdio: 'ignore' });
  const [status] = await once(start('initdb', ['-D', data, '-U', 'postgres', '-A', 'trust', '--no-sync']), 'close');
  expect(status).toBe(0);
  const server = start('postgres', ['-D', data, '-p', `${port}`, '-h', '127.0.0.1', '-k', '', '-F']);
  onTestFinished(async () => {
    const closed = once(server, 'close');
    server.kill('SIGINT');
    await closed;
  });
  const url = `postgres://postgres@127.0.0.1:${port}/postgres`;
  await eventually(
    () =>
      sqlOn(url, 'select 1').then(
        () => true,
        () => false,
      ),
    (answers) => answers,
  );
  return url;
}

test.skipIf(programs === undefined)('a backup is taken while Sluice runs, and put back, as the page says', async () => {
  const folder = await makeDatabaseFolder('sluice-backup-');
  onTestFinished(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  const adminUrl = await startOwnPostgres(folder);
  await sqlOn(adminUrl, 'create role sluice login; create role sluice_tenant nologin; grant sluice_tenant to sluice');
  await sqlOn(adminUrl, 'create database sluice owner sluice');
  const databaseUrl = adminUrl.replace('postgres@', 'sluice@').replace(/\/postgres$/, '/sluice');
  const installation = await prepareInstallation(databaseUrl);
  const { blobs } = installation;
  const follow = async (commands: string): Promise<string> => {
    const env = {
      ...installation.environment,
      ADMIN_URL: adminUrl,
      BLOBS: blobs,
      PATH: `${programs}:${process.env['PATH']}`,
    };
    const inFolder = `cd ${folder}\n${commands.replaceAll('npm run', `npm --prefix ${projectFolder} run`)}`;
    const { code, stdout, stderr } = await run('bash', ['-euc', inFolder], env);
    expect({ code, stderr }).toEqual({ code: 0, stderr: expect.not.stringMatching(/error/i) });
    return stdout;
  };
  const commands = readCommands('docs/backup.md');
  const [backUp = '', ...others] = commands.get('What to back up') ?? [];
  const [putBack = '', prepare = '', ...more] = commands.get('Restore') ?? [];
  expect([...others, ...more]).toEqual([]);

  let client = await installation.start();
  const lines = 400;
  const batch = await createBatch(sdk, client, chatLines(lines, { model: '@simulator/sim-echo+150ms' }));
  await eventually(
    () => client.batches.retrieve(batch.id),
    ({ request_counts: counts }) => (counts?.completed ?? 0) > 0,
    { intervalMs: 20 },
  );
  await follow(backUp);
  expect((await ended(client, batch)).request_counts).toMatchObject({ completed: lines });
  await installation.kill();

  await rm(blobs, { recursive: true });
  await mkdir(blobs);
  await follow(putBack);
  const report = await follow(prepare);
  expect(report).toContain('open batches that continue: 1.');
  expect(report).toContain('You can start Sluice.');
  client = await installation.start();
  const finished = await ended(client, batch);
  expect(finished).toMatchObject({ status: 'completed', request_counts: { completed: lines, failed: 0 } });
  expect((await resultsOf(client, finished)).customIds).toEqual(chatLines(lines).map((line) => line['custom_id']));
  const { rows } = await installation.query('select count(*)::int as tables from pg_policies where policyname = $1', [
    'workspace_isolation',
  ]);
  expect(rows[0].tables).toBeGreaterThan(10);
});

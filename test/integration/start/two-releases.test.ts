import { cp, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase } from '#test/postgres.ts';
import { appEnvironment, projectFolder, startApp, type AppProcess } from './app-process.ts';

// Two releases over one database, as a rolling upgrade and a rollback have them: this one, and a copy of its code with one
// migration more.

/** The next release: the code of this one, and a migration. */
async function nextRelease(migration: string): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-release-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  for (const part of ['apps', 'libs', 'migrations', 'package.json', 'tsconfig.json']) {
    await cp(path.join(projectFolder, part), path.join(folder, part), { recursive: true });
  }
  await symlink(path.join(projectFolder, 'node_modules'), path.join(folder, 'node_modules'));
  await writeFile(path.join(folder, 'migrations/9999_next.sql'), migration);
  return folder;
}

async function urlOf(api: AppProcess): Promise<string> {
  const [line] = await eventually(
    () => api.said('listening'),
    (lines) => lines.length > 0,
  );
  return line?.url ?? '';
}

const ready = async (url: string): Promise<[number, unknown]> => {
  const response = await fetch(`${url}/health/ready`);
  return [response.status, await response.json()];
};

test('while the next release runs, processes of this one go on, and are started again', async () => {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  const environment = await appEnvironment(database.connectionString);
  const old = startApp('api', environment);
  const oldUrl = await urlOf(old);
  const next = startApp('api', environment, await nextRelease('create table of_the_next_release (x int)'));
  const nextUrl = await urlOf(next);
  expect(next.said('database migrated')).toHaveLength(1);

  // Rolled back, or restarted by its supervisor, before the upgrade is over.
  const again = startApp('api', environment);
  const worker = startApp('worker', environment);
  const [line] = await eventually(
    () => worker.said('health and metrics'),
    (lines) => lines.length > 0,
  );
  await eventually(
    async () => (await fetch(`http://127.0.0.1:${line?.port}/health/ready`)).status,
    (status) => status === 200,
  );
  for (const url of [oldUrl, nextUrl, await urlOf(again)]) {
    expect(await ready(url)).toMatchObject([200, { checks: { migrations: 'ok' } }]);
    const headers = { authorization: `Bearer ${environment['SLUICE_BOOTSTRAP_KEY']}` };
    expect((await fetch(`${url}/v1/batches`, { headers })).status).toBe(200);
  }
});

test('a next release that breaks this one is told by readiness, and ends its start with what to do', async () => {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  const environment = await appEnvironment(database.connectionString);
  const oldUrl = await urlOf(startApp('api', environment));
  const breaking = "insert into installation values ('required_migration', '9999_next')";
  await urlOf(startApp('api', environment, await nextRelease(breaking)));

  expect(
    await eventually(
      () => ready(oldUrl),
      ([status]) => status === 503,
    ),
  ).toMatchObject([
    503,
    {
      error: {
        message: expect.stringContaining(
          'this release is too old; the database needs a release with the migration 9999_next',
        ),
      },
    },
  ]);
  const again = startApp('worker', environment);
  expect(await again.ended).toBe(1);
  expect(again.stderr()).toMatch(
    /^This release is too old for the database\. The database has the migration .*9999_next/,
  );
});

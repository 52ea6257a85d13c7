import { existsSync } from 'node:fs';
import { mkdir, readdir, rename, rmdir } from 'node:fs/promises';
import { expect, onTestFinished, test } from 'vitest';
import { createTestDatabase } from '#test/postgres.ts';
import { startApp } from './app-process.ts';
import { prepareInstallation } from './installation.ts';

test('a start without the blob volume is refused and creates nothing in its place', async () => {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  const { blobs, environment, start, kill } = await prepareInstallation(database.connectionString);
  await start({ worker: false });
  await kill();
  await rename(blobs, `${blobs}-of-the-volume`);

  for (const app of ['api', 'worker'] as const) {
    const refused = startApp(app, environment);
    expect(await refused.ended).toBe(1);
    expect(refused.output()).toContain('This blob store (an empty one) does not belong to the database');
    expect(existsSync(blobs)).toBe(false);
  }
  await mkdir(blobs);
  expect(await startApp('api', environment).ended).toBe(1);
  expect(await readdir(blobs)).toEqual([]);

  await rmdir(blobs);
  await rename(`${blobs}-of-the-volume`, blobs);
  await start({ worker: false });
  await kill();
});

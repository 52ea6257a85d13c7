import { sql } from 'kysely';
import { Portkey } from 'portkey-ai';
import { expect, test } from 'vitest';
import { logExportQueue } from '#libs/request-log/read/run-log-export.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform } from '#test/platform.ts';
import { deleteJobs } from '#test/queue-jobs.ts';
import { chatLines, createBatch, ended } from './batch-kit.ts';
import { sdks } from './sdk.ts';

test('a batch whose tickets are gone is run when a worker is there', async ({ onTestFinished }) => {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const [sdk] = sdks;
  if (!sdk) throw new Error('no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const batch = await createBatch(sdk, client, chatLines(1));
  await deleteJobs(platform.database.connectionString);
  await platform.startWorker();
  expect(await ended(client, batch)).toMatchObject({ status: 'completed' });
});

test('an export of the request log whose job is gone is written when a worker is there', async ({ onTestFinished }) => {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const { db, connectionString } = platform.database;
  const exports = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl }).logs.exports;
  const exportId = (await exports.create({ requestedData: ['id'], filters: {} })).id ?? '';
  await exports.start({ exportId });
  await deleteJobs(connectionString, logExportQueue.name);
  // Only what has not changed for a minute is looked at.
  await sql`update resource set updated_at = updated_at - interval '2 minutes' where id = ${exportId}`.execute(db);
  await platform.startWorker();
  await eventually(
    () => exports.retrieve({ exportId }),
    ({ status }) => status === 'success',
  );
});

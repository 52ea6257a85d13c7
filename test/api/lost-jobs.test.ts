import { sql } from 'kysely';
import { Portkey } from 'portkey-ai';
import { expect, test } from 'vitest';
import { allQueues } from '#apps/platform/queues.ts';
import { finaliseQueue, validateQueue } from '#libs/batches/chunks/batch-queues.ts';
import { settleGroup } from '#libs/batches/results/settle-group.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { logExportQueue } from '#libs/request-log/read/run-log-export.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform } from '#test/platform.ts';
import type { TestDatabase } from '#test/postgres.ts';
import { chatLines, createBatch, ended } from './batch-kit.ts';
import { sdks } from './sdk.ts';
import { createRunningBatch, lineResult, readBatch } from '../integration/batches/running-batch.ts';

/** Only what has not changed for a minute is looked at. */
const age = (db: TestDatabase['db'], table: 'batch' | 'fine_tuning_job' | 'resource', id: string) =>
  sql`update ${sql.table(table)} set updated_at = updated_at - interval '2 minutes' where id = ${id}`.execute(db);

// A job is tried 10,000 times, at most 10 s apart: 27.8 hours, less than a full disk over a weekend.
test(
  'a batch whose finalise job was used up by a full disk ends when a worker is there',
  { timeout: 90_000 },
  async ({ onTestFinished }) => {
    const platform = await startPlatform({ worker: false });
    onTestFinished(() => platform.stop());
    const { database } = platform;
    const logger = createLogger({ name: 'test', level: 'silent' });
    const { connectionString } = database;
    const queue = createJobQueue({ connectionString, role: 'sender', queues: allQueues, logger, poolSizeMax: 1 });
    await queue.start?.();
    onTestFinished(async () => await queue.stop?.());
    const eventLog = createEventLog(database.db);
    const id = await createRunningBatch(database, { eventLog }, { lines: 1 });
    await settleGroup(
      { eventLog, queue, logger, finishSmallBatch: () => Promise.resolve(), signal: new AbortController().signal },
      { id, workspaceId: 'ws_1' },
      [lineResult(id, 1)],
      [],
    );
    expect((await readBatch(database, id)).status).toBe('finalizing');
    // The last of its tries fails.
    await sql`update pgboss.job set state = 'active', started_on = now(), heartbeat_on = now(), retry_count = retry_limit
    where name = ${finaliseQueue.name}`.execute(database.db);
    const { rows } = await sql<{ id: string; retry_count: number }>`
    select id, retry_count from pgboss.job where name = ${finaliseQueue.name}`.execute(database.db);
    const [job] = rows;
    if (!job) throw new Error('no finalise job');
    await queue.handBack(finaliseQueue, { id: job.id, retryCount: job.retry_count }, 'ENOSPC');
    const { rows: after } = await sql<{ state: string }>`
    select state::text from pgboss.job where name = ${finaliseQueue.name}`.execute(database.db);
    expect(after).toEqual([{ state: 'failed' }]);
    await age(database.db, 'batch', id);
    // There is space again.
    await platform.startWorker();
    for (let waited = 0; waited < 20_000; waited += 250) {
      if ((await readBatch(database, id)).status !== 'finalizing') break;
      await sleep(250);
    }
    expect((await readBatch(database, id)).status).toBe('completed');
  },
);

test('a batch whose validation job is gone is validated when a worker is there', async ({ onTestFinished }) => {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const [sdk] = sdks;
  if (!sdk) throw new Error('no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const batch = await createBatch(sdk, client, chatLines(1));
  await sql`delete from pgboss.job where name = ${validateQueue.name}`.execute(platform.database.db);
  await age(platform.database.db, 'batch', batch.id);
  await platform.startWorker();
  expect(await ended(client, batch)).toMatchObject({ status: 'completed' });
});

test('an export of the request log whose job is gone is written when a worker is there', async ({ onTestFinished }) => {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const { db } = platform.database;
  const exports = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl }).logs.exports;
  const exportId = (await exports.create({ requestedData: ['id'], filters: {} })).id ?? '';
  await exports.start({ exportId });
  await sql`delete from pgboss.job where name = ${logExportQueue.name}`.execute(db);
  await age(db, 'resource', exportId);
  await platform.startWorker();
  await eventually(
    () => exports.retrieve({ exportId }),
    ({ status }) => status === 'success',
  );
});

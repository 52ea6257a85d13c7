import { expect, test } from 'vitest';
import { snoozeChunk } from '#libs/batches/chunks/chunk.ts';
import { writeReport } from '#libs/batches/lines/report-lines.ts';
import { findBatchWaits } from '#libs/batches/look/find-batch-waits.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { claimChunk, createRunningBatch, readBatch, useBatchEngine } from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);

const limited = {
  reason: 'rate_limited',
  label: 'openai',
  model: 'gpt',
  budget: null,
  lines: 2,
  since_ms: 5_000,
  until_ms: 60_000,
};
const busy = {
  reason: 'provider_busy',
  label: 'openai',
  model: null,
  budget: null,
  lines: 9,
  since_ms: 4_000,
  until_ms: null,
};

test('the waits of all workers are added up, each report replaces the one before, and old ones are not shown', async () => {
  const { db } = database;
  const id = await createRunningBatch(database, engine, { lines: 3 });
  const other = await createRunningBatch(database, engine, { lines: 3 });
  const shown = async () => await findBatchWaits(db, await readBatch(database, id));
  await writeReport(db, 'process_1', [{ batchId: id, waits: [limited], calls: 0 }]);
  await writeReport(db, 'process_2', [
    { batchId: id, waits: [{ ...limited, lines: 3, until_ms: 70_000 }, busy], calls: 0 },
    { batchId: other, waits: [busy], calls: 0 },
    { batchId: 'batch_gone', waits: [busy], calls: 0 },
  ]);
  const about = { target: 'openai', message: expect.any(String) };
  expect(await shown()).toEqual([
    { ...about, reason: 'provider_busy', model: null, lines: 9, since: 4, until: null },
    { ...about, reason: 'rate_limited', model: 'gpt', lines: 5, since: 5, until: 60 },
  ]);
  await writeReport(db, 'process_2', [{ batchId: other, waits: [busy], calls: 0 }]);
  expect(await shown()).toMatchObject([{ reason: 'rate_limited', lines: 2 }]);
  // A worker that was killed reports no more; the others delete what it said last.
  const age = (ms: number) => ({ reported_at: new Date(Date.now() - ms) });
  await db.updateTable('batch_line_report').set(age(20_000)).where('process_id', '=', 'process_1').execute();
  expect(await shown()).toMatchObject([{ reason: 'queued' }]);
  await db.updateTable('batch_line_report').set(age(120_000)).where('process_id', '=', 'process_1').execute();
  await writeReport(db, 'process_2', []);
  expect(await db.selectFrom('batch_line_report').selectAll().execute()).toEqual([]);
});

test.each([
  [[limited], ['2 lines of model gpt through openai are waiting: the provider limits the rate of these calls (429).']],
  [
    [{ ...limited, until_ms: null }],
    ['2 lines of model gpt through openai are waiting: a rate limit of this gateway spreads them over time.'],
  ],
  [
    [
      { ...limited, reason: 'budget_used_up', budget: "This call falls under policy 'small'." },
      { ...limited, reason: 'budget_used_up', model: 'other', label: 'azure', until_ms: 50_000 },
    ],
    ["4 lines are waiting: This call falls under policy 'small'."],
  ],
  [
    [
      { ...limited, lines: 1, reason: 'secret_unavailable', label: "the secret reference 'vault'", model: null },
      { ...limited, lines: 3, reason: 'gateway', label: null, model: null },
    ],
    [
      '3 lines are waiting: the database of the gateway is unavailable.',
      "1 line for the secret reference 'vault' is waiting: the secret manager with the credential is not responding.",
    ],
  ],
])('each cause of a wait is one sentence: %j', async (waits, sentences) => {
  const { db } = database;
  const id = await createRunningBatch(database, engine, { lines: 3 });
  await writeReport(db, 'process_1', [{ batchId: id, waits, calls: 0 }]);
  const shown = await findBatchWaits(db, await readBatch(database, id));
  expect(shown.map(({ message }) => message)).toEqual(sentences);
});

test('a batch whose chunks all wait says until when, and one that no worker has claimed is queued', async () => {
  const { db } = database;
  const id = await createRunningBatch(database, engine, { lines: 2, linesPerChunk: 1 });
  const shown = async () => await findBatchWaits(db, await readBatch(database, id));
  expect(await shown()).toMatchObject([{ reason: 'queued' }]);
  const claims = [await claimChunk(database, id, 0), await claimChunk(database, id, 1)];
  expect(await shown()).toEqual([]);
  for (const claim of claims) await snoozeChunk(db, claim.id, 60_000);
  expect(await shown()).toMatchObject([{ reason: 'snoozed', until: expect.any(Number) }]);
});

import { expect, test } from 'vitest';
import { writeReport } from '#libs/batches/report-waits.ts';
import { waitsOfBatch } from '#libs/batches/waits-of-batch.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { createRunningBatch, readBatch, useBatchEngine } from './running-batch.ts';

const database = useTestDatabase();
const engine = useBatchEngine(database);

const limited = { reason: 'rate_limited', label: 'openai', model: 'gpt', lines: 2, since_ms: 5_000, until_ms: 60_000 };
const busy = { reason: 'provider_busy', label: 'openai', model: null, lines: 9, since_ms: 4_000, until_ms: null };

test('the waits of all workers are added up, each report replaces the one before, and old ones are not shown', async () => {
  const { db } = database;
  const id = await createRunningBatch(database, engine, { lines: 3 });
  const other = await createRunningBatch(database, engine, { lines: 3 });
  const shown = async () => await waitsOfBatch(db, await readBatch(database, id));
  await writeReport(db, 'process_1', [{ batchId: id, waits: [limited] }]);
  await writeReport(db, 'process_2', [
    { batchId: id, waits: [{ ...limited, lines: 3, until_ms: 70_000 }, busy] },
    { batchId: other, waits: [busy] },
    { batchId: 'batch_gone', waits: [busy] },
  ]);
  const about = { target: 'openai', message: expect.any(String) };
  expect(await shown()).toEqual([
    { ...about, reason: 'provider_busy', model: null, lines: 9, since: 4, until: null },
    { ...about, reason: 'rate_limited', model: 'gpt', lines: 5, since: 5, until: 70 },
  ]);
  await writeReport(db, 'process_2', [{ batchId: other, waits: [busy] }]);
  expect(await shown()).toMatchObject([{ reason: 'rate_limited', lines: 2 }]);
  // A worker that was killed reports no more; the others delete what it said last.
  const age = (ms: number) => ({ reported_at: new Date(Date.now() - ms) });
  await db.updateTable('batch_line_wait').set(age(20_000)).where('process_id', '=', 'process_1').execute();
  expect(await shown()).toMatchObject([{ reason: 'queued' }]);
  await db.updateTable('batch_line_wait').set(age(120_000)).where('process_id', '=', 'process_1').execute();
  await writeReport(db, 'process_2', []);
  expect(await db.selectFrom('batch_line_wait').selectAll().execute()).toEqual([]);
});

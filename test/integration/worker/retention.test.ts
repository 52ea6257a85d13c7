import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { checkRollups } from '#libs/analytics/rollups/check-rollups.ts';
import { reportChange } from '#libs/analytics/rollups/roll-up.ts';
import { sweepRollups } from '#libs/analytics/rollups/sweep-rollups.ts';
import { deleteOldResults } from '#libs/batches/results/delete-old-results.ts';
import { ensureResultsPartition } from '#libs/batches/results/results-bucket.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { fileModel } from '#libs/files/file-model.ts';
import { createFiles } from '#libs/files/files.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import { recordDeletion, type Deletion } from '#libs/people/facts/record-deletions.ts';
import { deleteUnheld, retentionLock } from '#libs/people/retention.ts';
import { workspaceModel, type WorkspaceData } from '#libs/people/workspaces.ts';
import { checkRequestLog } from '#libs/request-log/audit/check-log.ts';
import { sweepRecordedBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { sweepLogExports } from '#libs/request-log/read/run-log-export.ts';
import { deleteOldCalls } from '#libs/request-log/write/delete-old-calls.ts';
import { selectLogs } from '#libs/request-log/read/read-log.ts';
import { toLogId } from '#libs/request-log/row/log-id.ts';
import { ensureLogPartition, listLogDays, partitionName } from '#libs/request-log/write/log-partitions.ts';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import { dayMs, hourMs, logRetentionMs, rollUpAll, writeCalls } from '../analytics/log-kit.ts';
import { insertBatch } from '../request-log/insert-batch.ts';

let database: TestDatabase;
beforeEach(async () => {
  database = await createTestDatabase();
});
afterEach(() => database.drop());

const now = Math.floor(Date.now() / dayMs) * dayMs + 12 * hourMs;
const dayAt = (days: number): string => new Date(now + days * dayMs).toISOString().slice(0, 10);
const blobs = { remove: () => Promise.resolve() } as unknown as BlobStore;
const metadata = { actor: { type: 'system' as const, id: 'test' } };

/** Appends an event of a workspace. The first one creates it. */
async function change(id: string, data: Partial<WorkspaceData>): Promise<void> {
  const command = { workspaceId: id, streams: [retentionLock, id], metadata };
  await createEventLog(database.db).transact(command, async (unit) => {
    const exists = (await unit.load(workspaceModel, id)) !== undefined;
    const event = exists
      ? { type: 'workspace.updated', data }
      : { type: 'workspace.created', data: { name: id, ...data } };
    await unit.append(workspaceModel, id, [event]);
  });
}

const hold = (id: string, active: boolean): Promise<void> =>
  change(id, { legal_hold: { active, reason: 'case 17', since: new Date(now).toISOString() } });

const record = (deleted: Deletion): Promise<void> => recordDeletion(createEventLog(database.db), deleted);

const deleteCalls = (nowMs = now): Promise<string[]> => deleteOldCalls(database.db, 30, nowMs, record);

/** The calls of each workspace by the age of their day. */
async function calls(): Promise<Record<string, number>> {
  const { rows } = await sql<{ place: string; count: number }>`
    select workspace_id || ' ' || (recorded_on - ${dayAt(0)}::date) as place, count(*)::int as count
    from request_log group by 1 order by 1`.execute(database.db);
  return Object.fromEntries(rows.map(({ place, count }) => [place, count]));
}

/** What retention said that it deleted, oldest first. */
async function deletions(): Promise<object[]> {
  const { rows } = await sql<{ data: object }>`
    select workspace_id as workspace, data ->> 'kind' as kind, data ->> 'unit' as unit, (data -> 'count')::text::int as count
    from event where type like '%.data_deleted' order by position`.execute(database.db);
  return rows;
}

async function requestsInRollups(): Promise<Record<string, number>> {
  const { rows } = await sql<{ workspace: string; requests: number }>`
    select workspace_id as workspace, sum(requests)::int as requests from call_rollup where grain = 'minute'
    group by 1 order by 1`.execute(database.db);
  return Object.fromEntries(rows.map(({ workspace, requests }) => [workspace, requests]));
}

test('a workspace with a shorter time loses its calls earlier, and its rollups stay', async () => {
  const { db } = database;
  await change('ws_short', { defaults: { request_log_retention_days: 7 } });
  await change('ws_other', {});
  for (const days of [10, 3])
    await writeCalls(db, [
      { at: now - days * dayMs, workspace_id: 'ws_short' },
      { at: now - days * dayMs, workspace_id: 'ws_other' },
    ]);
  await rollUpAll(db, now);
  expect(await deleteCalls()).toEqual([]);
  expect(await calls()).toEqual({ 'ws_other -10': 1, 'ws_other -3': 1, 'ws_short -3': 1 });
  expect(await deletions()).toEqual([{ workspace: 'ws_short', kind: 'request_log', unit: 'calls', count: 1 }]);
  expect(await checkRequestLog(db)).toMatchObject({ rows: 3, missing: 0, deleted: 1 });
  // A late call changes the same minute, and a repair all minutes.
  await writeCalls(db, [{ at: now - 10 * dayMs, workspace_id: 'ws_other' }]);
  await reportChange(db, now - 10 * dayMs - hourMs, now - 10 * dayMs + hourMs);
  await rollUpAll(db, now);
  expect(await requestsInRollups()).toEqual({ ws_other: 3, ws_short: 2 });
  expect(await checkRollups(db, () => {})).toMatchObject({ different: 0 });
  expect(await deleteCalls()).toEqual([]);
  expect(await deletions()).toHaveLength(1);
});

test('a workspace with a longer time keeps its calls, and the days that no workspace needs are dropped', async () => {
  const { db } = database;
  await change('ws_long', { defaults: { request_log_retention_days: 100 } });
  await change('ws_other', {});
  const lines = Array.from({ length: 20 }, (_, line) => ({
    at: now - 40 * dayMs + line,
    workspace_id: 'ws_other',
    kind: 'batch' as const,
    batch_id: 'batch_1',
    batch_line: line,
    request_id: batchLineId('batch_1', line),
  }));
  await writeCalls(db, [{ at: now - 41 * dayMs, workspace_id: 'ws_other' }]);
  await writeCalls(db, lines);
  await writeCalls(db, [
    { at: now - 40 * dayMs, workspace_id: 'ws_long' },
    { at: now - 40 * dayMs, workspace_id: 'ws_other' },
    { at: now - 1 * dayMs, workspace_id: 'ws_other' },
  ]);
  expect(await sql`select from request_log_pack`.execute(db)).toMatchObject({ rows: [{}] });
  expect(await deleteCalls()).toEqual([dayAt(-41)]);
  expect(await calls()).toEqual({ 'ws_long -40': 1, 'ws_other -1': 1 });
  expect(await deletions()).toEqual([
    { workspace: 'org_default', kind: 'request_log', unit: 'days', count: 1 },
    { workspace: 'ws_other', kind: 'request_log', unit: 'calls', count: 21 },
  ]);
  expect(await checkRequestLog(db)).toMatchObject({ rows: 2, missing: 0, deleted: 21 });
  expect(await deleteCalls()).toEqual([]);
  expect(await deleteCalls(now + 70 * dayMs)).toEqual([dayAt(-40), dayAt(-1)]);
  expect(await listLogDays(db)).toEqual([]);
  expect(await sql`select from request_log_deleted`.execute(db)).toMatchObject({ rows: [] });
});

test('many calls are deleted in pieces, and the rest of an old day takes no more space than it needs', async () => {
  const { db } = database;
  await change('ws_long', { defaults: { request_log_retention_days: 100 } });
  await change('ws_other', {});
  await writeCalls(db, [{ at: now - 40 * dayMs, workspace_id: 'ws_long' }]);
  const addCalls = (count: number) =>
    sql`
    insert into request_log_row (recorded_on, id, workspace_id, kind, operation, request_id, stream, attempts, started_at,
      duration_ms, process_id, sequence)
    select ${dayAt(-40)}::date, gen_random_uuid(), 'ws_other', 'live', 'chat', 'req', false, 1, now(), 1,
      '019aa631-4c00-7000-8000-000000000002', number from generate_series(1, ${count}) as number`.execute(db);
  await addCalls(12_000);
  await deleteCalls();
  expect(await calls()).toEqual({ 'ws_long -40': 1 });
  const { rows } = await sql`
    select sum(upper(part) - lower(part))::int as deleted from request_log_deleted, unnest(sequences) as part
    group by request_log_deleted.ctid order by 1 desc`.execute(db);
  expect(rows).toEqual([{ deleted: 5_000 }, { deleted: 5_000 }, { deleted: 2_000 }]);
  expect(await deletions()).toMatchObject([{ count: 12_000 }]);
  // An older transaction keeps deleted rows where they are, even if it is in another database of the server.
  const sizeAfterDeletion = async (): Promise<number | undefined> => {
    await addCalls(1);
    await deleteCalls();
    const size = sql<{ bytes: number }>`select pg_relation_size(${partitionName(dayAt(-40))})::int as bytes`;
    return (await size.execute(db)).rows[0]?.bytes;
  };
  await eventually(sizeAfterDeletion, (bytes) => bytes === 8_192);
});

test('a page of the log spans more days than one statement reads', async () => {
  const { db } = database;
  for (let days = 0; days < 70; days += 1) await ensureLogPartition(db, dayAt(-days));
  const ages = [69, 40, 33, 32, 31, 1, 0];
  await writeCalls(
    db,
    ages.map((days) => ({ at: now - days * dayMs, workspace_id: 'ws_1', trace_id: `of ${days}` })),
  );
  const list = async (query: { limit: number; after?: string }) =>
    (await selectLogs(db, 'ws_1', query)).slice(0, query.limit).map(({ id, trace_id: trace }) => ({ id, trace }));
  const traces = ages.toReversed().map((days) => `of ${days}`);
  expect((await list({ limit: 10 })).map(({ trace }) => trace)).toEqual(traces);
  const first = await list({ limit: 4 });
  const rest = await list({ limit: 4, after: toLogId(first.at(-1)?.id ?? '') });
  expect([...first, ...rest].map(({ trace }) => trace)).toEqual(traces);
});

/** A batch of a day with the result of one line. */
async function addBatch(id: string, workspaceId: string, days: number, isOpen = false): Promise<void> {
  const createdMs = now + days * dayMs;
  const day = dayAt(days);
  await ensureResultsPartition(database.db, day);
  await insertBatch(database.db, { id, workspaceId, createdMs, ...(isOpen ? {} : { completedMs: createdMs }) });
  await sql`
    insert into batch_result (bucket, batch_id, stripe, first_line, last_line, version, lines, lengths, statuses, digests, data)
    values (${day}::date, ${id}, 0, 1, 1, 1, '{1}', '{1}', '{200}', '\\x00', '\\x00')`.execute(database.db);
  await sql`
    insert into batch_chunk (batch_id, chunk, byte_offset, byte_length, range_first_line, first_line, line_count, settled)
    values (${id}, 0, 0, 1, 1, 1, 1, '\\x80')`.execute(database.db);
}

async function batchesWith(table: 'batch_result' | 'batch_chunk'): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select distinct batch_id as id from ${sql.table(table)} order by 1`.execute(database.db);
  return rows.map(({ id }) => id);
}

const deleteResults = (nowMs = now): Promise<string[]> => deleteOldResults(database.db, { days: 3, nowMs }, record);

test('results of a workspace with another time go earlier or stay for longer, with their chunks', async () => {
  await change('ws_short', { defaults: { results_retention_days: 1 } });
  await change('ws_long', { defaults: { results_retention_days: 20 } });
  await change('ws_other', {});
  for (const workspace of ['short', 'long', 'other'])
    for (const days of [10, 2]) await addBatch(`batch_${workspace}_${days}`, `ws_${workspace}`, -days);
  await addBatch('batch_other_9', 'ws_other', -9);
  await addBatch('batch_short_8', 'ws_short', -8);
  await addBatch('batch_short_open', 'ws_short', -8, true);
  expect(await deleteResults()).toEqual([dayAt(-9)]);
  const kept = ['batch_long_10', 'batch_long_2', 'batch_other_2', 'batch_short_8', 'batch_short_open'];
  expect(await batchesWith('batch_result')).toEqual(kept);
  expect(await batchesWith('batch_chunk')).toEqual(kept);
  const of = { kind: 'batch_results', unit: 'batches', count: 1 };
  expect(await deletions()).toEqual([
    { workspace: 'ws_other', ...of },
    { workspace: 'ws_short', ...of },
    { workspace: 'ws_other', ...of },
    { workspace: 'ws_short', ...of },
    { workspace: 'org_default', kind: 'batch_chunks', unit: 'chunks', count: 4 },
  ]);
  expect(await deleteResults(now + 30 * dayMs)).toEqual([dayAt(-10), dayAt(-2)]);
});

/** Something of each kind that is past its time, in one workspace. */
async function addOldData(id: string): Promise<void> {
  const { db } = database;
  const past = new Date(now - 500 * dayMs);
  await writeCalls(db, [{ at: now - 40 * dayMs, workspace_id: id }]);
  await addBatch('batch_1', id, -10);
  await sql`
    insert into recorded_bodies (id, workspace_id, blob, offsets, key_owner, size_bytes, expires_at)
    values ('bodies_1', ${id}, 'blob', '{0,1}', 'body_key_1', 1, ${past})`.execute(db);
  await sql`
    insert into resource (id, workspace_id, version, updated_at, kind, data, created_at)
    values ('export_1', ${id}, 1, ${past}, 'log_export', '{"status": "success"}', ${past})`.execute(db);
  await sql`
    insert into log_export_part (workspace_id, export_id, part, blob, size_bytes, rows, skipped)
    values (${id}, 'export_1', 0, 'blob', 1, 1, 0)`.execute(db);
  await sql`
    insert into feedback (id, workspace_id, trace_id, value, weight, source, created_at, updated_at)
    values (gen_random_uuid(), ${id}, 'trace', 1, 1, 'api', ${past}, ${past})`.execute(db);
  await createEventLog(db).transact({ workspaceId: id, streams: ['file-1'], metadata }, (unit) =>
    unit.append(fileModel, 'file-1', [
      {
        type: 'file.uploaded',
        data: {
          purpose: 'batch',
          filename: 'a.jsonl',
          bytes: 1,
          sha256: '',
          blob: 'blob',
          expires_at: past.toISOString(),
        },
      },
    ]),
  );
}

const files = () => {
  const { db } = database;
  return createFiles({ db, eventLog: createEventLog(db), blobs });
};

/** Every task that deletes by age. Returns how much each of them deleted. */
async function runRetention(): Promise<object> {
  const { db } = database;
  const retention = { minute: dayMs, hour: dayMs, day: 400 * dayMs };
  const sum = (counts: ReadonlyMap<string, number>): number => [...counts.values()].reduce((all, one) => all + one, 0);
  return {
    days: (await deleteCalls()).length,
    results: (await deleteResults()).length,
    bodies: sum(await sweepRecordedBodies(db, blobs)),
    exports: sum(await sweepLogExports(db, dayMs)),
    feedback: (await sweepRollups(db, { retention, logRetentionMs, nowMs: now })).feedback,
    files: await files().expire(),
  };
}

test('a legal hold keeps everything of its workspace, and retention continues when it is lifted', async () => {
  await change('ws_held', { defaults: { request_log_retention_days: 1, results_retention_days: 1 } });
  await change('ws_other', {});
  await hold('ws_held', true);
  await addOldData('ws_held');
  await writeCalls(database.db, [{ at: now - 40 * dayMs, workspace_id: 'ws_other' }]);
  const none = { days: 0, results: 0, bodies: 0, exports: 0, feedback: 0, files: 0 };
  expect(await runRetention()).toEqual(none);
  expect(await calls()).toEqual({ 'ws_held -40': 1 });
  expect(await batchesWith('batch_result')).toEqual(['batch_1']);
  expect(await batchesWith('batch_chunk')).toEqual(['batch_1']);
  expect(await files().retrieve('ws_held', 'file-1')).toMatchObject({ id: 'file-1' });
  expect(await deletions()).toEqual([{ workspace: 'ws_other', kind: 'request_log', unit: 'calls', count: 1 }]);
  await expect(files().remove('ws_held', 'file-1', metadata)).rejects.toMatchObject({
    code: 'legal_hold',
    message: expect.stringContaining('"active": false'),
  });
  await hold('ws_held', false);
  await expect(files().retrieve('ws_held', 'file-1')).rejects.toMatchObject({ kind: 'not_found' });
  expect(await runRetention()).toEqual({ days: 1, results: 1, bodies: 1, exports: 1, feedback: 1, files: 1 });
  expect(await calls()).toEqual({});
});

test('a hold that is set while something is deleted waits until that is done', async () => {
  const { db } = database;
  await change('ws_held', {});
  const order: string[] = [];
  const { promise: started, resolve: start } = Promise.withResolvers<void>();
  const { promise: finished, resolve: finish } = Promise.withResolvers<void>();
  const deleting = deleteUnheld(db, async () => {
    start();
    await finished;
  }).then(() => order.push('deleted'));
  await started;
  const holding = hold('ws_held', true).then(() => order.push('held'));
  const waiting = sql`
    select from pg_locks join pg_database on pg_database.oid = database
    where locktype = 'advisory' and not granted and datname = current_database()`;
  await eventually(
    () => waiting.execute(db),
    ({ rows }) => rows.length === 1,
  );
  finish();
  await Promise.all([deleting, holding]);
  expect(order).toEqual(['deleted', 'held']);
});

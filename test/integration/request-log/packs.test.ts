import { sql } from 'kysely';
import { beforeAll, expect, test } from 'vitest';
import { LogListQuery } from '#libs/contracts/logs/logs.ts';
import { checkRollups } from '#libs/analytics/rollups/check-rollups.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import { checkRequestLog } from '#libs/request-log/audit/check-log.ts';
import { readCallGroups } from '#libs/request-log/read/call-groups.ts';
import { findLineLog, findLog, newestLogs, selectLogs, type LogListRow } from '#libs/request-log/read/read-log.ts';
import { countForExport } from '#libs/request-log/read/run-log-export.ts';
import type { LogRow } from '#libs/request-log/row/log-entry.ts';
import { newLogUuid, toLogId, utcDay } from '#libs/request-log/row/log-id.ts';
import { createCopyRows } from '#libs/request-log/write/copy-rows.ts';
import { createInsertRows } from '#libs/request-log/write/insert-rows.ts';
import { ensureLogPartition } from '#libs/request-log/write/log-partitions.ts';
import { packRows } from '#libs/request-log/write/pack-rows.ts';
import { readAllRows, unsealRows } from '#libs/request-log/write/sealed-rows.ts';
import { logEntry } from '#test/log-entry.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { sealRows } from '#test/seal-rows.ts';
import { insertBatch } from './insert-batch.ts';
import { rollUpAll } from '../analytics/log-kit.ts';

// Whether a call is stored as a row or in a pack must not show anywhere. The same calls are written for one workspace as
// rows, and for another as packs.

const database = useTestDatabase();
const startMs = Date.UTC(2026, 10, 21, 23, 58);
const packer = '019aa631-4c00-7000-8000-000000000001';
const plain = '019aa631-4c00-7000-8000-000000000002';

/** A generator of the same numbers below `max` in each run (mulberry32). */
function numbers(seed: number): (max: number) => number {
  let state = seed;
  return (max) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % max;
  };
}

const verdict = (outcome: 'passed' | 'failed') => ({
  kind: 'input_guardrails' as const,
  id: 'guardrail_1',
  slug: 'no-"secrets"',
  version: 2,
  verdict: outcome,
});

const texts = ['stop', 'length', 'a "quoted", {braced} \\ back\nline\tü😀', 'NULL', '', '\\N'];

/** Calls over four minutes and midnight: two batches, of which one has failures, among live calls. */
function makeCalls(workspaceId: string): LogRow[] {
  const draw = numbers(7);
  const lines = new Map<string, number>();
  return Array.from({ length: 1_200 }, (_, index) => {
    const at = startMs + index * 200;
    const kind = draw(10) === 0 ? ('live' as const) : ('batch' as const);
    const batchId = `batch_${draw(2)}`;
    const line = lines.get(batchId) ?? 0;
    lines.set(batchId, line + 1);
    const hasFailed = batchId === 'batch_1' && draw(20) === 0;
    return {
      ...logEntry({
        workspace_id: workspaceId,
        kind,
        batch_id: kind === 'batch' ? batchId : null,
        batch_line: kind === 'batch' ? line : null,
        trace_id: kind === 'batch' ? `trace of ${batchId}` : `trace_${index}`,
        request_id: kind === 'batch' ? batchLineId(batchId, line) : `request ${index}`,
        provider_request_id: draw(4) === 0 ? null : `provider "${index}"`,
        metadata: { _user: `user_${draw(2) === 0 ? 'a' : 'b'}`, team: 'red' },
        model: batchId === 'batch_0' ? 'small' : 'large',
        finish_reason: texts[draw(texts.length)] ?? null,
        status: hasFailed ? 500 : 200,
        error_code: hasFailed ? 'http_500' : null,
        steps: draw(50) === 0 ? [{ kind: 'attempt', error_code: texts[2] }] : null,
        bodies_blob: draw(60) === 0 ? 'bodies_1.0' : null,
        guardrails: hasFailed ? [verdict('failed')] : batchId === 'batch_1' ? [verdict('passed')] : null,
        duration_ms: draw(4_000_000) / 1_000,
        upstream_ms: draw(1_000) / 1_000,
        started_at: new Date(at - 500),
        input_tokens: draw(5) === 0 ? null : draw(1_000),
        output_tokens: draw(100),
        cached_tokens: draw(3) === 0 ? draw(50) : null,
        cache_write_tokens: draw(3) === 0 ? draw(50) : null,
        prompt_cache_saved: draw(3) === 0 ? `-0.${draw(9)}1` : null,
        cost: draw(8) === 0 ? null : String(draw(1_000) / 10_000),
        saved_cost: draw(9) === 0 ? '0.25' : null,
      }),
      recorded_on: utcDay(at),
      id: newLogUuid(at, index + 1),
      sequence: index + 1,
    };
  });
}

let calls: LogRow[];

beforeAll(async () => {
  const { db, pool } = database;
  calls = makeCalls('ws_packs');
  for (const day of new Set(calls.map((row) => row.recorded_on))) await ensureLogPartition(db, day);
  const seals = Array.from({ length: Math.ceil(calls.length / 64) }, (_, index) =>
    sealRows(calls.slice(index * 64, index * 64 + 64), packer),
  );
  await createCopyRows(pool)(seals.slice(0, 10), false);
  // What is written again after a lost answer is in the table already.
  for (const seal of seals.slice(8)) await createInsertRows(db, packer)(seal.content());
  await createInsertRows(db, plain)({ rows: calls.map(toPlain), packs: [] });
  await rollUpAll(db, startMs + 3_600_000);
});

/** The same call for the workspace that has rows. IDs differ in their random end. */
const toPlain = (row: LogRow): LogRow => ({ ...row, workspace_id: 'ws_rows', id: `${row.id.slice(0, -4)}ffff` });

const withoutOwner = ({ workspace_id: _workspace, process_id: _process, id, ...row }: LogListRow) => ({
  ...row,
  id: id.slice(0, -4),
});

/** All pages of a list. */
async function listAll(workspaceId: string, query: Record<string, string>, limit: number): Promise<LogListRow[]> {
  const rows: LogListRow[] = [];
  for (let after: string | undefined; ;) {
    const page = LogListQuery.parse({ ...query, limit: String(limit), ...(after === undefined ? {} : { after }) });
    const found = await selectLogs(database.db, workspaceId, page);
    rows.push(...found.slice(0, limit));
    if (found.length <= limit) return rows;
    after = toLogId(rows.at(-1)?.id ?? '');
  }
}

test('most lines are in packs, and every call is there once', async () => {
  const { rows } = await sql<{ packs: number; lines: number; rows: number }>`
    select count(*) as packs, sum(lines)::int as lines,
      (select count(*) from request_log_row where workspace_id = 'ws_packs') as rows
    from request_log_pack`.execute(database.db);
  const [{ packs, lines, rows: single } = { packs: 0, lines: 0, rows: 0 }] = rows;
  expect(lines).toBeGreaterThan(800);
  expect(packs).toBeLessThan(lines / 8);
  expect(lines + single).toBe(calls.length);
  const { rows: verdicts } = await sql<{ guardrails: unknown; lines: number }>`
    select guardrails, lines from request_log_pack where guardrails is not null`.execute(database.db);
  for (const pack of verdicts) expect(pack.guardrails).toEqual([verdict('passed')]);
  expect(verdicts.some(({ lines: packed }) => packed > 20)).toBe(true);
});

const queries: Record<string, string>[] = [
  {},
  { kind: 'live' },
  { kind: 'batch' },
  { model: 'small' },
  { status: 'error' },
  { status: '200' },
  { trace_id: 'trace of batch_1' },
  { total_units_min: '900' },
  { cost_min: '0.09' },
  { metadata: '{"_user":"user_a"}' },
  { created_after: String(startMs / 1_000 + 61), created_before: String(startMs / 1_000 + 140) },
  { time_of_generation_min: new Date(startMs + 100_100).toISOString(), total_units_max: '100' },
];

test.each(queries)('the list with %o has the same calls in the same order', async (query) => {
  const expected = (await listAll('ws_rows', query, 100)).map(withoutOwner);
  expect(expected.length).toBeGreaterThan(0);
  for (const limit of [100, 7]) {
    expect((await listAll('ws_packs', query, limit)).map(withoutOwner)).toEqual(expected);
  }
});

test('every call is found by its ID, with everything that was recorded', async () => {
  for (const call of calls.filter((_, index) => index % 13 === 0)) {
    expect(await findLog(database.db, 'ws_packs', toLogId(call.id))).toEqual({ ...call, process_id: packer });
  }
  const [call] = calls as [LogRow];
  expect(await findLog(database.db, 'ws_other', toLogId(call.id))).toBeUndefined();
});

test('a line is found by its batch', async () => {
  await insertBatch(database.db, { id: 'batch_0', workspaceId: 'ws_packs', createdMs: startMs });
  const lines = calls.filter(({ batch_id: id }) => id === 'batch_0');
  for (const call of lines.filter((_, index) => index % 17 === 0)) {
    const found = await findLineLog(database.db, 'ws_packs', { batchId: 'batch_0', line: call.batch_line ?? -1 });
    expect(found).toEqual({ ...call, process_id: packer });
  }
  expect((await listAll('ws_packs', { batch_id: 'batch_0' }, 50)).length).toBe(lines.length);
});

test('counts, groups and the newest call are the same', async () => {
  const { db } = database;
  for (const filters of [{}, { status_code: '500' }, { cost_min: '0.09' }]) {
    expect(await countForExport(db, 'ws_packs', filters, 10_000)).toBe(
      await countForExport(db, 'ws_rows', filters, 10_000),
    );
  }
  const groupsOf = async (workspaceId: string, sinceMs: number) =>
    (await readCallGroups(db, workspaceId, sinceMs)).map((group) => JSON.stringify(group)).toSorted();
  for (const sinceMs of [0, startMs + 100_050])
    expect(await groupsOf('ws_packs', sinceMs)).toEqual(await groupsOf('ws_rows', sinceMs));
  const newest = await newestLogs(db, ['ws_packs', 'ws_rows']);
  expect(newest.get('ws_packs')?.slice(0, -4)).toBe(newest.get('ws_rows')?.slice(0, -4));
});

test('rollups of packs are those of their rows, and the check computes them from the lines', async () => {
  for (const cube of ['call', 'metadata', 'value']) {
    const { rows } = await sql<{ different: number; rows: number }>`
      with packs as (select to_jsonb(rollup) - 'workspace_id' as row from ${sql.table(`${cube}_rollup`)} as rollup
          where workspace_id = 'ws_packs'),
        plain as (select to_jsonb(rollup) - 'workspace_id' as row from ${sql.table(`${cube}_rollup`)} as rollup
          where workspace_id = 'ws_rows')
      select (select count(*) from plain) as rows, (select count(*) from (
        (table packs except all table plain) union all (table plain except all table packs)) as difference) as different
      `.execute(database.db);
    expect(rows[0]?.rows).toBeGreaterThan(0);
    expect(rows[0]?.different).toBe(0);
  }
  expect((await checkRollups(database.db, () => {})).different).toBe(0);
  await sql`update request_log_pack set sum_cost = sum_cost + 1 where last_id = (select last_id from request_log_pack order by 1 limit 1)`.execute(
    database.db,
  );
  await sql`insert into request_log_change (first_at, last_at) values (${new Date(startMs)}, ${new Date(startMs)})`.execute(
    database.db,
  );
  await rollUpAll(database.db, startMs + 3_600_000);
  expect((await checkRollups(database.db, () => {})).different).toBeGreaterThan(0);
});

test('a missing pack shows as a gap', async () => {
  expect(await checkRequestLog(database.db)).toMatchObject({ missing: 0, rows: 2 * calls.length });
  const { rows } = await sql<{ lines: number }>`
    delete from request_log_pack where last_id = (select last_id from request_log_pack order by 1 limit 1 offset 8) returning lines`.execute(
    database.db,
  );
  expect(await checkRequestLog(database.db)).toMatchObject({ missing: rows[0]?.lines });
});

test('rows are packed and unpacked without a change, through the disk too', () => {
  const seal = sealRows(calls.slice(0, 64), packer);
  expect(packRows(calls.slice(0, 64)).packs.length).toBeGreaterThan(0);
  expect(readAllRows(seal)).toEqual(calls.slice(0, 64));
  const read = unsealRows(seal.copyData as Buffer);
  expect(readAllRows(read)).toEqual(calls.slice(0, 64));
  expect(read).toMatchObject({ count: 64, days: seal.days, ids: seal.ids });
});

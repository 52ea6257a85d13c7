import { sql } from 'kysely';
import { beforeAll, expect, test, vi } from 'vitest';
import { readGroups } from '#libs/analytics/groups.ts';
import { LogListQuery, LogRecord } from '#libs/contracts/logs/logs.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import type { Column } from '#libs/request-log/columns.ts';
import { exportFormats } from '#libs/request-log/read/export-formats.ts';
import { selectLogs } from '#libs/request-log/read/read-log.ts';
import { toLogRecord } from '#libs/request-log/read/to-log-record.ts';
import { toLogEntry } from '#libs/request-log/record/call-entry.ts';
import type { LoggedCall } from '#libs/request-log/record/logged-call.ts';
import { logTextMax, type LogRow } from '#libs/request-log/row/log-entry.ts';
import { createRequestLog } from '#libs/request-log/write/request-log.ts';
import { readAllRows, messageBytes, messageHeadBytes, unsealRows } from '#libs/request-log/write/sealed-rows.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { sealRows } from '#test/seal-rows.ts';
import { hourMs, readKept, rollUpAll } from '../analytics/log-kit.ts';

// A column is its entry in columns.ts and its migration. Here one is added as a developer would add it: both are made up, and
// no other file knows of it.

vi.mock('#libs/request-log/columns.ts', async (importOriginal) => {
  const original = await importOriginal<typeof import('#libs/request-log/columns.ts')>();
  const region: Column = {
    type: 'text',
    from: ({ ended }) => ended.call.metadata?.['region'] ?? null,
    shown: { name: 'cloud_region', description: 'where the call was made' },
    filter: { list: 'regions', isExact: true },
    exportedAs: 'call_region',
    isRolledUp: true,
  };
  return { ...original, columnList: [...original.columnList, ['region', region]] };
});

const migration = sql`
  alter table request_log_row add column region text;
  alter table request_log_pack add column region text;
  alter view request_log rename to older;
  create view request_log with (security_invoker = true) as
    select older.*, coalesce(single.region, pack.region) as region
    from older left join request_log_row as single using (id, recorded_on)
      left join request_log_pack as pack on pack.last_id = older.last_id and pack.recorded_on = older.recorded_on;
  alter table call_rollup add column region text;
  alter table metadata_rollup add column region text;`;

const database = useTestDatabase();
const now = Date.now();

const callIn = (region: string): LoggedCall => ({
  kind: 'live',
  operation: 'chat',
  method: 'POST',
  requestId: `req_${region.slice(0, 10)}`,
  userId: null,
  trace: { traceId: null, spanId: null, parentSpanId: null, spanName: null },
  call: {
    workspaceId: 'ws_1',
    keyId: 'key_1',
    metadata: { region },
    pathname: '/v1/chat/completions',
    target: null,
    model: 'small',
    earlierAttempts: [],
  },
  stream: false,
  option: null,
  batch: null,
  startedAtMs: now - hourMs,
  durationMs: 12,
  end: { status: 200, errorCode: null, attempts: [] },
});
const costs = {
  of: () => ({ cents: null, savedCents: null, version: null, isEstimate: false }),
  unpriced: () => new Map<string, number>(),
};
const long = 'x'.repeat(logTextMax + 1);

beforeAll(async () => {
  await migration.execute(database.db);
  const { db, pool } = database;
  const log = createRequestLog({ app: 'api', db, pool, logger: createTestLogger().logger, clock: { now: () => now } });
  for (const region of ['eu', 'eu', 'us', 'a\0b', long]) log.record(toLogEntry(costs, callIn(region)));
  await log.stop?.();
});

const list = async (query: Record<string, unknown>) => {
  const rows = await selectLogs(database.db, 'ws_1', LogListQuery.parse(query));
  return rows.map((row) => LogRecord.parse(toLogRecord(row)) as Record<string, unknown>);
};

test('it is written, bounded and cleaned, and the API shows it', async () => {
  expect((await list({})).map((record) => record['cloud_region'])).toEqual([
    `${long.slice(2)}…`,
    'a\u{FFFD}b',
    'us',
    'eu',
    'eu',
  ]);
});

test('lists are filtered by it', async () => {
  expect(await list({ regions: 'eu,us' })).toHaveLength(3);
  expect(await list({ region: 'us' })).toHaveLength(1);
});

test('it is exported', async () => {
  const rows = await selectLogs(database.db, 'ws_1', LogListQuery.parse({ region: 'us' }));
  const fields = ['call_region' as never];
  expect(Buffer.from(exportFormats.csv.open(fields, true).encode(rows)).toString()).toBe('call_region\nus\n');
});

test('calls are rolled up by it, and found in rollups by its filter', async () => {
  const { db } = database;
  await rollUpAll(db, now + hourMs);
  const kept = await readKept(db, 'ws_1', now + hourMs);
  const groups = async (filters: object) => {
    const wanted = { filters, workspaceId: 'ws_1', range: { from: now - hourMs, to: now + hourMs }, kept };
    const grouping = { member: 'region', column: 'region' };
    return (await readGroups(db, wanted, grouping, { columns: ['requests'] })).data;
  };
  expect(await groups({})).toHaveLength(4);
  expect(await groups({ regions: ['eu'] })).toEqual([{ region: 'eu', requests: 2 }]);
  const { rows } =
    await sql`select value, requests from value_rollup where key = 'region' and grain = 'minute' and value = 'eu'`.execute(
      db,
    );
  expect(rows).toEqual([{ value: 'eu', requests: 2 }]);
});

test('rows that a version without it left on disk have no value for it', () => {
  const row = {
    ...toLogEntry(costs, callIn('eu')),
    recorded_on: '2026-11-21',
    id: '019aa631-4c00-7000-8000-000000000001',
    sequence: 7,
  };
  const lines = Array.from({ length: 8 }, (_, index) => ({
    ...row,
    kind: 'batch' as const,
    batch_id: 'b',
    batch_line: index,
    request_id: batchLineId('b', index),
    sequence: index,
  }));
  const copyData = sealRows([row, ...lines], 'a process').copyData as Buffer;
  const packsAt = messageBytes(copyData);
  const older = [copyData.subarray(0, packsAt), copyData.subarray(packsAt)].map((message) => {
    // Without the last column.
    const text = Buffer.from(message.toString('utf8', messageHeadBytes).replaceAll(/\t[^\t]*\n/g, '\n'));
    const head = Buffer.from('d0000');
    head.writeUInt32BE(text.length + 4, 1);
    return Buffer.concat([head, text]);
  });
  const expected = [row, ...lines].map((written) => ({ ...written, region: null }) as LogRow);
  expect(readAllRows(unsealRows(Buffer.concat(older)))).toEqual(expected.toSorted((a, b) => a.sequence - b.sequence));
});

import { expect, test } from 'vitest';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import { logEntry } from '#test/log-entry.ts';
import { sealRows } from '#test/seal-rows.ts';
import { createCopyRows } from './copy-rows.ts';
import { createGroupWriter } from './group-writer.ts';
import { createInsertRows } from './insert-rows.ts';
import type { LogRow } from '../row/log-entry.ts';
import { newLogUuid } from '../row/log-id.ts';
import { readAllRows, type SealedRows } from './sealed-rows.ts';

const databaseError = (code: string, fields: object = {}): Error =>
  Object.assign(new Error(`SQLSTATE ${code}`), { code, severity: 'ERROR', ...fields });

const rowsOf = (count: number, day = '2026-11-21'): LogRow[] =>
  Array.from({ length: count }, (_, index) => ({
    recorded_on: day,
    id: newLogUuid(Date.parse(day), index + 1),
    sequence: index + 1,
    ...logEntry({ request_id: `req_${index + 1}` }),
  }));

/** Several seals, as the request log passes them on. */
const sealed = (rows: readonly LogRow[]): SealedRows[] =>
  Array.from({ length: Math.ceil(rows.length / 10) }, (_, index) =>
    sealRows(rows.slice(index * 10, index * 10 + 10), 'process'),
  );

/** A writer over a fake table; `refuse` throws the errors of Postgres. */
function createWriter(refuse: (rows: readonly LogRow[]) => void, ensure: (day: string) => void = () => {}) {
  const { logger, lines } = createTestLogger();
  const table: LogRow[] = [];
  const ways: ('copy' | 'insert')[] = [];
  const days: string[] = [];
  const by = (way: 'copy' | 'insert') => async (rows: readonly LogRow[]) => {
    ways.push(way);
    refuse(rows);
    table.push(...rows);
  };
  const writer = createGroupWriter({
    logger,
    retryDelayMs: 1,
    ensurePartition: async (day) => {
      ensure(day);
      days.push(day);
    },
    copyRows: (group) => by('copy')(group.flatMap(readAllRows)),
    insertRows: ({ rows }) => by('insert')(rows),
  });
  return { writer, lines, table, days, ways };
}

const never = new AbortController().signal;

test('a row that Postgres refuses for ever does not keep the other 63 out', async () => {
  const { writer, table, lines, ways } = createWriter((rows) => {
    if (rows.some((row) => row.sequence === 40)) throw databaseError('22P05');
  });
  expect(await writer.write(sealed(rowsOf(64)), false, never)).toBe(1);
  expect(table.map((row) => row.sequence)).toEqual([
    ...Array.from({ length: 39 }, (_, index) => index + 1),
    ...Array.from({ length: 24 }, (_, index) => index + 41),
  ]);
  expect(lines.at(-1)).toMatchObject({
    msg: 'the database rejected a request-log row; the row is lost',
    request_id: 'req_40',
    sequence: 40,
  });
  expect(JSON.stringify(lines)).not.toContain('gpt-5-mini');
  // Each of 7 seals, 3 steps down from 10 rows with two inserts each, and the cleaned row.
  expect(ways).toEqual(['copy', ...Array.from({ length: 14 }, () => 'insert')]);
});

test('only the seal with a refused row is written without packs, so that a second process writes the same', async () => {
  const lines = rowsOf(20).map((row, line) => ({
    ...row,
    kind: 'batch' as const,
    batch_id: 'batch_1',
    batch_line: line,
    request_id: batchLineId('batch_1', line),
  }));
  const written: string[] = [];
  const writer = createGroupWriter({
    logger: createTestLogger().logger,
    retryDelayMs: 1,
    ensurePartition: async () => {},
    copyRows: () => Promise.reject(databaseError('22P05')),
    insertRows: async ({ rows, packs }) => {
      if (rows.some(({ sequence }) => sequence === 15) || packs.some(({ sequence }) => sequence?.includes(15)))
        throw databaseError('22P05');
      written.push(...packs.map((pack) => `pack of ${pack.lines}`), ...rows.map(({ sequence }) => String(sequence)));
    },
  });
  expect(await writer.write(sealed(lines), false, never)).toBe(1);
  expect(written).toEqual(['pack of 10', '11', '12', '13', '14', '16', '17', '18', '19', '20']);
});

test('a row with text that Postgres cannot hold is written cleaned', async () => {
  const { writer, table, lines } = createWriter((rows) => {
    if (JSON.stringify(rows).includes('\\u0000')) throw databaseError('22P05');
  });
  const [first, second] = rowsOf(2) as [LogRow, LogRow];
  const odd = {
    ...first,
    response_model: 'evil\0model',
    metadata: { 'a\0': 'b\0' },
    input_tokens: 1.5,
    duration_ms: NaN,
  };
  expect(await writer.write(sealed([odd, second]), false, never)).toBe(0);
  expect(table).toEqual([
    { ...first, response_model: 'evil�model', metadata: { 'a�': 'b�' }, input_tokens: 1, duration_ms: 0 },
    second,
  ]);
  expect(lines.map((line) => line.msg)).toEqual([
    'the database rejected a request-log row; writing it without invalid characters',
  ]);
});

test('rows that cannot be written as text or as JSON count as bad rows, not as an outage', async () => {
  const { logger, lines } = createTestLogger();
  const writer = createGroupWriter({
    logger,
    retryDelayMs: 1,
    ensurePartition: async () => {},
    copyRows: createCopyRows(undefined as never),
    insertRows: createInsertRows(undefined as never, 'process'),
  });
  const [row] = rowsOf(1) as [LogRow];
  expect(await writer.write(sealed([{ ...row, status: 200n as unknown as number }]), false, never)).toBe(1);
  expect(lines.map((line) => line.msg)).toEqual([
    'the database rejected a request-log row; writing it without invalid characters',
    'the database rejected a request-log row; the row is lost',
  ]);
});

test.each([
  ['a full disk', '53100'],
  ['a lock that somebody holds', '55P03'],
  ['a server in recovery', '57P03'],
  ['a standby that was not promoted yet', '25006'],
  ['a table that is not migrated yet', '42P01'],
])('%s is waited out', async (_, code) => {
  let refusals = 3;
  const { writer, table } = createWriter(() => {
    refusals -= 1;
    if (refusals >= 0) throw databaseError(code);
  });
  const writing = writer.write(sealed(rowsOf(2)), false, never);
  expect(await writing).toBe(0);
  expect(table).toHaveLength(2);
  expect(writer.isDatabaseDown()).toBe(false);
});

test('a partition is made before the first row of its day and only then', async () => {
  const { writer, days } = createWriter(() => {});
  await writer.write(sealed([...rowsOf(1, '2026-11-21'), ...rowsOf(1, '2026-11-22')]), false, never);
  await writer.write(sealed(rowsOf(2, '2026-11-22')), false, never);
  expect(days).toEqual(['2026-11-21', '2026-11-22']);
});

test('a partition that somebody dropped is made again', async () => {
  const attached = new Set<string>();
  const { writer, table } = createWriter(
    (rows) => {
      if (rows.some((row) => !attached.has(row.recorded_on))) throw databaseError('23514');
    },
    (day) => attached.add(day),
  );
  await writer.write(sealed(rowsOf(1)), false, never);
  attached.clear();
  expect(await writer.write(sealed(rowsOf(1)), false, never)).toBe(0);
  expect(table).toHaveLength(2);
});

test('a check that a row breaks is the fault of the row', async () => {
  const { writer, table } = createWriter((rows) => {
    if (rows.some((row) => row.sequence === 2)) throw databaseError('23514', { constraint: 'request_log_kind_check' });
  });
  expect(await writer.write(sealed(rowsOf(3)), false, never)).toBe(1);
  expect(table.map((row) => row.sequence)).toEqual([1, 3]);
});

test('after giving up, a group is tried once, and not at all when the database is known to be away', async () => {
  const { writer, ways } = createWriter(() => {
    throw databaseError('57P01');
  });
  const givenUp = AbortSignal.abort();
  expect(await writer.write(sealed(rowsOf(5)), false, givenUp)).toBe(5);
  expect(await writer.write(sealed(rowsOf(5)), false, givenUp)).toBe(5);
  expect(ways).toEqual(['copy']);
});

test('only the first try of a group is a copy: what may be in the table already is inserted', async () => {
  let refusals = 2;
  const { writer, ways } = createWriter(() => {
    refusals -= 1;
    if (refusals >= 0) throw new Error('Connection terminated unexpectedly');
  });
  await writer.write(sealed(rowsOf(3)), false, never);
  await writer.write(sealed(rowsOf(3)), false, never);
  expect(ways).toEqual(['copy', 'insert', 'insert', 'copy']);
});

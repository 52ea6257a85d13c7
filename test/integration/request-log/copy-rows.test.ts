import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { getSqlState } from '#libs/database/database-error.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import { createCopyRows } from '#libs/request-log/write/copy-rows.ts';
import { createInsertRows } from '#libs/request-log/write/insert-rows.ts';
import { logColumns, type LogRow, type RequestLogEntry } from '#libs/request-log/row/log-entry.ts';
import { newLogUuid } from '#libs/request-log/row/log-id.ts';
import { ensureLogPartition } from '#libs/request-log/write/log-partitions.ts';
import { logEntry } from '#test/log-entry.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { sealRows } from '#test/seal-rows.ts';

const database = useTestDatabase();
const day = '2026-11-21';
let processes = 0;
let ids = 0;
let pool: ReturnType<typeof createPool>;

beforeAll(async () => {
  await ensureLogPartition(database.db, day);
  // One session: what a failed copy leaves behind meets the next query.
  const { logger } = createTestLogger();
  pool = createPool({ connectionString: database.connectionString, applicationName: 'copy', max: 1 }, logger);
});
afterAll(() => pool.end());

const newProcessId = (): string => `019aa631-4c00-7000-8000-${String((processes += 1)).padStart(12, '0')}`;

const toRows = (entries: readonly RequestLogEntry[]): LogRow[] =>
  entries.map((entry, index) => ({
    ...entry,
    recorded_on: day,
    id: newLogUuid(Date.parse(day), (ids += 1)),
    sequence: index + 1,
  }));

/** Copies rows in seals of 64, as the log does. */
const copyRows = (processId: string, rows: readonly LogRow[], isBehind = false): Promise<void> => {
  const seals = Array.from({ length: Math.ceil(rows.length / 64) }, (_, index) =>
    sealRows(rows.slice(index * 64, index * 64 + 64), processId),
  );
  return createCopyRows(pool)(seals, isBehind);
};

const written = (processId: string): Promise<unknown[]> =>
  createDatabase(pool)
    .selectFrom('request_log')
    .select(logColumns)
    .where('process_id', '=', processId)
    .orderBy('sequence')
    .execute();

const odd = [
  '',
  '\\N',
  '\\.',
  'null',
  'tab\tand\ttab\t',
  'line\nfeed\r\nand return\r',
  'back\\slash\\\\ and \\t, \\n, \\x41, \\101',
  '\b\f\v\u{7F}\u{85}\u{2028}',
  '"quotes", \'single\', {braces}, $1',
  'ü 😀 \u{10FFFF}',
  ' spaces ',
];

test('every column of a row is copied as it is inserted, whatever its text', async () => {
  const full = logEntry({
    span_id: 'span',
    parent_span_id: 'parent',
    span_name: 'a span',
    metadata: { user: 'u1' },
    stream: true,
    error_code: 'http_429',
    duration_ms: 0.1 + 0.2,
    first_event_ms: 1e-7,
    input_tokens: Number.MAX_SAFE_INTEGER,
    reasoning_tokens: 3,
    batch_id: 'batch_1',
    batch_line: 7,
    user_id: 'user_1',
    config_id: 'config_1',
    config: 'main',
    config_version: 3,
    integration: 'openai-org',
    prompt_slug: 'greeting',
    prompt_version: 2,
    cache_status: 'HIT',
    retries: 1,
    fallbacks: 2,
    upstream_ms: 1.5,
    cache_write_tokens: 4,
    audio_input_tokens: 5,
    audio_output_tokens: 6,
    usage_details: { images: { count: 2, kind: 'hd\t1024x1024' }, service_tier: 'flex' },
    cost: '12345678901234567.000000000001',
    saved_cost: '0.5',
    is_estimate: true,
    bodies_blob: 'blob',
    guardrails: [{ kind: 'output_guardrails', id: 'a\tb\\', slug: null, version: null, verdict: 'denied' }],
    steps: [{ kind: 'attempt', at_ms: 0, duration_ms: 1.25, status: null, error_code: 'a\tb', target: 'é\\' }],
  });
  const texts = odd.map((text) => logEntry({ model: text, trace_id: text, metadata: { [text]: text, other: text } }));
  const long = Object.fromEntries(Array.from({ length: 64 }, (_, index) => [`n${index}`, '\t\\é\n'.repeat(2_000)]));
  const entries = [full, logEntry({ key_id: null, status: null }), ...texts, logEntry({ metadata: long })];
  for (const way of ['copy', 'insert', 'insert of sealed ones']) {
    const processId = newProcessId();
    const rows = toRows(entries);
    const insertRows = createInsertRows(database.db, processId);
    if (way === 'copy') await copyRows(processId, rows);
    else await insertRows(way === 'insert' ? { rows, packs: [] } : sealRows(rows, processId).content());
    expect(await written(processId)).toEqual(rows);
  }
});

const paces: [string, boolean][] = [
  ['with pauses', false],
  ['at once, because more is waiting', true],
];

describe.each(paces)('%s', (_pace, isBehind) => {
  test.each([64, 65, 150, 512])('a group of %i rows is copied whole', async (length) => {
    const processId = newProcessId();
    const rows = toRows(Array.from({ length }, (_, index) => logEntry({ model: `model ${index} ü` })));
    await copyRows(processId, rows, isBehind);
    expect(await written(processId)).toEqual(rows);
  });

  test('no rows are no failure', async () => {
    await copyRows(newProcessId(), [], isBehind);
  });

  test('a piece that is refused refuses the whole group, and the next query meets none of the others', async () => {
    const processId = newProcessId();
    const entries = Array.from({ length: 400 }, (_, index) => logEntry(index === 70 ? { input_tokens: 1.5 } : {}));
    const error: unknown = await copyRows(processId, toRows(entries), isBehind).catch((thrown: unknown) => thrown);
    expect(getSqlState(error)).toBe('22P02');
    const rows = toRows(Array.from({ length: 400 }, () => logEntry()));
    await copyRows(processId, rows); // takes as long as the pieces that were left would have
    expect(await written(processId)).toEqual(rows);
    expect(pool.totalCount).toBe(1);
  });
});

test('half a character outside metadata becomes U+FFFD', async () => {
  const processId = newProcessId();
  await copyRows(processId, toRows([logEntry({ model: 'a\u{D83D}\tb' })]));
  expect(await written(processId)).toMatchObject([{ model: 'a\u{FFFD}\tb' }]);
});

test.each<[string, Partial<RequestLogEntry>, string]>([
  ['U+0000 in a text', { model: 'a\0b' }, '22021'],
  ['U+0000 in metadata', { metadata: { a: '\0' } }, '22P05'],
  ['half a character in metadata', { metadata: { a: '\u{D83D}' } }, '22P02'],
  ['a fraction of a token', { input_tokens: 1.5 }, '22P02'],
  ['a number too large', { attempts: 3e9 }, '22003'],
  ['a time that is no number', { duration_ms: NaN }, '23502'],
  ['a value that the table does not allow', { kind: 'neither' as 'live' }, '23514'],
])('%s refuses the whole group, and the session goes on', async (_name, bad, state) => {
  const processId = newProcessId();
  const rows = toRows([logEntry(), logEntry(bad), logEntry()]);
  const error: unknown = await copyRows(processId, rows).catch((thrown: unknown) => thrown);
  expect(getSqlState(error)).toBe(state);
  expect(await written(processId)).toEqual([]);
  await copyRows(processId, toRows([logEntry()]));
  expect(await written(processId)).toHaveLength(1);
  expect(pool.totalCount).toBe(1);
});

test('a row that is there already refuses the whole group', async () => {
  const processId = newProcessId();
  const rows = toRows([logEntry(), logEntry()]);
  await copyRows(processId, rows.slice(1));
  const error: unknown = await copyRows(processId, rows).catch((thrown: unknown) => thrown);
  expect(getSqlState(error)).toBe('23505');
  expect(await written(processId)).toEqual(rows.slice(1));
});

test('a copy that cannot begin fails with the reason, and the session goes on', async () => {
  const holder = await database.pool.connect();
  try {
    await holder.query('begin');
    await holder.query('lock table request_log_row in share mode');
    await pool.query(`set lock_timeout = '50ms'`);
    const rows = toRows([logEntry()]);
    const error: unknown = await copyRows(newProcessId(), rows).catch((thrown: unknown) => thrown);
    expect(getSqlState(error)).toBe('55P03');
  } finally {
    await holder.query('rollback');
    holder.release();
  }
  const processId = newProcessId();
  await copyRows(processId, toRows([logEntry()]));
  expect(await written(processId)).toHaveLength(1);
});

const changes = async (): Promise<[string, string][]> => {
  const taken = await database.db.deleteFrom('request_log_change').returningAll().execute();
  return taken.map(({ first_at: first, last_at: last }) => [first.toISOString(), last.toISOString()]);
};

test.each(['copy', 'insert'])('rows that are written by %s report the time of the first and the last', async (way) => {
  await changes();
  const processId = newProcessId();
  const at = (time: string, index: number): LogRow => {
    const recordedAt = Date.parse(`${day}T${time}Z`);
    return { ...logEntry(), recorded_on: day, id: newLogUuid(recordedAt, index), sequence: index };
  };
  // The clock of the process was set back between them.
  const rows = [at('10:00:59.900', 1), at('10:01:00.000', 2), at('09:58:30.001', 3)];
  if (way === 'copy') await copyRows(processId, rows);
  else await createInsertRows(database.db, processId)({ rows, packs: [] });
  expect(await changes()).toEqual([[`${day}T09:58:30.001Z`, `${day}T10:01:00.000Z`]]);
});

test('rows that are refused report nothing', async () => {
  await changes();
  await expect(copyRows(newProcessId(), toRows([logEntry({ model: 'a\0b' })]))).rejects.toThrow('invalid byte');
  expect(await changes()).toEqual([]);
});

import { expect, test } from 'vitest';
import { batchLineId } from '#libs/kernel/ids.ts';
import { createRandom } from '#test/faults/random.ts';
import { logEntry } from '#test/log-entry.ts';
import { sealRows } from '#test/seal-rows.ts';
import { columnList } from '../columns.ts';
import { boundEntry, logColumns, type LogRow, type RequestLogEntry } from '../row/log-entry.ts';
import { newLogUuid } from '../row/log-id.ts';
import { messageBytes, messageHeadBytes, readAllRows, RowSealer, unsealRows } from './sealed-rows.ts';

const noonMs = Date.UTC(2026, 10, 21, 12);

const texts = [
  '',
  'plain',
  'req_0123456789abcdef',
  '\\N',
  '\\.',
  'tab\tand\ttab\t',
  'line\nfeed\r\nand return\r',
  'back\\slash\\\\ and \\t, \\x41',
  '\b\f\v\u{7F}\u{85}\u{2028}',
  '"quotes", {braces}',
  'ü 😀 \u{10FFFF}',
  ' spaces ',
  'x'.repeat(256),
  'é'.repeat(256),
];
const times = [0, 1, 999, 1_000, noonMs, noonMs + 1, noonMs + 999, noonMs + 1_000, -1, 253_402_300_800_000];
const values: Record<string, readonly unknown[]> = {
  text: texts,
  cents: ['0', '0.3913', '12345678901234567.000000000001'],
  time: times.map((time) => new Date(time)),
  boolean: [true, false],
  integer: [0, 1, 9, 10, 99, 100, 12_345, 2 ** 31, 999_999_999, 1_000_000_000, Number.MAX_SAFE_INTEGER, -5],
  float: [0, 0.1 + 0.2, 0.001, 0.01, 0.1, 1.05, 812.25, 999_999_999.999, 1e9 + 0.5, 1e-7, 1e21, 5e-324, -0.5, 1.0005],
  json: [
    {},
    { 'a\t': 'b\\"', ü: '😀' },
    [{ kind: 'attempt', at_ms: 0.5 }],
    Object.fromEntries(texts.map((a) => [a, a])),
  ],
};

/** Rows with random values in every column. */
function makeRows(count: number, seed: number): LogRow[] {
  const random = createRandom(seed);
  return Array.from({ length: count }, (_, index) => {
    const entry = columnList.flatMap(([name, { type, isRequired, from }]) => {
      const isNull = isRequired !== true && random.chance(33);
      return from === undefined ? [] : [[name, isNull ? null : random.pick(values[type] ?? [])]];
    });
    return {
      ...(Object.fromEntries(entry) as RequestLogEntry),
      kind: 'live',
      recorded_on: '2026-11-21',
      id: newLogUuid(noonMs, index + 1),
      sequence: index + 1,
    };
  });
}

/** A value in the text format of COPY, as simple as possible. */
function toText(value: unknown): string {
  if (value === null) return '\\N';
  if (typeof value === 'boolean') return value ? 't' : 'f';
  const text =
    value instanceof Date
      ? value.toISOString()
      : typeof value === 'object'
        ? JSON.stringify(value)
        : `${value as string | number}`;
  return text.replaceAll('\\', '\\\\').replaceAll('\t', '\\t').replaceAll('\n', '\\n').replaceAll('\r', '\\r');
}

test('every value of a row is written as the text that Postgres reads as this value', () => {
  for (let seed = 1; seed <= 20; seed += 1) {
    const rows = makeRows(64, seed);
    const copyData = sealRows(rows, 'a-process').copyData as Buffer;
    const message = copyData.subarray(0, messageBytes(copyData));
    const lines = message.toString('utf8', messageHeadBytes).split('\n');
    expect(lines.pop()).toBe('');
    expect(lines.map((line) => line.split('\t')[0])).toEqual(rows.map(() => 'a-process'));
    const written = lines.map((line) => line.split('\t').slice(1));
    rows.forEach((row, index) => {
      // The same number can have several texts, such as 12.5 and 12.500.
      const expected = logColumns.map((name) => (typeof row[name] === 'number' ? row[name] : toText(row[name])));
      const actual = logColumns.map((name, at) => {
        const text = written[index]?.[at] ?? '';
        return typeof row[name] === 'number' ? Number(text) : text;
      });
      expect(actual).toEqual(expected);
    });
  }
});

test('rows are read from a seal as they were added, also after a time on disk', () => {
  const rows = makeRows(64, 21);
  const seal = sealRows(rows, 'a-process');
  expect(readAllRows(seal)).toEqual(rows);
  const read = unsealRows(seal.copyData as Buffer);
  expect(readAllRows(read)).toEqual(rows);
  expect(read).toMatchObject({ count: 64, days: seal.days, ids: seal.ids, sizeBytes: seal.sizeBytes });
});

test('long texts are cut in rows and in packs alike', () => {
  const long = logEntry({ model: '😀'.repeat(1_000), response_model: 'x'.repeat(257) });
  const line = (index: number): RequestLogEntry =>
    logEntry({ ...long, kind: 'batch', batch_id: 'b', batch_line: index, request_id: batchLineId('b', index) });
  const toRow = (entry: RequestLogEntry, index: number): LogRow => ({
    ...entry,
    recorded_on: '2026-11-21',
    id: newLogUuid(noonMs, index + 1),
    sequence: index + 1,
  });
  const entries = [long, ...Array.from({ length: 8 }, (_, index) => line(index))];
  const seal = sealRows(entries.map(toRow), 'a-process');
  expect(seal.content()).toMatchObject({ rows: [{ sequence: 1 }], packs: [{ lines: 8 }] });
  const read = readAllRows(seal);
  expect(read.map(({ model }) => model)).toEqual(entries.map((entry) => boundEntry(entry).model));
  expect(read.map(({ response_model: model }) => model)).toEqual(entries.map(() => `${'x'.repeat(255)}…`));
});

test('a row that cannot be written as text stays an object, with the others of its seal, and nothing of it is in the next', () => {
  const rows = makeRows(3, 22);
  const odd = rows.map((row, index) => (index === 1 ? { ...row, status: 200n as unknown as number } : row));
  const sealer = new RowSealer('a-process');
  for (const row of odd) sealer.add(row, row);
  const seal = sealer.seal();
  expect(seal.copyData).toBeNull();
  expect(seal.content()).toEqual({ rows: odd, packs: [] });
  expect(seal).toMatchObject({ count: 3, days: ['2026-11-21'], ids: { first: rows[0]?.id, last: rows[2]?.id } });
  for (const row of rows) sealer.add(row, row);
  expect(readAllRows(sealer.seal())).toEqual(rows);
});

test('the range of a seal has the lowest and the highest ID, and its days are listed once', () => {
  const ids = [5, 3, 9].map((ms) => newLogUuid(noonMs + ms, 1));
  const days = ['2026-11-21', '2026-11-22', '2026-11-21'];
  const rows = ids.map((id, index) => ({ ...logEntry(), id, recorded_on: days[index] ?? '', sequence: index + 1 }));
  expect(sealRows(rows, 'a-process')).toMatchObject({ ids: { first: ids[1], last: ids[2] }, days: days.slice(0, 2) });
});

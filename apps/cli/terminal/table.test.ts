import { expect, test } from 'vitest';
import { createTable, printable, type Column } from './table.ts';

type Row = { id: string; count: number | null; note: string; text: string };
const columns: readonly Column<Row>[] = [
  ['id', ({ id }) => id],
  ['count', ({ count }) => count],
  ['note', ({ note }) => note, { spare: 1 }],
  ['text', ({ text }) => text],
];
const rows: Row[] = [
  { id: 'a-long-id-of-20-chars', count: 5, note: 'short', text: 'one' },
  { id: 'b', count: 12_345, note: 'a longer note', text: 'the last column is the one that is cut' },
  { id: '日本', count: null, note: '', text: '' },
];
const plain = (lines: string[]): string[] => lines.map(printable);

test('columns stand under each other, numbers on the right, also beside wide characters', () => {
  expect(plain(createTable(columns, Infinity).linesOf(rows))).toEqual([
    'ID                     COUNT  NOTE           TEXT',
    'a-long-id-of-20-chars      5  short          one',
    'b                      12345  a longer note  the last column is the one that is cut',
    '日本                       -  -              -',
  ]);
});

test.each([30, 42, 45, 57, 70, 85])('no line of a table is wider than the %d columns of a terminal', (width) => {
  const lines = plain(createTable(columns, width).linesOf(rows.slice(0, 2)));
  // The ID, the count and the minimum width of the last column are always kept.
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(Math.max(width, 42));
});

test('a column is left out before the last one loses its meaning, and the table says which', () => {
  const wide = createTable(columns, 57);
  expect(plain(wide.linesOf(rows))[0]).toBe('ID                     COUNT  NOTE           TEXT');
  expect(wide.leftOut()).toEqual([]);
  const narrow = createTable(columns, 50);
  expect(plain(narrow.linesOf(rows))[0]).toBe('ID                     COUNT  TEXT');
  expect(narrow.leftOut()).toEqual(['note']);
});

test('rows that come later stand under those before them', () => {
  const table = createTable(columns, Infinity);
  const [, first = ''] = plain(table.linesOf(rows.slice(0, 1)));
  const [second = ''] = plain(table.linesOf([{ id: 'c', count: 7, note: 'n', text: 'two' }]));
  expect(second.indexOf('two')).toBe(first.indexOf('one'));
  expect(table.linesOf([])).toEqual([]);
});

test('what others have written cannot draw on the terminal', () => {
  expect(printable('a\u001b[2Jb\nc\u202ed')).toBe('ab c d');
});

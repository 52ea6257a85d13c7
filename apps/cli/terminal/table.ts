import { stripVTControlCharacters, styleText } from 'node:util';
import { isUtf8 } from '../server/config.ts';

/** A column of a table: its heading, the value that it shows for a row, and its layout. Numbers are right-aligned. */
export type Column<Row> = readonly [heading: string, show: (row: Row) => unknown, layout?: ColumnLayout];
export type ColumnLayout = {
  /** Right-aligned, like numbers. */
  right?: true;
  /** Left out if the table is too wide; columns with the lowest number are left out first. */
  spare?: number;
};

export type Table<Row> = {
  /** The lines of these rows. The first call adds the headings. */
  linesOf: (rows: readonly Row[]) => string[];
  /** Headings of the columns that were left out. */
  leftOut: () => string[];
};

/** Minimum width of the last column. */
const lastWidthMin = 12;

/**
 * A table whose rows are added all at the same time or one after the other. If it is wider than `width`, spare columns are
 * left out and the last column is cut. Other columns are never cut, because people copy IDs.
 */
export function createTable<Row>(columns: readonly Column<Row>[], width: number): Table<Row> {
  const widths = columns.map(([heading]) => heading.length);
  const isNumber = columns.map(() => false);
  let shown: number[] | null = null;
  return {
    linesOf(rows) {
      const cells = rows.map((row) => columns.map(([, show]) => show(row)));
      const texts = cells.map((row) => row.map(cellOf));
      for (const row of texts)
        for (const [at, text] of row.entries()) widths[at] = Math.max(widths[at] ?? 0, widthOf(text));
      const isFirst = shown === null;
      shown ??= fitting(columns, widths, width);
      const places = shown;
      for (const row of cells) for (const [at, value] of row.entries()) isNumber[at] ||= typeof value === 'number';
      const isRight = (at: number): boolean => columns[at]?.[2]?.right ?? isNumber[at] ?? false;
      const before = places.slice(0, -1).reduce((sum, at) => sum + (widths[at] ?? 0) + 2, 0);
      const line = (row: readonly string[]): string =>
        places
          .map((at, place) => {
            const text = row[at] ?? '';
            const space = ' '.repeat(Math.max(0, (widths[at] ?? 0) - widthOf(text)));
            if (isRight(at)) return space + text;
            return place === places.length - 1 ? cut(text, Math.max(lastWidthMin, width - before)) : text + space;
          })
          .join('  ')
          .trimEnd();
      const headings = isFirst ? [styleText('bold', line(columns.map(([heading]) => heading.toUpperCase())))] : [];
      return [...headings, ...texts.map(line)];
    },
    leftOut: () => columns.flatMap(([heading], at) => (shown?.includes(at) === false ? [heading] : [])),
  };
}

/** The columns that fit, if the last one has its minimum width. */
function fitting<Row>(columns: readonly Column<Row>[], widths: readonly number[], width: number): number[] {
  let places = columns.map((_column, at) => at);
  const spares = places
    .filter((at) => columns[at]?.[2]?.spare !== undefined)
    .toSorted((a, b) => (columns[a]?.[2]?.spare ?? 0) - (columns[b]?.[2]?.spare ?? 0));
  const needed = (): number =>
    places.reduce((sum, at, place) => {
      const own = widths[at] ?? 0;
      return sum + (place === places.length - 1 ? Math.min(own, lastWidthMin) : own + 2);
    }, 0);
  for (const spare of spares) {
    if (needed() <= width) break;
    places = places.filter((at) => at !== spare);
  }
  return places;
}

const cellOf = (value: unknown): string => {
  if (value === null || value === undefined || value === '') return '-';
  return printable(typeof value === 'string' ? value : JSON.stringify(value));
};

/** Untrusted text without the characters that control a terminal or reverse text. */
export const printable = (text: string): string =>
  stripVTControlCharacters(text).replaceAll(/[\p{Cc}\u202a-\u202e\u2066-\u2069]+/gu, ' ');

const wide = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]|\p{Emoji_Presentation}/u;

/** Approximate width of a text on a terminal; terminals differ. */
const widthOf = (text: string): number => Array.from(text).reduce((sum, each) => sum + (wide.test(each) ? 2 : 1), 0);

/** The text, cut to a width and ending with an ellipsis. */
export function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  const ellipsis = isUtf8() ? '…' : '...';
  let kept = '';
  let used = ellipsis.length;
  for (const each of text) {
    used += widthOf(each);
    if (used > width) break;
    kept += each;
  }
  return kept + ellipsis;
}

import { stripVTControlCharacters, styleText } from 'node:util';

// Data goes to stdout, everything else to stderr.

export type OutputOptions = { json?: boolean; table?: boolean };

/** A column of a table: its heading and what it shows of a row. */
export type Column<Row> = readonly [heading: string, show: (row: Row) => unknown];

export function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** Says something to the person at the terminal, beside the data. */
export function note(line: string): void {
  process.stderr.write(`${printable(line)}\n`);
}

/** Whether rows are printed as a table: on a terminal, unless an option says otherwise. */
export const showsTable = ({ json, table }: OutputOptions): boolean =>
  json !== true && (table === true || process.stdout.isTTY);

/** Prints rows as a table, or as one JSON object per line. A table without rows says `none` on stderr. */
export function printRows<Row>(rows: readonly Row[], columns: readonly Column<Row>[], options: OutputOptions): void {
  if (!showsTable(options)) for (const row of rows) print(JSON.stringify(row));
  else if (rows.length === 0) note('none');
  else for (const line of tableOf(rows, columns, widthOfTerminal(process.stdout, Infinity))) print(line);
}

/** Columns of a terminal. Some that were not told their size say 0, such as those of containers and `script`. */
export const widthOfTerminal = (stream: { columns?: number }, otherwise: number): number =>
  stream.columns === undefined || stream.columns === 0 ? otherwise : stream.columns;

/** Prints one object: a line for each member on a terminal, otherwise one line of JSON. */
export function printObject(value: object, options: OutputOptions): void {
  if (!showsTable(options)) {
    print(JSON.stringify(value));
    return;
  }
  const members = Object.entries(value);
  const width = Math.max(...members.map(([name]) => name.length));
  for (const [name, member] of members) {
    const text = textOf(name, member);
    print(`${styleText('dim', name.padEnd(width))}  ${printable(String(text))}`);
  }
}

/** Times are Unix seconds in objects that OpenAI has as well, and ISO 8601 texts elsewhere; a person reads neither. */
function textOf(name: string, member: unknown): unknown {
  if (name.endsWith('_at') && (typeof member === 'number' || typeof member === 'string')) return timeOf(member);
  return typeof member === 'object' && member !== null ? JSON.stringify(member) : (member ?? '-');
}

/**
 * The lines of a table. Only the last column is cut when the table is wider than `width`: the others have ids, which
 * people copy.
 */
export function tableOf<Row>(rows: readonly Row[], columns: readonly Column<Row>[], width: number): string[] {
  const cells = rows.map((row) => columns.map(([, show]) => cellOf(show(row))));
  const headings = columns.map(([heading]) => heading.toUpperCase());
  const widths = headings.map((heading, at) =>
    Math.max(...[heading, ...cells.map((row) => row[at] ?? '')].map(widthOf)),
  );
  const before = widths.slice(0, -1).reduce((sum, each) => sum + each + 2, 0);
  const line = (row: readonly string[]): string =>
    row
      .map((cell, at) =>
        at === row.length - 1
          ? cut(cell, Math.max(12, width - before))
          : cell + ' '.repeat((widths[at] ?? 0) - widthOf(cell) + 2),
      )
      .join('')
      .trimEnd();
  return [styleText('bold', line(headings)), ...cells.map(line)];
}

const cellOf = (value: unknown): string => {
  if (value === null || value === undefined || value === '') return '-';
  return printable(typeof value === 'string' ? value : JSON.stringify(value));
};

/** Text of others without what a terminal would obey: control characters, and those that turn text around. */
export const printable = (text: string): string =>
  stripVTControlCharacters(text).replaceAll(/[\p{Cc}\u202a-\u202e\u2066-\u2069]+/gu, ' ');

const wide = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]|\p{Emoji_Presentation}/u;

/** Columns that a terminal gives a text; close enough for what no terminal agrees on. */
const widthOf = (text: string): number => Array.from(text).reduce((sum, each) => sum + (wide.test(each) ? 2 : 1), 0);

function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let kept = '';
  let used = 1;
  for (const each of text) {
    used += widthOf(each);
    if (used > width) break;
    kept += each;
  }
  return `${kept}…`;
}
/** `2026-11-21 14:03` in local time; of Unix seconds or an ISO 8601 text. */
export function timeOf(value: string | number | null | undefined): string {
  if (value === null || value === undefined) return '-';
  const time = new Date(typeof value === 'number' ? value * 1_000 : value);
  if (Number.isNaN(time.getTime())) return String(value);
  const two = (part: number): string => String(part).padStart(2, '0');
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  return `${day} ${two(time.getHours())}:${two(time.getMinutes())}`;
}

/** US cents as dollars, with as many digits as small costs need. */
export function dollarsOf(cents: number | null | undefined): string {
  if (cents === null || cents === undefined) return '-';
  const dollars = cents / 100;
  return `$${dollars === 0 || Math.abs(dollars) >= 1 ? dollars.toFixed(2) : dollars.toPrecision(3)}`;
}

/** A number of bytes as people say it. */
export function bytesOf(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1_024 ** power;
  return `${power === 0 ? value : value.toFixed(1)} ${units[power]}`;
}

import { styleText } from 'node:util';
import { formatTime } from './quantities.ts';
import { createTable, printable, type Column, type Table } from './table.ts';

// Data goes to stdout, everything else to stderr.

export type OutputOptions = { json?: boolean; table?: boolean };

export function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** One line of JSON, with the members of all objects in snake_case. */
export const toJson = (value: unknown): string =>
  JSON.stringify(value, (_name, member: unknown) =>
    typeof member === 'object' && member !== null && !Array.isArray(member)
      ? Object.fromEntries(Object.entries(member).map(([name, each]) => [snakeCase(name), each]))
      : member,
  );

const snakeCase = (name: string): string => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/** Prints a message for people to stderr. */
export function note(line: string): void {
  process.stderr.write(`${printable(line)}\n`);
}

/** Whether rows are printed as a table: the default on a terminal, which options can override. */
export const showsTable = ({ json, table }: OutputOptions): boolean =>
  json !== true && (table === true || process.stdout.isTTY);

/** A table for stdout. */
export const tableForStdout = <Row>(columns: readonly Column<Row>[]): Table<Row> =>
  createTable(columns, widthOfTerminal(process.stdout, Infinity));

/** Prints rows as a table, or as one JSON object per line. For a table without rows, prints `none` to stderr. */
export function printRows<Row>(rows: readonly Row[], columns: readonly Column<Row>[], options: OutputOptions): void {
  if (!showsTable(options)) {
    for (const row of rows) print(JSON.stringify(row));
    return;
  }
  if (rows.length === 0) {
    note('none');
    return;
  }
  const table = tableForStdout(columns);
  for (const line of table.linesOf(rows)) print(line);
  noteLeftOut(table);
}

/** Prints the names of columns that were left out. */
function noteLeftOut(table: Pick<Table<unknown>, 'leftOut'>): void {
  const leftOut = table.leftOut();
  if (leftOut.length > 0) note(`Columns left out for lack of space: ${leftOut.join(', ')}. To see them, add --json.`);
}

/** The number of columns of a terminal. Some terminals report 0, such as those of containers and `script`. */
export const widthOfTerminal = (stream: { columns?: number }, otherwise: number): number =>
  stream.columns === undefined || stream.columns === 0 ? otherwise : stream.columns;

/**
 * Prints one object: on a terminal one line per member, where nested members are named like `request_counts.total`;
 * otherwise one line of JSON.
 */
export function printObject(value: object, options: OutputOptions): void {
  if (!showsTable(options)) {
    print(JSON.stringify(value));
    return;
  }
  const members = membersOf(value);
  const width = Math.max(0, ...members.map(([name]) => name.length));
  for (const [name, lines] of members)
    for (const [at, line] of lines.entries())
      print(`${styleText('dim', (at === 0 ? name : '').padEnd(width))}  ${printable(line)}`.trimEnd());
}

/** Nested objects are expanded to this depth; deeper ones are JSON. */
const depthMax = 3;

function membersOf(value: object, before = '', depth = 1): [name: string, lines: string[]][] {
  // `object` is meant for programs; people know which kind they requested. The ID comes first.
  const members = Object.entries(value).filter(([name]) => before !== '' || name !== 'object');
  members.sort(([a], [b]) => Number(before === '' && b === 'id') - Number(before === '' && a === 'id'));
  return members.flatMap(([name, member]: [string, unknown]): [string, string[]][] => {
    const path = before + name;
    const isOpen = typeof member === 'object' && member !== null && !Array.isArray(member) && depth < depthMax;
    if (isOpen && Object.keys(member).length > 0) return membersOf(member, `${path}.`, depth + 1);
    return [[path, linesOf(name, member)]];
  });
}

/** Each string of a list gets its own line if any of them contains a comma. */
function linesOf(name: string, member: unknown): string[] {
  const isList = Array.isArray(member) && member.length > 0 && member.every((each) => typeof each === 'string');
  if (!isList) return [asText(name, member)];
  return member.some((each) => each.includes(',')) ? member : [member.join(', ')];
}

/** Formats times, which are Unix seconds in objects of OpenAI's API and ISO 8601 elsewhere. */
function asText(name: string, member: unknown): string {
  if (name.endsWith('_at') && (typeof member === 'number' || typeof member === 'string'))
    return formatTime(member, { seconds: true });
  if (typeof member === 'string') return member === '' ? '-' : member;
  if (member === null || member === undefined) return '-';
  if (typeof member === 'object' && Object.keys(member).length === 0) return '-';
  // More digits than a tenth of a millisecond are not meaningful.
  return typeof member === 'number' && name.endsWith('_ms')
    ? String(Math.round(member * 10) / 10)
    : JSON.stringify(member);
}

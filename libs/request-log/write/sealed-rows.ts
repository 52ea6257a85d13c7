import { NotEncodableError } from './insert-rows.ts';
import { getIdRange, type IdRange } from './log-change.ts';
import type { Column } from '../columns.ts';
import { logColumns, rowColumns, type LogRow } from '../row/log-entry.ts';

/**
 * Rows on their way into the log, outside of V8's heap. As objects, thousands of them would live just long enough to
 * reach the old generation, which cost more than everything else. `copyData` is a CopyData message of all of them
 * (PostgreSQL documentation, "Message Flow"), or null if one of the rows cannot be written as text.
 */
export type SealedRows = {
  readonly count: number;
  /** Their memory, in bytes. */
  readonly sizeBytes: number;
  /** `YYYY-MM-DD` of each partition that they belong to. */
  readonly days: readonly string[];
  /** The lowest and the highest ID of the rows. */
  readonly ids: IdRange;
  readonly copyData: Buffer | null;
  /** The rows as objects, for all other uses than COPY. */
  readonly rows: () => LogRow[];
};

/** Seals rows that take `openBytes` as objects. Never throws. */
export function sealRows(rows: readonly LogRow[], processId: string, openBytes: number): SealedRows {
  const copyData = toCopyData(rows, processId);
  const kept = copyData === null ? [...rows] : null;
  return {
    count: rows.length,
    sizeBytes: copyData?.length ?? openBytes,
    days: [...new Set(rows.map((row) => row.recorded_on))],
    ids: getIdRange(rows),
    copyData,
    rows: () => kept ?? decodeRows(copyData?.toString('utf8', headBytes) ?? ''),
  };
}

/** Restores rows from the `copyData` of an earlier seal, by this or another process. */
export function unsealRows(copyData: Buffer): SealedRows {
  const lines = copyData.toString('utf8', headBytes).split('\n').slice(0, -1);
  return {
    count: lines.length,
    sizeBytes: copyData.length,
    // The first columns after the process.
    days: [...new Set(lines.map((line) => line.split('\t', 2)[1] ?? ''))],
    ids: getIdRange(lines.map((line) => ({ id: line.split('\t', 3)[2] ?? '' }))),
    copyData,
    rows: () => decodeRows(copyData.toString('utf8', headBytes)),
  };
}

const headBytes = 5;

function toCopyData(rows: readonly LogRow[], processId: string): Buffer | null {
  const text = encodeRows(rows, processId);
  if (text === null) return null;
  const sizeBytes = Buffer.byteLength(text);
  // A separate copy: a slice of the runtime's pool would keep the whole pool alive.
  const message = Buffer.allocUnsafeSlow(headBytes + sizeBytes);
  message.write('d', 0);
  message.writeUInt32BE(sizeBytes + 4, 1);
  message.write(text, headBytes);
  return message;
}

/** The rows in COPY's text format (https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"). */
function encodeRows(rows: readonly LogRow[], processId: string): string | null {
  let text = '';
  try {
    for (const row of rows) {
      text += processId;
      for (const column of logColumns) text += '\t' + encodeField(row[column]);
      text += '\n';
    }
  } catch {
    return null; // This value cannot be represented in JSON either. The INSERT will report it.
  }
  return text;
}

function encodeField(value: LogRow[keyof LogRow]): string {
  if (value === null) return '\\N';
  if (typeof value === 'string') return escapeText(value);
  // NaN and infinities become null, as in JSON.
  if (typeof value === 'number') return Number.isFinite(value) ? String(value) : '\\N';
  if (typeof value === 'boolean') return value ? 't' : 'f';
  return value instanceof Date ? value.toISOString() : escapeText(JSON.stringify(value));
}

const special = /[\\\t\n\r]/;
const escapes: Readonly<Record<string, string>> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' };
const unescapes: Readonly<Record<string, string>> = { '\\\\': '\\', '\\t': '\t', '\\n': '\n', '\\r': '\r' };

function escapeText(text: string): string {
  return special.test(text) ? text.replace(/[\\\t\n\r]/g, (character) => escapes[character] ?? character) : text;
}

const unescapeText = (text: string): string => text.replace(/\\[\\tnr]/g, (pair) => unescapes[pair] ?? pair);

/** The rows that `encodeRows` wrote. Half a character in a text has become U+FFFD. */
function decodeRows(text: string): LogRow[] {
  return text
    .slice(0, -1)
    .split('\n')
    .map((line) => {
      const [, ...fields] = line.split('\t');
      const values = rowColumns.map(([name, column], index) => [name, decodeField(column, fields[index] ?? '\\N')]);
      return Object.fromEntries(values) as LogRow;
    });
}

function decodeField({ type, isRequired }: Column, field: string): unknown {
  const isNumber = type === 'integer' || type === 'float';
  // A number that is never null was not finite. The code that cleans the row replaces it.
  if (field === '\\N') return isNumber && isRequired === true ? Number.NaN : null;
  if (isNumber) return Number(field);
  if (type === 'boolean') return field === 't';
  if (type === 'time') return new Date(field);
  const text = unescapeText(field);
  return type === 'json' ? JSON.parse(text) : text;
}

/** The CopyData messages of a group. Throws NotEncodableError. */
export function toCopyMessages(group: readonly SealedRows[]): Buffer[] {
  return group.map(({ copyData }) => {
    if (copyData === null) throw new NotEncodableError('a request-log row cannot be serialised');
    return copyData;
  });
}

import { NotEncodableError } from './insert-rows.ts';
import { getIdRange, type IdRange } from './log-change.ts';
import { packColumns, packRows, unpackRows, type LogPack, type RowsAndPacks } from './pack-rows.ts';
import type { Column } from '../columns.ts';
import { rowColumns, type LogRow } from '../row/log-entry.ts';

/**
 * Rows on their way into the log, outside of V8's heap. As objects, thousands of them would live just long enough to
 * reach the old generation, which cost more than everything else. `copyData` is two CopyData messages (PostgreSQL
 * documentation, "Message Flow"), of which either can be empty: the rows, and the packs of the other rows. It is null
 * if one of the rows cannot be written as text.
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
  /** What is written, as objects, for all other uses than COPY. */
  readonly content: () => RowsAndPacks;
};

/** All rows of a seal, those of its packs included. */
export function readAllRows({ content }: SealedRows): LogRow[] {
  const { rows, packs } = content();
  return [...rows, ...packs.flatMap(unpackRows)].toSorted((a, b) => a.sequence - b.sequence);
}

/** Seals rows that take `openBytes` as objects. Never throws. */
export function sealRows(rows: readonly LogRow[], processId: string, openBytes: number): SealedRows {
  const content = packRows(rows);
  const copyData = toCopyData(content, processId);
  const kept = copyData === null ? { rows: [...rows], packs: [] } : null;
  return {
    count: rows.length,
    sizeBytes: copyData?.length ?? openBytes,
    days: [...new Set(rows.map((row) => row.recorded_on))],
    ids: getIdRange(rows),
    copyData,
    content: () => kept ?? decode(copyData as Buffer),
  };
}

/** Restores rows from the `copyData` of an earlier seal, by this or another process. */
export function unsealRows(copyData: Buffer): SealedRows {
  const { rows, packs } = decode(copyData);
  const ids = [...rows, ...packs.flatMap(({ first_id, last_id }) => [{ id: first_id }, { id: last_id }])];
  return {
    count: packs.reduce((sum, { lines }) => sum + lines, rows.length),
    sizeBytes: copyData.length,
    days: [...new Set([...rows, ...packs].map((row) => row.recorded_on))],
    ids: getIdRange(ids),
    copyData,
    content: () => decode(copyData),
  };
}

/** The head of a CopyData message: its letter and its length, which includes itself but not the letter. */
export const messageHeadBytes = 5;
/** The bytes of a CopyData message that begins with `head`. */
export const messageBytes = (head: Buffer): number => 1 + head.readUInt32BE(1);

/** The two messages of a seal: rows and packs. */
function splitMessages(copyData: Buffer): [rows: Buffer, packs: Buffer] {
  const packsAt = messageBytes(copyData);
  return [copyData.subarray(0, packsAt), copyData.subarray(packsAt)];
}

function toCopyData({ rows, packs }: RowsAndPacks, processId: string): Buffer | null {
  let texts: string[];
  try {
    texts = [encodeLines(processId, rows, rowFields), encodeLines(processId, packs, packColumns)];
  } catch {
    return null; // This value cannot be represented in JSON either. The INSERT will report it.
  }
  const sizes = texts.map((text) => Buffer.byteLength(text));
  // A separate copy: a slice of the runtime's pool would keep the whole pool alive.
  const data = Buffer.allocUnsafeSlow(sizes.reduce((sum, sizeBytes) => sum + messageHeadBytes + sizeBytes, 0));
  let at = 0;
  for (const [index, text] of texts.entries()) {
    const sizeBytes = sizes[index] ?? 0;
    data.write('d', at);
    data.writeUInt32BE(sizeBytes + 4, at + 1);
    data.write(text, at + messageHeadBytes);
    at += messageHeadBytes + sizeBytes;
  }
  return data;
}

type Elements = readonly (string | number | Date | null)[];

/** A column of a line of COPY. `isArray`: it has a list of values of this type. */
type Field = { name: string; type: Column['type']; isRequired?: true | undefined; isArray: boolean };
const rowFields: readonly Field[] = rowColumns.map(([name, column]) => ({ ...column, name, isArray: false }));

/** Lines of COPY's text format (https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"). */
function encodeLines(processId: string, values: readonly object[], fields: readonly Field[]): string {
  let text = '';
  for (const value of values as readonly Record<string, unknown>[]) {
    text += processId;
    for (const { name, isArray } of fields) {
      text += '\t' + (isArray ? encodeArray(value[name] as Elements | null) : encodeField(value[name]));
    }
    text += '\n';
  }
  return text;
}

function encodeField(value: unknown): string {
  if (value === null || value === undefined) return '\\N';
  if (typeof value === 'string') return escapeText(value);
  // NaN and infinities become null, as in JSON.
  if (typeof value === 'number') return Number.isFinite(value) ? String(value) : '\\N';
  if (typeof value === 'boolean') return value ? 't' : 'f';
  return value instanceof Date ? value.toISOString() : escapeText(JSON.stringify(value));
}

/** An array of numbers, times and texts (https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO). */
function encodeArray(values: Elements | null): string {
  if (values === null) return '\\N';
  const elements = values.map((value) => {
    if (value === null) return 'NULL';
    if (value instanceof Date) return value.toISOString();
    return typeof value === 'string' ? `"${value.replace(/["\\]/g, '\\$&')}"` : String(value);
  });
  return escapeText(`{${elements.join(',')}}`);
}

const special = /[\\\t\n\r]/;
const escapes: Readonly<Record<string, string>> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' };
const unescapes: Readonly<Record<string, string>> = { '\\\\': '\\', '\\t': '\t', '\\n': '\n', '\\r': '\r' };

function escapeText(text: string): string {
  return special.test(text) ? text.replace(/[\\\t\n\r]/g, (character) => escapes[character] ?? character) : text;
}

const unescapeText = (text: string): string => text.replace(/\\[\\tnr]/g, (pair) => unescapes[pair] ?? pair);

/** What `toCopyData` wrote. Half a character in a text has become U+FFFD. */
function decode(copyData: Buffer): RowsAndPacks {
  const [rows, packs] = splitMessages(copyData).map((message) => message.toString('utf8', messageHeadBytes));
  return {
    rows: decodeLines(rows ?? '', rowFields) as LogRow[],
    packs: decodeLines(packs ?? '', packColumns) as LogPack[],
  };
}

function decodeLines(text: string, fields: readonly Field[]): object[] {
  const lines = text.split('\n').slice(0, -1);
  return lines.map((line) => {
    const [, ...values] = line.split('\t');
    return Object.fromEntries(fields.map((field, index) => [field.name, decodeField(field, values[index] ?? '\\N')]));
  });
}

function decodeField({ type, isRequired, isArray }: Field, field: string): unknown {
  if (isArray) return field === '\\N' ? null : decodeArray(type, unescapeText(field));
  const isNumber = type === 'integer' || type === 'float';
  // A number that is never null was not finite. The code that cleans the row replaces it.
  if (field === '\\N') return isNumber && isRequired === true ? Number.NaN : null;
  if (isNumber) return Number(field);
  if (type === 'boolean') return field === 't';
  if (type === 'time') return new Date(field);
  const text = unescapeText(field);
  return type === 'json' ? JSON.parse(text) : text;
}

const element = /"((?:[^"\\]|\\.)*)"|([^{},]+)/gs;

function decodeArray(type: Column['type'], array: string): unknown[] {
  return Array.from(array.matchAll(element), ([, quoted, plain = '']) => {
    if (quoted !== undefined) return quoted.replace(/\\(.)/gs, '$1');
    if (plain === 'NULL') return null;
    return type === 'time' ? new Date(plain) : Number(plain);
  });
}

/** The COPYs of a group: for each table, its messages. Throws NotEncodableError. */
export function toCopies(
  group: readonly SealedRows[],
): { table: 'request_log_row' | 'request_log_pack'; pieces: Buffer[] }[] {
  const messages = group.map(({ copyData }) => {
    if (copyData === null) throw new NotEncodableError('a request-log row cannot be serialised');
    return splitMessages(copyData);
  });
  const copies = [
    { table: 'request_log_row' as const, pieces: messages.map(([rows]) => rows) },
    { table: 'request_log_pack' as const, pieces: messages.map(([, packs]) => packs) },
  ];
  return copies.flatMap(({ table, pieces }) => {
    const filled = pieces.filter((piece) => piece.length > messageHeadBytes);
    return filled.length === 0 ? [] : [{ table, pieces: filled }];
  });
}

import { toStorableText } from '#libs/kernel/storable-text.ts';
import { columnList, type Column, type NamesWith, type RequestLogTable } from '../columns.ts';

/**
 * One live request or batch line in the log, under the names of its columns: its caller and target, how it ended, how
 * long it took and what it used. Never a body, a prompt or a secret. The log adds ID, day and sequence.
 */
export type RequestLogEntry = { -readonly [Name in NamesWith<{ from: unknown }>]: RequestLogTable[Name] };

/** Where a row is in the log. */
export type RowPosition = Pick<RequestLogTable, 'recorded_on' | 'id' | 'sequence'>;

/** An entry with its position. */
export type LogRow = RequestLogEntry & RowPosition;

/** The columns of a `LogRow`, in the order in which rows are written. */
export const rowColumns = columnList.filter(([name]) => name !== 'process_id') as [keyof LogRow, Column][];
export const logColumns = rowColumns.map(([name]) => name);

/** The maximum length of one text: that of a tracing header. An indexed text must also fit an index page. */
export const logTextMax = 256;

const textColumns = columnList.flatMap(([name, { type, from }]) =>
  type === 'text' && from !== undefined ? [name] : [],
) as TextColumn[];
type TextColumn = NamesWith<{ type: 'text'; from: unknown }>;

/**
 * Cuts texts longer than `logTextMax`: some come from a provider or caller, and thousands of entries wait in memory
 * while the database is unavailable. Nearly always returns the entry itself, at the cost of a few length checks.
 */
export function boundEntry(entry: RequestLogEntry): RequestLogEntry {
  if (!textColumns.some((column) => isLong(entry[column]))) return entry;
  return { ...entry, ...Object.fromEntries(textColumns.map((column) => [column, boundText(entry[column])])) };
}

/** Copied through bytes: a plain slice would retain the long text in memory, and could end in half a character. */
export const boundText = (text: string | null): string | null =>
  isLong(text) ? Buffer.from(text.slice(0, logTextMax - 1)).toString() + '…' : text;

const isLong = (text: string | null): text is string => typeof text === 'string' && text.length > logTextMax;

/** Estimates the memory of a waiting entry in bytes. */
export function entrySizeBytes({ metadata, steps, guardrails }: RequestLogEntry): number {
  let size = 1_024; // The object, its usual texts and its place in the queue.
  if (steps !== null) size += 400 * steps.length;
  if (guardrails !== null) size += 400 * guardrails.length;
  if (metadata !== null) for (const name in metadata) size += 100 + 2 * (name.length + (metadata[name]?.length ?? 0));
  return size;
}

/**
 * Returns a rejected row in a form that Postgres certainly accepts. A provider that answers with U+0000 in a model's
 * name, or with half a token, must not prevent a call from being recorded.
 */
export function cleanRow(row: LogRow): LogRow {
  return Object.fromEntries(rowColumns.map(([name, column]) => [name, cleanValue(column, row[name])])) as LogRow;
}

function cleanValue({ type, isRequired }: Column, value: unknown): unknown {
  if (typeof value === 'string') return toStorableText(value);
  if (typeof value === 'number') {
    const number = type === 'integer' ? Math.trunc(value) : value;
    if (Number.isFinite(number) && Math.abs(number) <= Number.MAX_SAFE_INTEGER) return number;
    return isRequired === true ? 0 : null;
  }
  // Lists are the steps and the results of guardrails, whose texts are storable.
  if (type !== 'json' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value as object).map(([name, each]: [string, unknown]) => [
      toStorableText(name),
      typeof each === 'number' ? each : toStorableText(typeof each === 'string' ? each : JSON.stringify(each)),
    ]),
  );
}

import { toStorableText } from '#libs/kernel/storable-text.ts';
import { columnList, type Column, type NamesWith, type RequestLogTable } from '../columns.ts';

/**
 * One live request or batch line in the log, under the names of its columns: who called what, how it ended, how long it took
 * and what it used. Never a body, a prompt or a secret. The log adds id, day and sequence.
 */
export type RequestLogEntry = { -readonly [Name in NamesWith<{ from: unknown }>]: RequestLogTable[Name] };

/** An entry with its position in the log. */
export type LogRow = RequestLogEntry & Pick<RequestLogTable, 'recorded_on' | 'id' | 'sequence'>;

/** The columns of a `LogRow`, in the order in which rows are written. */
export const rowColumns = columnList.filter(([name]) => name !== 'process_id') as [keyof LogRow, Column][];
export const logColumns = rowColumns.map(([name]) => name);

/** The most characters of one text: as long as a tracing header may be. An indexed text must also fit an index page. */
export const logTextMax = 256;

const textColumns = columnList.flatMap(([name, { type, from }]) =>
  type === 'text' && from !== undefined ? [name] : [],
) as TextColumn[];
type TextColumn = NamesWith<{ type: 'text'; from: unknown }>;

/**
 * Cuts texts longer than `logTextMax`: some come from a provider or caller, and thousands of entries wait in memory while the
 * database is unavailable. Nearly always returns the entry itself, at the cost of a few length checks.
 */
export function boundEntry(entry: RequestLogEntry): RequestLogEntry {
  for (const column of textColumns) {
    const text = entry[column];
    if (text !== null && text.length > logTextMax) return cutTexts(entry);
  }
  return entry;
}

function cutTexts(entry: RequestLogEntry): RequestLogEntry {
  const cut: Partial<Record<keyof RequestLogEntry, string>> = {};
  for (const column of textColumns) {
    const text = entry[column];
    // Copied through bytes: a plain slice would keep the long text in memory, and might end in half a character.
    if (text !== null && text.length > logTextMax) {
      cut[column] = Buffer.from(text.slice(0, logTextMax - 1)).toString() + '…';
    }
  }
  return { ...entry, ...cut } as RequestLogEntry;
}

/** About how many bytes of memory a waiting entry holds. */
export function entrySizeBytes({ metadata, steps }: RequestLogEntry): number {
  let size = 1_024; // the object, its usual texts and its place in the queue
  if (steps !== null) size += 400 * steps.length;
  if (metadata !== null) for (const name in metadata) size += 100 + 2 * (name.length + (metadata[name]?.length ?? 0));
  return size;
}

/**
 * The row as Postgres is sure to take it: for one that was refused. A provider that answers with U+0000 in a model's
 * name, or with half a token, must not keep a call out of the log.
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
  // A list is that of the steps, whose texts are storable.
  if (type !== 'json' || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(
    Object.entries(value as object).map(([name, each]: [string, unknown]) => [
      toStorableText(name),
      typeof each === 'number' ? each : toStorableText(typeof each === 'string' ? each : JSON.stringify(each)),
    ]),
  );
}

import type { Selectable } from 'kysely';
import type { RequestLogTable } from '#libs/database/schema.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';

/**
 * One live request or batch line in the log, under the names of its columns: who called what, how it ended, how long it took
 * and what it used. Never a body, a prompt or a secret. The log adds id, day and sequence.
 */
export type RequestLogEntry = Omit<
  Selectable<RequestLogTable>,
  'recorded_on' | 'id' | 'process_id' | 'sequence' | 'metadata'
> & { metadata: Readonly<Record<string, string>> | null };

/** An entry with its position in the log. */
export type LogRow = RequestLogEntry & { recorded_on: string; id: string; sequence: number };

/** The most characters of one text: as long as a tracing header may be. An indexed text must also fit an index page. */
export const logTextMax = 256;

const textColumns = [
  'operation',
  'request_id',
  'trace_id',
  'span_id',
  'parent_span_id',
  'span_name',
  'provider',
  'virtual_key',
  'model',
  'response_model',
  'provider_request_id',
  'error_code',
  'finish_reason',
  'last_used_option',
  'path',
  'config',
  'integration',
  'prompt_slug',
] as const satisfies (keyof RequestLogEntry)[];

const integerColumns: ReadonlySet<string> = new Set<keyof RequestLogEntry>([
  'status',
  'attempts',
  'input_tokens',
  'cached_tokens',
  'output_tokens',
  'reasoning_tokens',
  'batch_line',
  'retries',
  'fallbacks',
  'cache_write_tokens',
  'audio_input_tokens',
  'audio_output_tokens',
]);

const objectColumns: ReadonlySet<string> = new Set<keyof RequestLogEntry>(['metadata', 'usage_details']);

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
  const bounded = { ...entry };
  for (const column of textColumns) {
    const text = entry[column];
    // Copied through bytes: a plain slice would keep the long text in memory, and might end in half a character.
    if (text !== null && text.length > logTextMax) {
      bounded[column] = Buffer.from(text.slice(0, logTextMax - 1)).toString() + '…';
    }
  }
  return bounded;
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
  const clean = Object.entries(row).map(([column, value]) => [column, cleanValue(column, value)]);
  return Object.fromEntries(clean) as LogRow;
}

function cleanValue(column: string, value: unknown): unknown {
  if (typeof value === 'string') return toStorableText(value);
  if (typeof value === 'number') return cleanNumber(column, value);
  if (!objectColumns.has(column) || typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [
      toStorableText(name),
      typeof each === 'number' ? each : toStorableText(typeof each === 'string' ? each : JSON.stringify(each)),
    ]),
  );
}

function cleanNumber(column: string, value: number): number | null {
  const number = integerColumns.has(column) ? Math.trunc(value) : value;
  if (Number.isFinite(number) && Math.abs(number) <= Number.MAX_SAFE_INTEGER) return number;
  return column === 'attempts' || column === 'duration_ms' ? 0 : null;
}

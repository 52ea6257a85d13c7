import { formatAmount, parseAmount } from '#libs/kernel/amount.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import { columnList, columns, type Column, type PerLine, type RequestLogPackTable } from '../columns.ts';
import { toLatencyBin } from '../row/latency-bin.ts';
import { rowColumns, type LogRow } from '../row/log-entry.ts';
import { getLogUuidTime } from '../row/log-id.ts';
import { getIdRange } from './log-change.ts';

export type LogPack = Omit<RequestLogPackTable, 'process_id'>;

export type RowsAndPacks = { rows: readonly LogRow[]; packs: readonly LogPack[] };

const isPerLine = (column: Column): boolean => column.isPerLine === true;
const perLine = columnList.filter(([, column]) => isPerLine(column)) as [PerLine, Column][];
/** A pack does not store this column, because it follows from the batch and the line. */
const derived = 'request_id' satisfies keyof LogRow;
const packed = rowColumns.filter(([name]) => name !== derived) as [Exclude<keyof LogRow, typeof derived>, Column][];
const shared = packed.filter(([, column]) => !isPerLine(column));
const sums = {
  first_id: 'uuid',
  last_id: 'uuid',
  lines: 'integer',
  sum_input_tokens: 'integer',
  sum_output_tokens: 'integer',
  sum_cached_tokens: 'integer',
  sum_cache_write_tokens: 'integer',
  sum_cost: 'cents',
  sum_saved_cost: 'cents',
  sum_prompt_cache_saved: 'cents',
  sum_duration_us: 'integer',
  unpriced: 'integer',
  latency: 'text',
} as const satisfies Partial<Record<keyof LogPack, Column['type']>>;

/**
 * The columns of a `LogPack` in the order in which they are written, new ones of the log at the end; `isArray`: with a
 * value for each line.
 */
export const packColumns: readonly { name: keyof LogPack; type: Column['type']; isArray: boolean }[] = [
  ...Object.entries(sums).map(([name, type]) => ({ name: name as keyof LogPack, type, isArray: false })),
  ...packed.map(([name, column]) => {
    const isArray = isPerLine(column);
    return { name, type: isArray && column.type === 'json' ? ('text' as const) : column.type, isArray };
  }),
];

/** Fewer lines take more space in a pack, with its sums and index entries, than in rows. */
const packLinesMin = 8;
const minuteMs = 60_000;

/**
 * Divides rows into packs and the remaining rows, in their order. A pack has lines of one batch that agree in every
 * column that is not `isPerLine`, and were recorded in the same minute. Lines with recorded bodies are not packed, and
 * neither is a row with a number that is not finite, because it has to be cleaned.
 */
export function packRows(rows: readonly LogRow[]): RowsAndPacks {
  if (rows.length < packLinesMin) return { rows, packs: [] };
  const groups: { first: LogRow; minute: number; rows: LogRow[] }[] = [];
  for (const row of rows) {
    if (!isPackable(row)) continue;
    const minute = toMinute(row);
    const group = groups.findLast(({ first, minute: other }) => minute === other && isAlike(first, row));
    if (group === undefined) groups.push({ first: row, minute, rows: [row] });
    else group.rows.push(row);
  }
  const packed = groups.filter((group) => group.rows.length >= packLinesMin);
  if (packed.length === 0) return { rows, packs: [] };
  const inPacks = new Set(packed.flatMap((group) => group.rows));
  return { rows: rows.filter((row) => !inPacks.has(row)), packs: packed.map((group) => toPack(group.rows)) };
}

/** The lines of a pack as rows, in their order. */
export function unpackRows(pack: LogPack): LogRow[] {
  return Array.from({ length: pack.lines }, (_, index) => {
    const values = packed.map(([name, column]) => [
      name,
      isPerLine(column) ? readValue(pack, name as PerLine, index) : pack[name],
    ]);
    const row = Object.fromEntries(values) as Omit<LogRow, 'request_id'>;
    return { ...row, request_id: batchLineId(pack.batch_id, row.batch_line as number) };
  });
}

function readValue(pack: LogPack, name: PerLine, index: number): unknown {
  const value = pack[name]?.[index] ?? null;
  return value !== null && columns[name].type === 'json' ? JSON.parse(value as string) : value;
}

const toMinute = ({ id }: LogRow): number => Math.floor(getLogUuidTime(id) / minuteMs);

const numbersPerLine = perLine.flatMap(([name, { type }]) => (type === 'integer' || type === 'float' ? [name] : []));

const isPackable = (row: LogRow): boolean =>
  row.kind === 'batch' &&
  row.batch_id !== null &&
  row.batch_line !== null &&
  row.bodies_blob === null &&
  numbersPerLine.every((name) => row[name] === null || Number.isFinite(row[name]));

const sameJson = (a: object | null, b: object | null): boolean =>
  a === b || (a !== null && b !== null && JSON.stringify(a) === JSON.stringify(b));

/**
 * Whether two rows agree in all columns that a pack has once. Compiled, like the code that fills rows. JSON comes last,
 * because a caller's metadata can be large, and lines of other batches must not be compared by it.
 */
// oxlint-disable-next-line typescript/no-implied-eval -- the names come from the list of columns
const isAlike = new Function(
  'sameJson',
  `return (a, b) => ${shared
    .toSorted(([, a], [, b]) => Number(a.type === 'json') - Number(b.type === 'json'))
    .map(([name, { type }]) => (type === 'json' ? `sameJson(a.${name}, b.${name})` : `a.${name} === b.${name}`))
    .join(' && ')}`,
)(sameJson) as (a: LogRow, b: LogRow) => boolean;

function toPack(rows: readonly LogRow[]): LogPack {
  const [first] = rows as [LogRow];
  const arrays = Object.fromEntries(perLine.map(([name]) => [name, toArray(rows, name)])) as Pick<LogPack, PerLine>;
  const bins = new Map<number, number>();
  for (const { duration_ms: durationMs } of rows) {
    const bin = toLatencyBin(durationMs);
    bins.set(bin, (bins.get(bin) ?? 0) + 1);
  }
  const ids = getIdRange(rows);
  return {
    ...first,
    ...arrays,
    batch_id: first.batch_id as string,
    first_id: ids.first,
    last_id: ids.last,
    lines: rows.length,
    sum_input_tokens: addUp(rows, 'input_tokens'),
    sum_output_tokens: addUp(rows, 'output_tokens'),
    sum_cached_tokens: addUp(rows, 'cached_tokens'),
    sum_cache_write_tokens: addUp(rows, 'cache_write_tokens'),
    sum_cost: addCents(rows, 'cost'),
    sum_saved_cost: addCents(rows, 'saved_cost'),
    sum_prompt_cache_saved: addCents(rows, 'prompt_cache_saved'),
    sum_duration_us: rows.reduce((sum, row) => sum + Math.round(row.duration_ms * 1_000), 0),
    unpriced: rows.filter((row) => row.cost === null).length,
    latency: [...bins]
      .toSorted(([a], [b]) => a - b)
      .map(([bin, lines]) => `${bin}:${lines}`)
      .join(','),
  };
}

function toArray(rows: readonly LogRow[], name: PerLine): unknown[] | null {
  if (!rows.some((row) => row[name] !== null)) return null;
  if (columns[name].type !== 'json') return rows.map((row) => row[name]);
  return rows.map((row) => (row[name] === null ? null : JSON.stringify(row[name])));
}

type TokenColumn = 'input_tokens' | 'output_tokens' | 'cached_tokens' | 'cache_write_tokens';

const addUp = (rows: readonly LogRow[], name: TokenColumn): number =>
  rows.reduce((sum, row) => sum + (row[name] ?? 0), 0);

function addCents(rows: readonly LogRow[], name: 'cost' | 'saved_cost' | 'prompt_cache_saved'): string {
  let sum = 0n;
  for (const row of rows) if (row[name] !== null) sum += parseAmount(row[name]);
  return formatAmount(sum);
}

import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { columnList, type ColumnName, type RequestLogTable } from '../columns.ts';
import { fromLogId, getLogUuidTime, toLogId, utcDay } from '../row/log-id.ts';
import { listLogDays } from '../write/log-partitions.ts';

/**
 * Calls of a workspace were sealed: all of its rows from `first` to `last` of each process, without lines of batches.
 * `root`: of the RFC 6962 tree over their leaves, in the order of their IDs, in hex.
 */
export type CallsSealed = {
  records: number;
  root: string;
  /** IDs of the first and the last record. */
  first_id: string;
  last_id: string;
  processes: { process_id: string; first: number; last: number; records: number }[];
};

export const sealType = 'request_log.calls_sealed';

export type RequestLogEvent = { type: typeof sealType; data: CallsSealed };

/** The stream of the seals of a workspace. */
export const sealStream = (workspaceId: string): string => `request_log_${workspaceId}`;

/** How these events are folded: a request log has no fields. */
export const requestLogKind = {
  noun: 'request_log',
  removal: false,
  history: { events: { calls_sealed: (data: object): object => data }, neverActive: ['calls_sealed'] },
} as const;

export const requestLogModel = resourceModel([requestLogKind]);

// The day follows from the ID, and recorded bodies are deleted before the record.
const unsealed = ['recorded_on', 'bodies_blob'] as const satisfies ColumnName[];
type SealedColumn = Exclude<ColumnName, (typeof unsealed)[number]>;
const sealedColumns = columnList
  .map(([name]) => name)
  .filter((name) => !(unsealed as readonly ColumnName[]).includes(name)) as SealedColumn[];

/** A row of the log as far as it is sealed. */
export type SealedRow = Pick<RequestLogTable, SealedColumn>;

/**
 * The record of a call as it is sealed: the columns that are not null. The e-mail address of the user is left out, so that
 * erasing it leaves every leaf as it was (decision 60); the ID of the user is sealed.
 */
export const toSealedRecord = (row: SealedRow): Record<string, unknown> =>
  Object.fromEntries(
    sealedColumns.map((name) => [name, sealedValue(row, name)] as const).filter(([, value]) => value !== null),
  );

/** The names of the columns in canonical order. */
const names = sealedColumns.toSorted().map((name) => ({ name, json: `${JSON.stringify(name)}:` }));

/** The leaf of a record: its canonical JSON. Written column by column, it takes half the time of `canonicalJson`. */
export function toLeaf(row: SealedRow): Buffer {
  let text = '';
  for (const { name, json } of names) {
    const value = sealedValue(row, name);
    if (value !== null) text += `${text === '' ? '{' : ','}${json}${canonicalJson(value)}`;
  }
  return Buffer.from(`${text}}`);
}

function sealedValue(row: SealedRow, name: SealedColumn): unknown {
  if (name === 'id') return toLogId(row.id);
  if (name !== 'metadata' || row.metadata === null) return row[name];
  const { _user: _email, ...metadata } = row.metadata;
  return metadata;
}

/** Rows that are read together. Reading and hashing them takes about ten milliseconds. */
const defaultPageRows = 500;

/** A part of the rows of a seal: those after a row, by its UUID, and those that a condition selects. */
type SealedPart = { after?: string | null; only?: RawBuilder<boolean>; pageRows?: number };

/** The rows of a seal that exist, in the order of its leaves. A page can be empty. */
export async function* readSealedRows(
  db: Kysely<Database>,
  workspaceId: string,
  { first_id, last_id, processes }: Pick<CallsSealed, 'first_id' | 'last_id' | 'processes'>,
  { after: start = null, only = sql`true`, pageRows = defaultPageRows }: SealedPart = {},
): AsyncGenerator<SealedRow[]> {
  const ranges = processes.map(
    (each) => sql`(process_id = ${each.process_id} and sequence between ${each.first} and ${each.last})`,
  );
  const isInside = sql<boolean>`(${sql.join(ranges, sql` or `)})`;
  const [first = '', last = ''] = [fromLogId(first_id), fromLogId(last_id)];
  for (const { day } of await listLogDays(db)) {
    if (day < toDay(start ?? first) || day > toDay(last)) continue;
    for (let after = start; ;) {
      const rows: SealedRow[] = await db
        .selectFrom('request_log_row')
        .select(sealedColumns)
        .where('workspace_id', '=', workspaceId)
        .where('recorded_on', '=', day)
        .where('id', after === null ? '>=' : '>', after ?? first)
        .where('id', '<=', last)
        .where('kind', '<>', 'batch')
        .where(isInside)
        .where(only)
        .orderBy('id')
        .limit(pageRows)
        .execute();
      yield rows;
      if (rows.length < pageRows) break;
      after = rows.at(-1)?.id ?? null;
    }
  }
}

const toDay = (uuid: string): string => utcDay(getLogUuidTime(uuid));

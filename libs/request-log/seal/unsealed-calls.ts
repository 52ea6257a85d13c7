import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { lowestLogUuid, utcDay } from '../row/log-id.ts';

/** Rows of one process in one workspace that are not sealed: all from `first` to `last`. IDs are UUIDs. */
export type UnsealedRows = {
  workspaceId: string;
  processId: string;
  records: number;
  first: number;
  last: number;
  firstId: string;
  lastId: string;
};

/** The maximum of records in one seal, whose hashes take 8 MiB. */
const recordsMax = 262_144;
/** The maximum of processes in one seal. */
const processesMax = 1_000;
/** The maximum of workspaces and processes in one pass. */
const groupsMax = 10_000;
/** More ranges are read as ranges of hours, and then of days. */
const rangesMax = 200;

type Tx = Kysely<Database>;
type Limits = { recordsMax: number; groupsMax: number };

/**
 * Returns what can be sealed next, by workspace, and the reports of changes (`due`) that are done with once it is sealed.
 * `isWhole`: nothing else is unsealed.
 *
 * A process writes its rows in the order of their sequence, and each transaction that writes rows reports their times. So in
 * one snapshot, the rows after the sealed position of a process are in the reported times, and no row before the last of
 * them can appear later.
 */
export async function findUnsealed(
  db: Kysely<Database>,
  limits: Partial<Limits> = {},
): Promise<{ seals: UnsealedRows[][]; due: number[]; isWhole: boolean }> {
  const max = { recordsMax, groupsMax, ...limits };
  const transaction = db.transaction().setIsolationLevel('repeatable read').setAccessMode('read only');
  return await transaction.execute(async (tx) => {
    const due = await tx.selectFrom('call_seal_due').select('id').execute();
    const ranges = await readRanges(tx);
    if (ranges.length === 0) return { seals: [], due: [], isWhole: true };
    const source = unsealedIn(ranges);
    const { rows: groups } = await sql<UnsealedRows>`
      select ${groupColumns} from ${source} as unsealed group by 1, 2 order by 1, 2 limit ${max.groupsMax}`.execute(tx);
    const seals: UnsealedRows[][] = [];
    for (const ofWorkspace of Map.groupBy(groups, ({ workspaceId }) => workspaceId).values()) {
      seals.push(await limitSeal(tx, source, ofWorkspace, max.recordsMax));
    }
    const isWhole = groups.length < max.groupsMax && countRecords(seals.flat()) === countRecords(groups);
    return { seals, due: due.map(({ id }) => id), isWhole };
  });
}

export const countRecords = (groups: readonly UnsealedRows[]): number =>
  groups.reduce((sum, { records }) => sum + records, 0);

type TimeRange = { from: Date; to: Date };

/** The times in which rows were written that are perhaps not sealed, those that are not rolled up yet included. */
async function readRanges(tx: Tx): Promise<TimeRange[]> {
  for (const unit of ['minute', 'hour', 'day']) {
    const time = (column: string): RawBuilder<unknown> => sql`date_trunc(${sql.lit(unit)}, ${sql.ref(column)})`;
    const { rows } = await sql<TimeRange>`
      select lower(merged) as from, upper(merged) as to from (
        select unnest(range_agg(tstzrange(${time('first_at')}, ${time('last_at')} + ${sql.lit(`1 ${unit}`)}::interval)))
        from (select first_at, last_at from request_log_change
          union all select first_at, last_at from call_seal_due) as report
      ) as written (merged)`.execute(tx);
    if (rows.length <= rangesMax || unit === 'day') return rows;
  }
  return [];
}

function unsealedIn(ranges: readonly TimeRange[]): RawBuilder<unknown> {
  const conditions = ranges.map(({ from, to }) => {
    const [start, end] = [from.getTime(), to.getTime()];
    return sql`(record.recorded_on between ${utcDay(start)} and ${utcDay(end - 1)}
      and record.id >= ${lowestLogUuid(start)} and record.id < ${lowestLogUuid(end)})`;
  });
  return sql`(
    select record.workspace_id, record.process_id, record.sequence, record.id
    from request_log_row as record left join call_seal_position as sealed using (workspace_id, process_id)
    where record.kind <> 'batch' and record.sequence > coalesce(sealed.sequence, 0) and (${sql.join(conditions, sql` or `)}))`;
}

const idText = sql`id::text collate "C"`;
const groupColumns = sql`
  workspace_id as "workspaceId", process_id as "processId", count(*) as records, min(sequence) as first,
  max(sequence) as last, min(${idText}) as "firstId", max(${idText}) as "lastId"`;

/** The processes that fit into one seal, or the first rows of the first one. */
async function limitSeal(
  tx: Tx,
  source: RawBuilder<unknown>,
  groups: readonly UnsealedRows[],
  max: number,
): Promise<UnsealedRows[]> {
  const [first] = groups;
  let records = 0;
  const fitting = groups.slice(0, processesMax).filter((group) => (records += group.records) <= max);
  if (fitting.length > 0 || first === undefined) return fitting;
  const { rows } = await sql<UnsealedRows>`
    select ${groupColumns} from (
      select * from ${source} as unsealed
      where workspace_id = ${first.workspaceId} and process_id = ${first.processId} order by sequence limit ${max}
    ) as part group by 1, 2`.execute(tx);
  return rows;
}

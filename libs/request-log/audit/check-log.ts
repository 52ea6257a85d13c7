import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import {
  findGaps,
  assessProcess,
  type DayTally,
  type ProcessAssessment,
  type KnownProcess,
  type SequenceRange,
} from './assess-process.ts';
import { listLogDays, partitionName } from '../write/log-partitions.ts';
import { defaultHeartbeatMs } from '../write/process-record.ts';

export type CheckedProcess = ProcessAssessment & {
  /** The first `gapsMax` places where rows are missing. */
  gaps: SequenceRange[];
};

export type LogCheck = {
  /**
   * The first day that was checked (`YYYY-MM-DD`): the requested one, or the first one that exists. null: no day
   * exists.
   */
  firstDay: string | null;
  days: number;
  /** Number of existing rows and of missing rows, for all processes. */
  rows: number;
  missing: number;
  /** Rows that retention deleted of days that other workspaces still need. */
  deleted: number;
  /** In the order of their start. Processes that stopped cleanly without recording a row are only counted. */
  processes: CheckedProcess[];
  idleProcesses: number;
  durationMs: number;
};

export type LogCheckOptions = {
  /** Checks only this day (`YYYY-MM-DD`) and later ones. */
  since?: string | undefined;
  /** A process that has not reported for this long is not running. Default: four heartbeats. */
  silentAfterMs?: number;
  onDay?: (day: string) => void;
};

/** How many places are listed per process. The number of missing rows is always complete. */
export const gapsMax = 20;

/** The tables of the log at one moment. */
type Snapshot = Kysely<Database>;

/**
 * Compares the rows of the request log with the reports of the processes about them. Reads the log once, day by day, in
 * one READ ONLY REPEATABLE READ transaction, and counts in Postgres. There is no index by process, because it would
 * slow down every insert. A day with missing rows is read again to find the places. Memory depends on the number of
 * processes.
 *
 * Only retention waits for the check; it gives up after 2 s and tries again later. The session must have no time
 * limits.
 */
export async function checkRequestLog(db: Kysely<Database>, options: LogCheckOptions = {}): Promise<LogCheck> {
  const { since, silentAfterMs = 4 * defaultHeartbeatMs, onDay = () => {} } = options;
  const startedMs = performance.now();
  const transaction = db.transaction().setIsolationLevel('repeatable read').setAccessMode('read only');
  return await transaction.execute(async (tx) => {
    // Before the snapshot: no day is deleted after this.
    await sql`lock table only request_log_row in access share mode`.execute(tx);
    const kept = await listLogDays(tx);
    const firstDay =
      [kept[0]?.day, since]
        .filter((day) => day !== undefined)
        .toSorted()
        .at(-1) ?? null;
    const days = kept.filter(({ day }) => firstDay === null || day >= firstDay);
    const tallies = new Map<string, DayTally[]>();
    for (const { day } of days) {
      onDay(day);
      for (const { processId, ...tally } of await tallyDay(tx, day)) {
        tallies.set(processId, [...(tallies.get(processId) ?? []), { day, ...tally }]);
      }
    }
    const known = await readProcesses(tx, { firstDay, silentAfterMs, withRows: [...tallies.keys()] });
    const judged = [...new Set([...known.keys(), ...tallies.keys()])].map((processId) =>
      assessProcess(processId, known.get(processId), tallies.get(processId) ?? [], firstDay),
    );
    const listed = judged.filter((process) => !isIdle(process));
    const gaps = await locateGaps(tx, days, listed, tallies);
    const deleted = await countDeleted(tx, firstDay);
    return {
      firstDay,
      days: days.length,
      rows: listed.reduce((sum, process) => sum + process.rows, 0) - deleted,
      deleted,
      missing: listed.reduce((sum, process) => sum + process.missing, 0),
      processes: listed.map((process) => ({ ...process, gaps: gaps.get(process.processId) ?? [] })),
      idleProcesses: judged.length - listed.length,
      durationMs: performance.now() - startedMs,
    };
  });
}

const isIdle = ({ state, said, rows }: ProcessAssessment): boolean =>
  state === 'ended' && rows === 0 && said?.last_sequence === 0;

async function tallyDay(tx: Snapshot, day: string): Promise<(Omit<DayTally, 'day'> & { processId: string })[]> {
  const { rows } = await sql<Omit<DayTally, 'day'> & { processId: string }>`
    select process_id as "processId", count(*) as rows, min(sequence) as first, max(sequence) as last
    from ${sequencesOf(day)} group by process_id`.execute(tx);
  return rows;
}

/** The sequences of all records of a day, those that retention deleted included. */
const sequencesOf = (day: string): RawBuilder<unknown> => sql`(
  select process_id, sequence from ${sql.table(partitionName(day))}
  union all select process_id, unnest(sequence) from ${sql.table(partitionName(day, 'request_log_pack'))}
  union all select process_id, generate_series(lower(part), upper(part) - 1)
    from request_log_deleted cross join lateral unnest(sequences) as part
    where recorded_on = ${day}::date) as record`;

async function countDeleted(tx: Snapshot, firstDay: string | null): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select coalesce(sum(upper(part) - lower(part)), 0)::bigint as count
    from request_log_deleted cross join lateral unnest(sequences) as part
    where recorded_on >= ${firstDay}::date`.execute(tx);
  return rows[0]?.count ?? 0;
}

/** The reports of processes that have reported since `firstDay` or have rows, in the order of their start. */
async function readProcesses(
  tx: Snapshot,
  { firstDay, silentAfterMs, withRows }: { firstDay: string | null; silentAfterMs: number; withRows: string[] },
): Promise<Map<string, KnownProcess>> {
  const { rows } = await sql<KnownProcess>`
    select process.*,
      now() - heard_at > make_interval(secs => ${silentAfterMs / 1_000}) as is_silent,
      (select min(first_sequence) from request_log_day as day
       where day.process_id = process.process_id and recorded_on >= ${firstDay}::date) as first_kept
    from request_log_process as process
    where ${firstDay}::date is null or heard_at >= ${firstDay}::date or process_id = any(${withRows}::uuid[])
    order by started_at, process_id`.execute(tx);
  return new Map(rows.map((row) => [row.process_id, row]));
}

type Hole = { processId: string; day: string; first: number; last: number };

async function locateGaps(
  tx: Snapshot,
  days: readonly { day: string }[],
  processes: readonly ProcessAssessment[],
  tallies: ReadonlyMap<string, DayTally[]>,
): Promise<Map<string, SequenceRange[]>> {
  const damaged = processes.filter((process) => process.missing > 0);
  const holes: Hole[] = [];
  for (const { day } of days) {
    const isBroken = (tally: DayTally): boolean => tally.day === day && tally.rows < tally.last - tally.first + 1;
    const ids = damaged.map(({ processId }) => processId).filter((id) => tallies.get(id)?.some(isBroken));
    if (ids.length === 0) continue;
    for (const hole of await findHoles(tx, day, ids)) holes.push({ day, ...hole });
  }
  const byProcess = Map.groupBy(holes, (hole) => hole.processId);
  return new Map(
    damaged.map(({ processId, expected }) => [
      processId,
      findGaps(expected, tallies.get(processId) ?? [], byProcess.get(processId) ?? [], gapsMax),
    ]),
  );
}

/** For each process, the first places on that day where rows are missing between two existing ones. */
async function findHoles(tx: Snapshot, day: string, processIds: string[]): Promise<Omit<Hole, 'day'>[]> {
  const { rows } = await sql<Omit<Hole, 'day'>>`
    select process_id as "processId", first, last from (
      select process_id, previous + 1 as first, sequence - 1 as last,
        row_number() over (partition by process_id order by sequence) as place
      from (
        select process_id, sequence, lag(sequence) over (partition by process_id order by sequence) as previous
        from ${sequencesOf(day)} where process_id = any(${processIds}::uuid[])
      ) as row where sequence > previous + 1
    ) as hole where place <= ${gapsMax}`.execute(tx);
  return rows;
}

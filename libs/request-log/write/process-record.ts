import { hostname } from 'node:os';
import { sql, type Kysely } from 'kysely';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import { version } from '#libs/kernel/version.ts';
import { utcDay } from '../row/log-id.ts';

/** The current progress of a process. */
export type ProcessState = {
  /** The number of rows recorded so far, which is the sequence of the last one. */
  lastSequence: number;
  /** All rows up to this one have been written, or are counted in `lostRows`. */
  writtenSequence: number;
  lostRows: number;
};

export type ProcessUpdate = ProcessState & {
  /** Days (`YYYY-MM-DD`) with the sequence of their first row, unless they are known to be in the database. */
  firstSequences: ReadonlyMap<string, number>;
  hasStopped: boolean;
};

/** Writes the report of a process, replacing the previous one. */
export type WriteProcess = (update: ProcessUpdate) => Promise<void>;

export type ProcessRecord = {
  /** Must be called for every row, in order. Remembers the first row of each day. */
  note(sequence: number, recordedAtMs: number): void;
  /** Reports that the process is running, now and at intervals. Never rejects. */
  start(): Promise<void>;
  /** Reports that the process has stopped. Tries for 2 s, or until `deadline`. Never rejects. */
  finish(deadline: AbortSignal): Promise<void>;
};

/**
 * How often a process reports its progress. Each report is one small statement, and an audit of a killed process relies
 * on it.
 */
export const defaultHeartbeatMs = 15_000;
const finishWaitMs = 2_000;
const finishRetryMs = 100;
const dayMs = 86_400_000;

/**
 * Reports to the database how far this process is with its rows, so that the unwritten rows of a killed process are
 * known to be missing. The process does not wait for reports while it serves, and no call fails because of them. A
 * failed report is included in the next one.
 */
export function createProcessRecord(deps: {
  writeProcess: WriteProcess;
  state: () => ProcessState;
  logger: Logger;
  /** Default 15 s. */
  heartbeatMs?: number | undefined;
}): ProcessRecord {
  const { writeProcess, state, logger, heartbeatMs = defaultHeartbeatMs } = deps;
  const firstSequences = new Map<string, number>();
  let currentDay: number | undefined;
  async function write(hasStopped: boolean): Promise<void> {
    const days = new Map(firstSequences);
    await writeProcess({ ...state(), firstSequences: days, hasStopped });
    for (const day of days.keys()) firstSequences.delete(day);
  }

  const heartbeat = createBackgroundLoop({
    name: 'request log heartbeat',
    periodMs: heartbeatMs,
    run: () => write(false),
    logger,
  });

  async function writeEnd(end: AbortSignal): Promise<boolean> {
    const options = { isOutage: isDatabaseTrouble, delayMs: finishRetryMs, signal: end };
    return await retryDuringOutage(() => write(true), options).then(
      () => true,
      () => false,
    );
  }

  return {
    note(sequence, recordedAtMs) {
      const day = Math.floor(recordedAtMs / dayMs);
      if (day === currentDay) return;
      currentDay = day;
      const name = utcDay(recordedAtMs);
      if (!firstSequences.has(name)) firstSequences.set(name, sequence);
      // Run immediately: if the process were killed before the next beat, the start of the day would be unknown.
      void heartbeat.wake();
    },
    async start() {
      heartbeat.start();
      await heartbeat.wake();
    },
    async finish(deadline) {
      void heartbeat.stop();
      if (deadline.aborted) return; // the writer has reported which rows are lost
      const waited = new AbortController();
      const timeout = setTimeout(() => waited.abort(), finishWaitMs);
      const end = AbortSignal.any([deadline, waited.signal]);
      // The process ends without waiting for the statement, however long the database takes.
      const isNoted = await untilAborted(writeEnd(end), end, () => false);
      clearTimeout(timeout);
      if (!isNoted) logger.warn('the end of this process could not be recorded in the request log');
    },
  };
}

/**
 * One statement. Stored progress never decreases: a late heartbeat must not undo the end, and a report that failed at
 * the start is created by the next heartbeat.
 */
export function createWriteProcess(
  db: Kysely<Database>,
  process: { id: string; app: string; startedAtMs: number },
): WriteProcess {
  const host = hostname();
  return async ({ lastSequence, writtenSequence, lostRows, firstSequences, hasStopped }) => {
    await sql`
      with day as (
        insert into request_log_day (process_id, recorded_on, first_sequence)
        select ${process.id}::uuid, * from unnest(
          ${[...firstSequences.keys()]}::date[], ${[...firstSequences.values()]}::bigint[])
        on conflict do nothing
      )
      insert into request_log_process as known
        (process_id, app, started_at, heard_at, last_sequence, written_sequence, lost_rows, stopped_at,
          version, host)
      values (${process.id}, ${process.app}, ${new Date(process.startedAtMs)}, now(), ${lastSequence},
        ${writtenSequence}, ${lostRows}, case when ${hasStopped} then now() end, ${version}, ${host})
      on conflict (process_id) do update set
        heard_at = greatest(known.heard_at, excluded.heard_at),
        last_sequence = greatest(known.last_sequence, excluded.last_sequence),
        written_sequence = greatest(known.written_sequence, excluded.written_sequence),
        lost_rows = greatest(known.lost_rows, excluded.lost_rows),
        stopped_at = coalesce(known.stopped_at, excluded.stopped_at)`.execute(db);
  };
}

/** A process as described by its last report. */
export type ListedProcess = {
  id: string;
  app: string;
  version: string;
  host: string;
  startedAt: Date;
  heardAt: Date;
  lastSequence: number;
  writtenSequence: number;
  lostRows: number;
  stoppedAt: Date | null;
  /** No report for three heartbeats, and no orderly stop: it was killed, or cannot reach the database. */
  isSilent: boolean;
};

/** Returns the running processes, and those that stopped or became silent within `ms`, newest first, at most 100. */
export async function listProcesses(db: Kysely<Database>, { ms }: { ms: number }): Promise<ListedProcess[]> {
  const { rows } = await sql<ListedProcess>`
    select process_id as id, app, version, host, started_at as "startedAt", heard_at as "heardAt",
      last_sequence as "lastSequence", written_sequence as "writtenSequence", lost_rows as "lostRows",
      stopped_at as "stoppedAt",
      stopped_at is null and heard_at < now() - ${3 * defaultHeartbeatMs} * interval '1 millisecond' as "isSilent"
    from request_log_process where heard_at > now() - ${ms} * interval '1 millisecond'
    order by started_at desc limit 100`.execute(db);
  return rows;
}

/** When any process last reported its progress; null if none ever did. */
export async function lastReportAt(db: Kysely<Database>): Promise<Date | null> {
  const row = await db
    .selectFrom('request_log_process')
    .select(({ fn }) => fn.max<Date | null>('heard_at').as('at'))
    .executeTakeFirst();
  return row?.at ?? null;
}

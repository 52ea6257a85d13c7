import { createDatabase } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { checkRequestLog, gapsMax, type CheckedProcess, type LogCheck } from '#libs/request-log/audit/check-log.ts';
import { withMigratedPool } from '../operate/migrated-pool.ts';

export type CheckLogsOptions = {
  connectionString: string;
  /** `YYYY-MM-DD`: earlier days are not checked. */
  since: string | undefined;
  onDay: (day: string) => void;
};

/**
 * Compares the request log with what the processes that wrote it have reported. Throws ConfigurationError if migrations
 * are pending: the tables of those reports may not exist yet.
 */
export async function checkLogs(options: CheckLogsOptions, logger: Logger): Promise<LogCheck> {
  const { connectionString, since, onDay } = options;
  return await withMigratedPool({ connectionString, applicationName: 'sluice-check-logs' }, logger, (pool) =>
    checkRequestLog(createDatabase(pool), { since, onDay }),
  );
}

/** The result as text, one line each. */
export function describeLogCheck(check: LogCheck): string[] {
  const { processes, idleProcesses, rows, missing, days, firstDay } = check;
  const lines = processes.flatMap((process) => describeProcess(process, firstDay));
  const idle = idleProcesses === 0 ? '' : `; ${count(idleProcesses, 'more process', 'es')} recorded nothing`;
  const since = firstDay === null ? '' : `, from ${firstDay}`;
  lines.push(
    `checked ${count(rows, 'row')} of ${count(processes.length, 'process', 'es')} in ${count(days, 'day')}${since}, in ` +
      `${(check.durationMs / 1_000).toFixed(1)} s${idle}`,
  );
  const silent = processes.filter((process) => process.state === 'silent').length;
  if (missing === 0) lines.push('complete: no recorded row is missing');
  else lines.push(`incomplete: ${count(missing, 'row')} missing`);
  if (silent > 0) lines.push(`unknown: the last rows of ${count(silent, 'process', 'es')} that did not stop cleanly`);
  return lines;
}

function describeProcess(process: CheckedProcess, firstDay: string | null): string[] {
  const { processId, said, rows, first, last, earlierRows, missing, gaps, lateRows } = process;
  const span = said && `, ${toTime(said.started_at)} to ${said.stopped_at ? toTime(said.stopped_at) : '…'}`;
  const lines = [`${said?.app ?? 'process'} ${processId}${span ?? ''}: ${verdictOf(process)}`];
  if (said?.stopped_at === null || said === undefined) {
    const range = rows === 0 ? 'no rows' : `rows ${first} to ${last}`;
    lines.push(`${range} found${missing === 0 && rows > 0 ? ', without gaps' : ''}`);
  }
  if (earlierRows > 0) {
    const which = earlierRows === 1 ? 'row 1 is' : `rows 1 to ${earlierRows} are`;
    if (said) lines.push(`${which} older than ${firstDay}, where this check begins`);
    else lines.push(`${which} not there: older than ${firstDay}, where this check begins, or lost`);
  }
  if (missing > 0) {
    const places = gaps.map(([from, to]) => (from === to ? `${from}` : `${from} to ${to}`)).join(', ');
    lines.push(`missing: ${count(missing, 'row')}: ${places}${gaps.length === gapsMax ? ', …' : ''}`);
  }
  if (said && said.lost_rows > 0) {
    lines.push(`${count(said.lost_rows, 'row')} rejected by Postgres or not written before it stopped; see its log`);
  }
  if (lateRows > 0) lines.push(`${count(lateRows, 'row')} recorded after it stopped; there may have been more`);
  return lines.map((line, index) => (index === 0 ? line : `  ${line}`));
}

function verdictOf({ state, said, missing, expected }: CheckedProcess): string {
  const recorded = said && `had recorded ${count(said.last_sequence, 'row')} by ${toTime(said.heard_at)}`;
  switch (state) {
    case 'ended': {
      const [from, to] = expected;
      const ended = `stopped cleanly after ${count(to, 'row')}`;
      if (missing > 0) return `${ended}, ${missing} missing`;
      if (from > to && to > 0) return ended;
      return `${ended}, ${from > 1 ? `${from} to ${to} ` : ''}all found`;
    }
    case 'running':
      return `running; ${recorded}`;
    case 'silent':
      return `was killed, so what it recorded last may be missing; ${recorded}`;
    case 'unknown':
      return 'never reported its progress, so only gaps can be detected';
  }
}

/** The result as one line of JSON, for scripts. */
export function logCheckToJson(check: LogCheck): string {
  return JSON.stringify({
    complete: check.missing === 0,
    first_day: check.firstDay,
    days: check.days,
    rows: check.rows,
    missing: check.missing,
    processes: check.processes.map(({ said, ...process }) => ({
      process_id: process.processId,
      app: said?.app ?? null,
      state: process.state,
      started_at: said?.started_at ?? null,
      heard_at: said?.heard_at ?? null,
      stopped_at: said?.stopped_at ?? null,
      last_sequence: said?.last_sequence ?? null,
      written_sequence: said?.written_sequence ?? null,
      lost_rows: said?.lost_rows ?? null,
      rows: process.rows,
      first: process.first,
      last: process.last,
      earlier_rows: process.earlierRows,
      late_rows: process.lateRows,
      missing: process.missing,
      gaps: process.gaps,
    })),
    idle_processes: check.idleProcesses,
    duration_ms: Math.round(check.durationMs),
  });
}

const count = (number: number, what: string, plural = 's'): string => `${number} ${what}${number === 1 ? '' : plural}`;

/** Like `2026-11-21 10:00:07Z`. */
const toTime = (time: Date): string =>
  time
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, 'Z');

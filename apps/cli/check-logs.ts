import { createDatabase } from '#libs/database/pool.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { checkRequestLog, gapsMax, type CheckedProcess, type LogCheck } from '#libs/request-log/check-log.ts';
import { withMigratedPool } from './migrated-pool.ts';

export type CheckLogsOptions = {
  connectionString: string;
  /** `YYYY-MM-DD`: days before it are not read. */
  since: string | undefined;
  onDay: (day: string) => void;
};

/**
 * Compares the request log with what the processes that wrote it said of it. Throws ConfigurationError when the
 * database lacks migrations: then they said nothing.
 */
export async function checkLogs(options: CheckLogsOptions, logger: Logger): Promise<LogCheck> {
  const { connectionString, since, onDay } = options;
  return await withMigratedPool({ connectionString, applicationName: 'sluice-check-logs' }, logger, (pool) =>
    checkRequestLog(createDatabase(pool), { since, onDay }),
  );
}

/** The verdict in words, one line each. */
export function describeLogCheck(check: LogCheck): string[] {
  const { processes, idleProcesses, rows, missing, days, firstDay } = check;
  const lines = processes.flatMap((process) => describeProcess(process, firstDay));
  const idle = idleProcesses === 0 ? '' : `; ${count(idleProcesses, 'more process', 'es')} recorded nothing`;
  const since = firstDay === null ? '' : ` from ${firstDay} on`;
  lines.push(
    `${count(rows, 'row')} of ${count(processes.length, 'process', 'es')} in ${count(days, 'day')}${since}, read in ` +
      `${(check.durationMs / 1_000).toFixed(1)} s${idle}`,
  );
  const silent = processes.filter((process) => process.state === 'silent').length;
  if (missing === 0) lines.push('complete: every row that is known to have been recorded is there');
  else lines.push(`incomplete: ${count(missing, 'row')} missing`);
  if (silent > 0) lines.push(`not known: the last rows of ${count(silent, 'process', 'es')} that did not end in order`);
  return lines;
}

function describeProcess(process: CheckedProcess, firstDay: string | null): string[] {
  const { processId, said, rows, first, last, earlierRows, missing, gaps, lateRows } = process;
  const span = said && `, ${toTime(said.started_at)} to ${said.stopped_at ? toTime(said.stopped_at) : '…'}`;
  const lines = [`${said?.app ?? 'process'} ${processId}${span ?? ''}: ${verdictOf(process)}`];
  if (said?.stopped_at === null || said === undefined) {
    const range = rows === 0 ? 'no row' : `rows ${first} to ${last}`;
    lines.push(`${range} there${missing === 0 && rows > 0 ? ', without a gap' : ''}`);
  }
  if (earlierRows > 0) {
    const which = earlierRows === 1 ? 'row 1 is' : `rows 1 to ${earlierRows} are`;
    if (said) lines.push(`${which} from before ${firstDay}, where this check begins`);
    else lines.push(`${which} not there: recorded before ${firstDay}, where this check begins, or lost`);
  }
  if (missing > 0) {
    const places = gaps.map(([from, to]) => (from === to ? `${from}` : `${from} to ${to}`)).join(', ');
    lines.push(`missing: ${count(missing, 'row')}: ${places}${gaps.length === gapsMax ? ', …' : ''}`);
  }
  if (said && said.lost_rows > 0) {
    lines.push(`${count(said.lost_rows, 'row')} refused by Postgres, or given up at its end: its own log names them`);
  }
  if (lateRows > 0) lines.push(`${count(lateRows, 'row')} recorded after its end: there may have been more`);
  return lines.map((line, index) => (index === 0 ? line : `  ${line}`));
}

function verdictOf({ state, said, missing, expected }: CheckedProcess): string {
  const recorded = said && `recorded up to ${said.last_sequence} by ${toTime(said.heard_at)}`;
  switch (state) {
    case 'ended': {
      const [from, to] = expected;
      const ended = `ended in order with ${count(to, 'row')}`;
      if (missing > 0) return `${ended}, ${missing} missing`;
      if (from > to && to > 0) return ended;
      return `${ended}, ${from > 1 ? `${from} to ${to} ` : ''}all there`;
    }
    case 'running':
      return `is running; ${recorded}`;
    case 'silent':
      return `was ended by force: what it recorded in its last moments may be missing; ${recorded}`;
    case 'unknown':
      return 'never told when it began or how far it was: only gaps can be seen';
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

/** Such as `2026-11-21 10:00:07Z`. */
const toTime = (time: Date): string =>
  time
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, 'Z');

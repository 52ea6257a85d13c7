import { checkRequestLog, gapsMax, type CheckedProcess } from '#libs/request-log/audit/check-log.ts';
import type { CheckContext, CheckOptions, CheckResult, Finding } from './check.ts';

/** Compares the request log with the reports of the processes that wrote it. */
export async function checkLogs({ db, onProgress }: CheckContext, { since }: CheckOptions): Promise<CheckResult> {
  const { processes, idleProcesses, rows, missing, deleted, days } = await checkRequestLog(db, {
    since,
    onDay: onProgress,
  });
  const countState = (state: CheckedProcess['state']): number =>
    processes.filter((process) => process.state === state).length;
  return {
    counts: {
      days,
      rows,
      missing_rows: missing,
      deleted_rows: deleted,
      running_processes: countState('running'),
      stopped_processes: countState('ended'),
      killed_processes: countState('silent'),
      unknown_processes: countState('unknown'),
      idle_processes: idleProcesses,
    },
    findings: processes.flatMap(describeProcess),
  };
}

function describeProcess({ processId, state, said, missing, gaps, lateRows }: CheckedProcess): Finding[] {
  const subject = `${said?.app ?? 'process'} ${processId}`;
  const note = (message: string): Finding => ({ state: 'note', subject, message });
  const found: Finding[] = [];
  if (missing > 0) {
    const places = gaps.map(([from, to]) => (from === to ? `${from}` : `${from} to ${to}`)).join(', ');
    const message = `missing ${rowCount(missing)}: ${places}${gaps.length === gapsMax ? ', …' : ''}`;
    found.push({ state: 'problem', subject, message });
  }
  if (said && said.lost_rows > 0)
    found.push(note(`${rowCount(said.lost_rows)} rejected by Postgres or not written before it stopped; see its log`));
  if (lateRows > 0) found.push(note(`${rowCount(lateRows)} recorded after it stopped; there may have been more`));
  if (state === 'silent')
    found.push(
      note(
        `killed; it last reported ${rowCount(said?.last_sequence ?? 0)} at ${said?.heard_at.toISOString()}, and later ` +
          'rows may be lost',
      ),
    );
  if (state === 'unknown') found.push(note('never reported its progress, so only gaps can be detected'));
  return found;
}

const rowCount = (count: number): string => (count === 1 ? '1 row' : `${count} rows`);

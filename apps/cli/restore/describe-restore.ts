import { describeCounts, describeFinding } from '../checks/check.ts';
import { describeSessions } from '../operate/running-processes.ts';
import type { RestoreReport } from './restore.ts';

/** The report as text, one line each. */
export function describeRestore(report: RestoreReport, problems: readonly string[]): string[] {
  return [
    ...describeEnd(report),
    '',
    'Done:',
    ...describeDone(report).map((line) => `  ${line}`),
    '',
    'When you start Sluice:',
    ...describeNext(report).map((line) => `  ${line}`),
    '',
    ...(problems.length === 0
      ? ['There are no problems. You can start Sluice.']
      : ['Needs your attention:', ...problems.flatMap(indented)]),
  ];
}

const indented = (problem: string): string[] =>
  problem.split('\n').map((line, at) => `${at === 0 ? '  - ' : '    '}${line}`);

/** Describes the end of the backup. Later changes are lost. */
function describeEnd({ lastEvent, lastReportAt }: RestoreReport): string[] {
  if (lastEvent === null) return ['The event log is empty: the backup contains no data.'];
  const heard = lastReportAt === null ? '' : `, and the last report of a process from ${lastReportAt.toISOString()}`;
  return [
    `The last event is from ${lastEvent.recordedAt.toISOString()}${heard}. Changes after the backup are lost:`,
    '  - Files, batches and records created since then do not exist. Clients have to create such batches again.',
    '    Fine-tuning jobs created since then continue at their provider, untracked.',
    '  - API keys, users and rights that were removed since then are valid again. Review them, and delete those that must',
    '    not work.',
    '  - Budgets and rates have not counted the calls since then, and the request log lacks them.',
    '  - A reader of /v1/events whose last event is lost has to start again at an earlier one.',
  ];
}

function describeDone({ migrations, epoch, jobs, blobs, checks }: RestoreReport): string[] {
  const lines = [
    epoch.isNew
      ? `started epoch ${epoch.epoch} of the event log`
      : `kept epoch ${epoch.epoch} of the event log, which this command began before`,
  ];
  if (migrations.length > 0) lines.push(`applied the migrations ${migrations.join(', ')}`);
  const replaced = [
    [jobs.fineTuningJobs, 'fine-tuning jobs'],
    [jobs.logExports, 'exports of the request log'],
  ] as const;
  const made = replaced.filter(([count]) => count > 0).map(([count, what]) => `${what}: ${count}`);
  lines.push(
    made.length === 0
      ? 'no job was missing from the queue'
      : `created jobs that were missing from the queue: ${made.join(', ')}`,
  );
  if (jobs.turns > 0) lines.push(`batches whose place in the order was corrected: ${jobs.turns}`);
  lines.push(`compared ${blobs.checked} rows and blobs in ${blobs.location}`);
  for (const { check, counts } of checks) lines.push(`checked ${check}: ${describeCounts(counts)}`);
  return lines;
}

function describeNext({ jobs, open, blobs }: RestoreReport): string[] {
  const { rowsOnDisk, surplus } = blobs;
  const lines = [
    open.batches === 0
      ? 'no batch was open'
      : `open batches that continue: ${open.batches}. Their ${open.lines} lines without a result are called, possibly a second time if ` +
        'they were called after the backup',
  ];
  if (jobs.held > 0) lines.push(`batch work that was freed because no worker holds it any more: ${jobs.held}`);
  if (open.overdue > 0) lines.push(`batches past their deadline, which expire: ${open.overdue}`);
  if (open.fineTuningJobs > 0)
    lines.push(`fine-tuning jobs that are looked up at their providers: ${open.fineTuningJobs}`);
  if (open.logExports > 0) lines.push(`exports of the request log that continue: ${open.logExports}`);
  if (rowsOnDisk.files > 0)
    lines.push(`request-log rows on disk that are written: ${rowsOnDisk.files} files, ${rowsOnDisk.bytes} bytes`);
  if (surplus.blobs > 0) {
    lines.push(
      `surplus blobs that are deleted a day after they were written: ${surplus.blobs}, of ${surplus.bytes} bytes. Keep a ` +
        'copy if you may still restore a newer backup',
    );
  }
  return lines;
}

/**
 * The problems that need the operator's attention. Changes after the backup are not listed, because they are lost in any
 * case.
 */
export function listProblems({ masterKeyProblem, isIsolated, blobs, checks, survivors }: RestoreReport): string[] {
  const problems: string[] = [];
  const { missing, wrongSize, stuckBatches, first } = blobs;
  if (masterKeyProblem !== null) problems.push(masterKeyProblem);
  if (missing.blobs + wrongSize.blobs > 0) {
    const which = first.map(
      ({ problem, blob, owner }) =>
        `\n${problem === 'missing' ? 'missing' : 'wrong size'}: ${blob} of ${owner?.type} ${owner?.id}`,
    );
    problems.push(
      `Missing blobs: ${missing.blobs}; with a wrong size: ${wrongSize.blobs}. Copy them from the backup and repeat the ` +
        `command, or delete their files. To list all of them, add --list FILE.${which.join('')}`,
    );
  }
  if (stuckBatches.batches > 0) {
    problems.push(
      `Open batches without a readable input file: ${stuckBatches.batches}. Restore the files, or cancel the batches: ${listOf(stuckBatches.first, stuckBatches.batches)}`,
    );
  }
  for (const { check, findings } of checks.filter(({ ok }) => !ok)) {
    const lines = findings.map((finding) => `\n${describeFinding(finding)}`);
    problems.push(`The check ${check} failed. To repeat it: sluice check ${check}${lines.join('')}`);
  }
  if (!isIsolated) {
    problems.push(
      'The role sluice_tenant is missing, so workspaces are isolated by queries alone. Create it as docs/deploy.md describes.',
    );
  }
  if (survivors.length > 0) {
    const lines = describeSessions(survivors).map((line) => `\n${line}`);
    problems.push(
      `These processes were connected during the restore. Unless you have just started them, stop them and repeat the command:${lines.join('')}`,
    );
  }
  return problems;
}

const listOf = (ids: readonly string[], count: number): string => `${ids.join(', ')}${count > ids.length ? ', …' : ''}`;

import { describeCounts, describeFinding } from '../checks/check.ts';
import { describeSessions } from '../operate/running-processes.ts';
import type { RestoreReport } from './restore.ts';
import { findingToJson } from './inspect-blobs.ts';

/** Whether nothing in the report needs a person. What happened after the backup is lost in any case. */
export const isAlright = (report: RestoreReport): boolean => problemsOf(report).length === 0;

/** The report as text, one line each. */
export function describeRestore(report: RestoreReport): string[] {
  const problems = problemsOf(report);
  return [
    ...describeEnd(report),
    '',
    'Done:',
    ...doneOf(report).map((line) => `  ${line}`),
    '',
    'When you start Sluice:',
    ...nextOf(report).map((line) => `  ${line}`),
    '',
    ...(problems.length === 0
      ? ['Nothing else needs your attention. You can start Sluice.']
      : ['Needs your attention:', ...problems.flatMap(indented)]),
  ];
}

const indented = (problem: string): string[] =>
  problem.split('\n').map((line, at) => `${at === 0 ? '  - ' : '    '}${line}`);

/** What the backup cannot know. */
function describeEnd({ newest, heardAt }: RestoreReport): string[] {
  if (newest === null) return ['The event log is empty, so nothing was restored.'];
  const heard = heardAt === null ? '' : `, the last sign of a process of ${heardAt.toISOString()}`;
  return [
    `The last event is of ${newest.recordedAt.toISOString()}${heard}. All that happened after the backup is lost:`,
    '  - Files, batches and records made since then do not exist. Who waits for such a batch has to create it again;',
    '    fine-tuning jobs made since then go on at their provider, and nobody follows them.',
    '  - What was deleted or taken away since then is back: API keys, users, rights. Look through the keys and users, and',
    '    delete those again that must not work.',
    '  - Budgets and rates have not counted the calls since then, and the request log does not have them.',
    '  - A reader of /v1/events whose last event is unknown begins again at an event that it knows.',
  ];
}

function doneOf({ migrations, epoch, jobs, blobs, checks }: RestoreReport): string[] {
  const lines = [
    epoch.isNew
      ? `the event log has the new epoch ${epoch.epoch}`
      : `the event log has the epoch ${epoch.epoch} already, and no event in it`,
  ];
  if (migrations.length > 0) lines.push(`applied the migrations ${migrations.join(', ')}`);
  const replaced = [
    [jobs.batches, 'batches'],
    [jobs.chunks, 'chunks of batches'],
    [jobs.fineTuningJobs, 'fine-tuning jobs'],
    [jobs.logExports, 'exports of the request log'],
  ] as const;
  const made = replaced.filter(([count]) => count > 0).map(([count, what]) => `${what}: ${count}`);
  lines.push(
    made.length === 0
      ? 'no job was missing in the queue'
      : `jobs that were missing in the queue are made: ${made.join(', ')}`,
  );
  if (jobs.surplus > 0) lines.push(`jobs of batches that have ended or do not exist are deleted: ${jobs.surplus}`);
  lines.push(`compared ${blobs.checked} rows and blobs in ${blobs.folder}`);
  for (const { check, counts } of checks) lines.push(`checked ${check}: ${describeCounts(counts)}`);
  return lines;
}

function nextOf({ jobs, open, blobs }: RestoreReport): string[] {
  const { rowsOnDisk, surplus } = blobs;
  const lines = [
    open.batches === 0
      ? 'no batch was open'
      : `open batches go on: ${open.batches}. Lines of them without a result: ${open.lines}. These are called, once more if ` +
        'that was already done after the backup',
  ];
  if (jobs.claimed > 0) lines.push(`jobs that workers had claimed go to other workers within seconds: ${jobs.claimed}`);
  if (open.overdue > 0) lines.push(`batches whose deadline has passed end as expired: ${open.overdue}`);
  if (open.fineTuningJobs > 0) lines.push(`fine-tuning jobs are looked for at their providers: ${open.fineTuningJobs}`);
  if (open.logExports > 0) lines.push(`exports of the request log go on: ${open.logExports}`);
  if (rowsOnDisk.files > 0)
    lines.push(`waiting rows of the request log are written: ${rowsOnDisk.files} files, ${rowsOnDisk.bytes} bytes`);
  if (surplus.blobs > 0) {
    lines.push(
      `surplus blobs are deleted a day after they were written: ${surplus.blobs}, of ${surplus.bytes} bytes. Keep a copy if ` +
        'you may still restore a newer backup',
    );
  }
  return lines;
}

function problemsOf({ masterKeyProblem, isIsolated, blobs, checks, survivors }: RestoreReport): string[] {
  const problems: string[] = [];
  const { missing, wrongSize, stuckBatches, first } = blobs;
  if (masterKeyProblem !== null) problems.push(masterKeyProblem);
  if (missing.blobs + wrongSize.blobs > 0) {
    const which = first.map(
      ({ problem, blob, owner }) =>
        `\n${problem === 'missing' ? 'missing' : 'wrong size'}: ${blob} of ${owner?.type} ${owner?.id}`,
    );
    problems.push(
      `Blobs that are missing: ${missing.blobs}; with a wrong size: ${wrongSize.blobs}. Copy them from the backup and run this ` +
        `again, or delete their files. --list FILE lists all of them.${which.join('')}`,
    );
  }
  if (stuckBatches.batches > 0) {
    problems.push(
      `Open batches that cannot read their input: ${stuckBatches.batches}. Cancel them, if you do not find it: ${listOf(stuckBatches.first, stuckBatches.batches)}`,
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
      `These processes were connected during the restore. Stop them, unless you have just started them, and run this again:${lines.join('')}`,
    );
  }
  return problems;
}

const listOf = (ids: readonly string[], count: number): string => `${ids.join(', ')}${count > ids.length ? ', …' : ''}`;

/** The report for JSON. */
export function restoreToJson(report: RestoreReport) {
  const { migrations, newest, heardAt, epoch, masterKeyProblem, isIsolated, jobs, open, blobs, checks, survivors } =
    report;
  return {
    ok: isAlright(report),
    last_event: newest && { position: newest.position, recorded_at: newest.recordedAt },
    last_heard_at: heardAt,
    epoch: { number: epoch.epoch, is_new: epoch.isNew },
    migrations,
    master_key_problem: masterKeyProblem,
    workspaces_isolated: isIsolated,
    jobs: {
      claimed: jobs.claimed,
      surplus_deleted: jobs.surplus,
      chunks_reset: jobs.chunks,
      batches_replaced: jobs.batches,
      fine_tuning_jobs_replaced: jobs.fineTuningJobs,
      log_exports_replaced: jobs.logExports,
    },
    open: {
      batches: open.batches,
      lines: open.lines,
      overdue_batches: open.overdue,
      fine_tuning_jobs: open.fineTuningJobs,
      log_exports: open.logExports,
    },
    blobs: {
      checked: blobs.checked,
      missing: blobs.missing,
      wrong_size: blobs.wrongSize,
      surplus: blobs.surplus,
      first: blobs.first.map(findingToJson),
      stuck_batches: blobs.stuckBatches,
      rows_on_disk: blobs.rowsOnDisk,
    },
    checks,
    survivors,
    problems: problemsOf(report),
  };
}

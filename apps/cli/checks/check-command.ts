import { styleText } from 'node:util';
import { Argument, InvalidArgumentError, type Command } from 'commander';
import { databaseCommand } from '../operate/database-command.ts';
import { createTable, printable, type Column } from '../terminal/table.ts';
import {
  describeCounts,
  describeFinding,
  runChecks,
  type Check,
  type CheckOptions,
  type CheckReport,
  type Finding,
} from './check.ts';

/** Adds `sluice check`. */
export function addCheckCommand(program: Command, checks: readonly Check[]): void {
  const texts = {
    description: 'check that stored data is consistent; exit with status 1 if it is not. Works while Sluice runs',
    json: 'print one JSON object per check instead',
  };
  databaseCommand<Partial<CheckOptions>>(program, 'check', texts, async ({ args, options, ...context }) => {
    const { repair = false, since } = options;
    const chosen = checks.filter(({ name }) => args.length === 0 || args.includes(name));
    const reports = await runChecks(chosen, context, { repair, since });
    const ok = reports.every((report) => report.ok);
    return { json: reports, text: describeReports(reports), ok, recorded: { ok, checks: reports.map(toRecorded) } };
  })
    .addArgument(new Argument('[checks...]', 'default: all').choices(checks.map(({ name }) => name)))
    .option('--repair', 'repair what can be repaired')
    .option('--since <date>', 'check the request log from this day (UTC, YYYY-MM-DD) on', toDay)
    .addHelpText('after', `\nChecks:\n${checks.map(describeCheck).join('\n')}`);
}

const subjectsMax = 20;

/** The report as it is recorded. The messages of findings are left out, because they can quote rows. */
function toRecorded({ check, ok, counts, findings, omitted }: CheckReport) {
  const subjects = (wanted: Finding['state']): string[] =>
    findings.filter(({ state }) => state === wanted).map(({ subject }) => subject.slice(0, 200));
  const [problems, repaired] = [subjects('problem'), subjects('repaired')];
  return {
    check,
    ok,
    counts,
    problems: problems.slice(0, subjectsMax),
    repaired: repaired.slice(0, subjectsMax),
    omitted: omitted + Math.max(0, problems.length - subjectsMax) + Math.max(0, repaired.length - subjectsMax),
  };
}

const describeCheck = ({ name, summary, canRepair }: Check): string =>
  `  ${name.padEnd(10)} ${summary}${canRepair ? ' (--repair)' : ''}`;

const columns: readonly Column<CheckReport>[] = [
  ['check', ({ check }) => check],
  ['result', classifyCall],
  ['compared', ({ counts }) => describeCounts(counts)],
];

function classifyCall({ ok, findings }: CheckReport): string {
  if (!ok) return 'failed';
  return findings.some(({ state }) => state === 'repaired') ? 'repaired' : 'ok';
}

const colours = { problem: 'red', repaired: 'green', note: 'yellow' } as const;

/** A table of the checks, followed by a line for each finding. */
function describeReports(reports: readonly CheckReport[]): string[] {
  const findings = reports.flatMap(({ check, findings: found, omitted }) => [
    ...found.map((finding) => {
      const state = styleText(colours[finding.state], finding.state.padEnd(8));
      return `${state} ${check}: ${printable(describeFinding(finding))}`;
    }),
    ...(omitted === 0 ? [] : [`${' '.repeat(8)} ${check}: ${omitted} more`]),
  ]);
  const table = createTable(columns, Infinity).linesOf(reports);
  return findings.length === 0 ? table : [...table, '', ...findings];
}

/** Throws InvalidArgumentError if the text is not a calendar day. */
function toDay(text: string): string {
  const isDay = /^\d{4}-\d{2}-\d{2}$/.test(text) && !Number.isNaN(Date.parse(text));
  // Date.parse accepts 30 February as 2 March.
  if (isDay && new Date(text).toISOString().startsWith(text)) return text;
  throw new InvalidArgumentError('Use a date such as 2026-11-21.');
}

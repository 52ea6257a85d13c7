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
    return { json: reports, text: describeReports(reports), ok, changed: describeRepairs(reports) };
  })
    .addArgument(new Argument('[checks...]', 'default: all').choices(checks.map(({ name }) => name)))
    .option('--repair', 'repair what can be repaired')
    .option('--since <date>', 'check the request log from this day (UTC, YYYY-MM-DD) on', toDay)
    .addHelpText('after', `\nChecks:\n${checks.map(describeCheck).join('\n')}`);
}

/** The number of findings that each check repaired; undefined if nothing was repaired. */
function describeRepairs(reports: readonly CheckReport[]): { repaired: Record<string, number> } | undefined {
  const counts = reports.map(({ check, findings }) => {
    return [check, findings.filter(({ state }) => state === 'repaired').length] as const;
  });
  const repaired = counts.filter(([, count]) => count > 0);
  return repaired.length === 0 ? undefined : { repaired: Object.fromEntries(repaired) };
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

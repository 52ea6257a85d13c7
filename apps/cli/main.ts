import { Command, InvalidArgumentError } from 'commander';
import { migrate } from '#libs/database/migrate.ts';
import { limitHeapGrowth } from '#libs/kernel/heap-growth.ts';
import { createLogDestination } from '#libs/kernel/log-destination.ts';
import { createLogger } from '#libs/kernel/logger.ts';
import { describeProvider, providersToMarkdown } from '#libs/providers/describe-providers.ts';
import { findProvider, providerIds } from '#libs/providers/registry.ts';
import { explain } from '../standalone/explain.ts';
import { checkLogs, describeLogCheck, logCheckToJson } from './check-logs.ts';
import { openDatabaseUrl } from './database-url.ts';
import { describeRewrap, makeAdminKey, rewrapKeys } from './keys.ts';
import { describeCheck, rebuild, toJson } from './rebuild.ts';

// stdout is for results, stderr for progress and problems. Exit codes: 0 done or equal, 1 failed or different, 2 wrong
// usage.
const logger = createLogger({ name: 'cli', level: 'warn' }, createLogDestination({ fd: 2 }));
limitHeapGrowth();
process.stdout.on('error', () => process.exit(1)); // its reader is gone, as in `sluice … | head`

const program = new Command('sluice')
  .description(
    'Sluice on the command line. Works on the database of DATABASE_URL, of a running npm start, or of the data directory.',
  )
  .showHelpAfterError()
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2));

program
  .command('migrate')
  .description('bring the database to the newest migration, making the embedded one if there is none')
  .option('--json', 'print {"applied": [names]}')
  .action(async ({ json = false }: { json?: boolean }) => {
    await withDatabase({ mayCreate: true }, async (connectionString) => {
      const applied = await migrate({ connectionString, logger });
      if (json) print(JSON.stringify({ applied }));
      else print(applied.length === 0 ? 'nothing to do' : `applied: ${applied.join(', ')}`);
    });
  });

program
  .command('rebuild')
  .description('fold the event log into the read models, while the platform runs or not')
  .option('--check', 'only compare: say equal, or name the first difference and exit 1')
  .option('--json', 'print the report as one JSON object')
  .action(async ({ check = false, json = false }: { check?: boolean; json?: boolean }) => {
    await withDatabase({ mayCreate: false }, async (connectionString) => {
      const report = await rebuild({ connectionString, check, onProgress: showEvents }, logger);
      clearProgress();
      for (const line of json ? [toJson(report, check)] : describeCheck(report, check)) print(line);
      if (check && report.difference !== null) process.exitCode = 1;
    });
  });

program
  .command('logs')
  .description('the request log: whether every row that a process recorded is there')
  .requiredOption('--check', 'tell for each process which rows are there; exit 1 when rows are missing')
  .option('--since <date>', 'read this day (UTC, YYYY-MM-DD) and later ones only', toDay)
  .option('--json', 'print the result as one JSON object')
  .action(async ({ since, json = false }: { since?: string; json?: boolean }) => {
    await withDatabase({ mayCreate: false }, async (connectionString) => {
      const check = await checkLogs({ connectionString, since, onDay: showProgress }, logger);
      clearProgress();
      for (const line of json ? [logCheckToJson(check)] : describeLogCheck(check)) print(line);
      if (check.missing > 0) process.exitCode = 1;
    });
  });

const keys = program.command('keys').description('the master key, and admin keys');

keys
  .command('rewrap')
  .description('bring all stored secrets under the newest master key, while the platform runs or not; may be repeated')
  .option('--json', 'print the result as one JSON object')
  .action(async ({ json = false }: { json?: boolean }) => {
    await withDatabase({ mayCreate: false }, async (connectionString) => {
      const onProgress = (rewrapped: number): void => showProgress(`${rewrapped} secrets`);
      const report = await rewrapKeys({ connectionString, onProgress }, logger);
      clearProgress();
      for (const line of json ? [JSON.stringify(report)] : describeRewrap(report)) print(line);
      if (Object.keys(report.left).length > 0) process.exitCode = 1;
    });
  });

keys
  .command('create-admin')
  .description('make a new admin key, for when the last one is lost; it is printed this once')
  .option('--workspace <id>', 'id or name; needed when there are several')
  .option('--name <name>', 'what the key is called', 'admin')
  .option('--json', 'print {"id", "workspace_id", "key"}')
  .action(async ({ workspace, name, json = false }: { workspace?: string; name: string; json?: boolean }) => {
    await withDatabase({ mayCreate: false }, async (connectionString) => {
      const made = await makeAdminKey({ connectionString, workspace: workspace ?? null, name }, logger);
      const { id, workspaceId, key } = made;
      print(json ? JSON.stringify({ id, workspace_id: workspaceId, key: key.reveal() }) : key.reveal());
    });
  });

program
  .command('providers')
  .description('what each provider can, where it is, and which settings it knows')
  .option('--markdown', 'print docs/providers.md')
  .option('--json', 'print one JSON object a line')
  .action(({ markdown = false, json = false }: { markdown?: boolean; json?: boolean }) => {
    const described = providerIds.flatMap((id) => {
      const provider = findProvider(id);
      return provider ? [describeProvider(provider)] : [];
    });
    if (markdown) process.stdout.write(providersToMarkdown(described));
    else if (json) for (const each of described) print(JSON.stringify(each));
    else {
      for (const { id, operations, areas } of described) {
        const can = Object.entries({ ...operations, ...areas }).filter(([, form]) => form !== 'cannot');
        print(`${id.padEnd(18)} ${can.map(([name, form]) => `${name} (${form})`).join(', ')}`);
      }
    }
  });

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

const showEvents = (events: number): void => showProgress(`${events} events`);

function showProgress(text: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r${text}`);
}

function clearProgress(): void {
  if (process.stderr.isTTY) process.stderr.write('\r\u001b[K');
}

/** Throws InvalidArgumentError when the text is no day of the calendar. */
function toDay(text: string): string {
  const isDay = /^\d{4}-\d{2}-\d{2}$/.test(text) && !Number.isNaN(Date.parse(text));
  // 30 February is read as 2 March.
  if (isDay && new Date(text).toISOString().startsWith(text)) return text;
  throw new InvalidArgumentError('It must be a day such as 2026-11-21.');
}

async function withDatabase(
  options: { mayCreate: boolean },
  work: (connectionString: string) => Promise<void>,
): Promise<void> {
  const { url, close } = await openDatabaseUrl(options, logger);
  try {
    await work(url);
  } finally {
    await close();
  }
}

try {
  await program.parseAsync();
} catch (error) {
  process.stderr.write(`${explain(error)}\n`);
  process.exitCode = 1;
}

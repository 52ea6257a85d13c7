import { InvalidArgumentError, type Command } from 'commander';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { groupOf } from '../server/client-command.ts';
import { note, print } from '../terminal/output.ts';

// These commands use the database. What they need is loaded when one of them runs, so that the commands that only speak
// HTTP start quickly.

const maintenance = 'Maintenance (with the database in DATABASE_URL, or the one of the data directory):';

/** Adds the commands for operators. Results go to stdout, progress and problems to stderr. */
export function addOperatorCommands(program: Command): void {
  program.commandsGroup(maintenance);
  program
    .command('migrate')
    .description('apply all pending migrations; creates the embedded database if there is none')
    .option('--json', 'print {"applied": [names]} instead')
    .action(async ({ json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: true }, async (connectionString, logger) => {
        const { migrate } = await import('#libs/database/migrate.ts');
        const applied = await migrate({ connectionString, logger });
        if (json) print(JSON.stringify({ applied }));
        else print(applied.length === 0 ? 'nothing to do' : `applied: ${applied.join(', ')}`);
      });
    });

  program
    .command('rebuild')
    .description('rebuild the tables that the API reads from the event log; works while Sluice runs')
    .option('--check', 'only compare them; exit with status 1 and show the first difference if they differ')
    .option('--json', 'print the report as one JSON object instead')
    .action(async ({ check = false, json = false }: { check?: boolean; json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { describeCheck, rebuild, toJson } = await import('../checks/rebuild.ts');
        const report = await rebuild({ connectionString, check, onProgress: showEvents }, logger);
        clearProgress();
        for (const line of json ? [toJson(report, check)] : describeCheck(report, check)) print(line);
        if (check && report.difference !== null) process.exitCode = 1;
      });
    });

  program
    .command('restore')
    .description(
      'prepare the database and blobs that were put back from a backup, while no process of Sluice runs, and tell what is ' +
        'lost; exit with status 1 if something needs your attention. Can be repeated',
    )
    .option('--adopt-blobs', 'use this blob folder although the database was used with another one, which is lost')
    .option('--list <file>', 'write every missing, incomplete and surplus blob to this file, one JSON object per line')
    .option('--json', 'print the report as one JSON object instead')
    .action(async (options: { adoptBlobs?: boolean; list?: string; json?: boolean }) => {
      const { adoptBlobs = false, list = null, json = false } = options;
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { restore } = await import('../restore/restore.ts');
        const { describeRestore, isAlright, restoreToJson } = await import('../restore/describe-restore.ts');
        const report = await restore(
          { connectionString, adoptBlobs, listFile: list, onProgress: showProgress },
          logger,
        );
        clearProgress();
        for (const line of json ? [restoreToJson(report)] : describeRestore(report)) print(line);
        if (!isAlright(report)) process.exitCode = 1;
      });
    });

  program
    .command('check-results')
    .description('check the output and error file of a batch that has ended against the results_root of its events')
    .argument('<batch>', 'the id of the batch')
    .option('--json', 'print the result as one JSON object instead')
    .action(async (batchId: string, { json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { checkBatchResults, describeResultsCheck, resultsCheckToJson } =
          await import('../checks/check-results.ts');
        const onProgress = (lines: number): void => showProgress(`${lines} lines`);
        const check = await checkBatchResults({ connectionString, batchId, onProgress }, logger);
        clearProgress();
        for (const line of json ? [resultsCheckToJson(check)] : describeResultsCheck(check)) print(line);
        if (check.violations.length > 0) process.exitCode = 1;
      });
    });

  const subscriberCommands = program
    .command('subscribers')
    .description('the subscribers of the event log, which fill tables such as the audit log');

  subscriberCommands
    .command('list')
    .description('show how far each subscriber is, and the error that stops it')
    .option('--json', 'print one JSON object per subscriber instead')
    .action(async ({ json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { describeSubscriber, readSubscribers, subscriberToJson } = await import('./subscribers.ts');
        for (const state of await readSubscribers({ connectionString }, logger))
          print(json ? subscriberToJson(state) : describeSubscriber(state));
      });
    });

  subscriberCommands
    .command('restart')
    .description('let a subscriber that failed try again now instead of after its delay')
    .argument('<name>')
    .option('--json', 'print {"name"} instead')
    .action(async (name: string, { json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { restartSubscriber } = await import('./subscribers.ts');
        await restartSubscriber({ connectionString, name }, logger);
        print(json ? JSON.stringify({ name }) : `${name} tries again within a second, if a worker is running`);
      });
    });

  subscriberCommands
    .command('rebuild')
    .description("empty a subscriber's tables and fill them again from the event log; works while Sluice runs")
    .argument('<name>')
    .option('--json', 'print {"name", "events"} instead')
    .action(async (name: string, { json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { rebuildFromLog } = await import('./subscribers.ts');
        const events = await rebuildFromLog({ connectionString, name, onProgress: showEvents }, logger);
        clearProgress();
        print(json ? JSON.stringify({ name, events }) : `${name} rebuilt: ${events} events applied by this command`);
      });
    });

  const logs = groupOf(program, 'logs', 'the request log');
  logs
    .option('--check', 'list which rows of each process are there; exit with status 1 if any are missing')
    .option('--since <date>', 'check only this day (UTC, YYYY-MM-DD) and later', toDay)
    .option('--json', 'print the result as one JSON object instead')
    .action(async ({ check = false, since, json = false }: { check?: boolean; since?: string; json?: boolean }) => {
      if (!check) logs.help({ error: true });
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { checkLogs, describeLogCheck, logCheckToJson } = await import('../checks/check-logs.ts');
        const result = await checkLogs({ connectionString, since, onDay: showProgress }, logger);
        clearProgress();
        for (const line of json ? [logCheckToJson(result)] : describeLogCheck(result)) print(line);
        if (result.missing > 0) process.exitCode = 1;
      });
    });

  const analytics = program
    .command('analytics')
    .description('the rollups of the request log, which analytics is read from');

  analytics
    .command('check')
    .description('compute them again from the request log; exit with status 1 if they differ')
    .option('--json', 'print the result as one JSON object instead')
    .action(async ({ json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { checkAnalytics, describeRollupCheck } = await import('../checks/analytics.ts');
        const check = await checkAnalytics({ connectionString, onDay: showProgress }, logger);
        clearProgress();
        for (const line of json ? [JSON.stringify(check)] : describeRollupCheck(check)) print(line);
        if (check.different > 0) process.exitCode = 1;
      });
    });

  analytics
    .command('rebuild')
    .description('roll up the whole request log again; works while Sluice runs')
    .option('--json', 'print {"minutes"} instead')
    .action(async ({ json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { rebuildAnalytics } = await import('../checks/analytics.ts');
        const onProgress = (minutes: number): void => showProgress(`${minutes} minutes`);
        const minutes = await rebuildAnalytics({ connectionString, onProgress }, logger);
        clearProgress();
        print(json ? JSON.stringify({ minutes }) : `rolled up again: ${minutes} minutes by this command`);
      });
    });

  const keys = groupOf(program, 'keys', 'replace the master key, or keys that are lost');

  keys.commandsGroup(maintenance);
  keys
    .command('rewrap')
    .description('encrypt all stored secrets with the newest master key; works while Sluice runs and can be repeated')
    .option('--json', 'print the result as one JSON object instead')
    .action(async ({ json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { describeRewrap, rewrapKeys } = await import('./keys.ts');
        const onProgress = (rewrapped: number): void => showProgress(`${rewrapped} secrets`);
        const report = await rewrapKeys({ connectionString, onProgress }, logger);
        clearProgress();
        for (const line of json ? [JSON.stringify(report)] : describeRewrap(report)) print(line);
        if (Object.keys(report.left).length > 0) process.exitCode = 1;
      });
    });

  keys
    .command('create-admin')
    .description('create an admin key, in case you lost yours, and print it, only once')
    .option('--workspace <id>', 'id or name of the workspace; required if there are several')
    .option('--name <name>', 'name of the key', 'admin')
    .option('--json', 'print {"id", "workspace_id", "key"} instead')
    .action(async ({ workspace, name, json = false }: { workspace?: string; name: string; json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { makeAdminKey } = await import('./keys.ts');
        const made = await makeAdminKey({ connectionString, workspace: workspace ?? null, name }, logger);
        const { id, workspaceId, key } = made;
        print(json ? JSON.stringify({ id, workspace_id: workspaceId, key: key.reveal() }) : key.reveal());
      });
    });

  keys
    .command('forget-master')
    .description(
      'accept another master key from the next start on, because yours is lost; what it encrypted stays unreadable. Stop ' +
        'all processes first',
    )
    .option('--json', 'print {"unreadable"}, the number of secrets by the id of their key, instead')
    .action(async ({ json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { forgetMasterKey } = await import('./keys.ts');
        const unreadable = await forgetMasterKey(connectionString, logger);
        if (json) return print(JSON.stringify({ unreadable }));
        print('the next process to start may bring another master key');
        for (const [id, count] of Object.entries(unreadable)) {
          print(`  ${count} secrets can only be read with the lost key ${id}; store their credentials again`);
        }
      });
    });

  groupOf(program, 'policies', 'budgets and rates')
    .command('check')
    .description(
      'compare what each budget has counted in its period with the request log; exit with status 1 if a difference has no ' +
        'explanation. Run `logs --check` first: rows that are missing there are missing here',
    )
    .option(
      '--repair',
      'raise counters that have counted less than the log, where no call is under way; no counter is lowered',
    )
    .option('--json', 'print one JSON object per counter')
    .action(async ({ repair = false, json = false }: { repair?: boolean; json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { checkPolicies, describePolicies, isUnequal, policyCheckToJson } = await import('../checks/policies.ts');
        const checks = await checkPolicies({ connectionString, repair }, logger);
        for (const line of json ? checks.map(policyCheckToJson) : describePolicies(checks)) print(line);
        if (checks.some(isUnequal)) process.exitCode = 1;
      });
    });

  const prices = program.command('prices').description('what models cost, and the price table in use');

  prices
    .command('list')
    .description('list the providers of the price table in use, with the source and the date of their prices')
    .option('--json', 'print the table as a document that refresh takes')
    .action(async ({ json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { describeTable, readPrices } = await import('./prices.ts');
        const table = await readPrices({ connectionString }, logger);
        for (const line of json ? [JSON.stringify(table.document, null, 2)] : describeTable(table)) print(line);
      });
    });

  prices
    .command('show')
    .description(
      'show what each provider charges for a model, in dollars for a million tokens; exit with status 1 if none does',
    )
    .argument('<model>', 'the name of the model, as requests or answers have it')
    .option('--json', 'print one JSON object per provider instead')
    .action(async (model: string, { json = false }: { json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { describePrice, pricesOf, readPrices } = await import('./prices.ts');
        const prices = pricesOf(await readPrices({ connectionString }, logger), model);
        for (const price of prices) print(json ? JSON.stringify(price) : describePrice(price));
        if (prices.length > 0) return;
        note(`no provider has a price for ${model}`);
        process.exitCode = 1;
      });
    });

  prices
    .command('refresh')
    .description('use the price table of a file from now on; prints what it changes')
    .requiredOption('--file <file>', 'a price table, such as `prices list --json` prints')
    .option('--dry-run', 'only print what it would change')
    .option('--json', 'print {"before", "after", "changes", "stored"} instead')
    .action(async ({ file, dryRun = false, json = false }: { file: string; dryRun?: boolean; json?: boolean }) => {
      await withDatabase({ mayCreate: false }, async (connectionString, logger) => {
        const { describeRefresh, refreshPrices } = await import('./prices.ts');
        const refresh = await refreshPrices({ connectionString, file, isDryRun: dryRun }, logger);
        for (const line of json ? [JSON.stringify(refresh)] : describeRefresh(refresh)) print(line);
      });
    });

  groupOf(program, 'providers', 'what each provider supports, its address and its settings')
    .option('--json', 'print one JSON object per line')
    .action(async ({ json = false }: { json?: boolean }) => {
      const { describeProvider } = await import('#libs/providers/describe-providers.ts');
      const { providers } = await import('#libs/providers/provider-list.ts');
      const described = providers.map(describeProvider);
      if (json) for (const each of described) print(JSON.stringify(each));
      else {
        for (const { id, operations, areas } of described) {
          const supported = Object.entries({ ...operations, ...areas }).filter(([, form]) => form !== 'not supported');
          const forms = Object.entries(Object.groupBy(supported, ([, form]) => form));
          const named = forms.map(([form, each]) => `${form}: ${each.map(([name]) => name).join(', ')}`);
          print(`${id.padEnd(18)} ${named.join('; ')}`);
        }
      }
    });
}

const showEvents = (events: number): void => showProgress(`${events} events`);

function showProgress(text: string): void {
  if (process.stderr.isTTY) process.stderr.write(`\r${text}`);
}

function clearProgress(): void {
  if (process.stderr.isTTY) process.stderr.write('\r\u001b[K');
}

/** Throws InvalidArgumentError if the text is not a calendar day. */
function toDay(text: string): string {
  const isDay = /^\d{4}-\d{2}-\d{2}$/.test(text) && !Number.isNaN(Date.parse(text));
  // Date.parse takes 30 February for 2 March.
  if (isDay && new Date(text).toISOString().startsWith(text)) return text;
  throw new InvalidArgumentError('It must be a date like 2026-11-21.');
}

async function withDatabase(
  options: { mayCreate: boolean },
  work: (connectionString: string, logger: Logger) => Promise<void>,
): Promise<void> {
  const { createLogDestination } = await import('#libs/kernel/logging/log-destination.ts');
  const { createLogger } = await import('#libs/kernel/logging/logger.ts');
  const { limitHeapGrowth } = await import('#libs/kernel/heap-growth.ts');
  const { openDatabaseUrl } = await import('./database-url.ts');
  limitHeapGrowth();
  const logger = createLogger({ name: 'cli', level: 'warn' }, createLogDestination({ fd: 2 }));
  const { url, close } = await openDatabaseUrl(options, logger);
  try {
    await work(url, logger);
  } finally {
    await close();
  }
}

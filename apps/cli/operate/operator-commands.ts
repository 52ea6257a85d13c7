import { InvalidArgumentError, type Command } from 'commander';
import type { LogEnd } from '#libs/event-log/copy-log.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { addCheckCommand } from '../checks/check-command.ts';
import { checks } from '../checks/checks.ts';
import { toMoment } from '../logs/time-range.ts';
import { CliError, exitCodes } from '../server/cli-error.ts';
import { addGroup, toCount } from '../server/client-command.ts';
import { print } from '../terminal/output.ts';
import { databaseCommand, operatorCommand } from './database-command.ts';

const maintenance = 'Maintenance (uses DATABASE_URL, or the database in the data directory):';

/** Adds the commands for operators. Results go to stdout, progress and problems to stderr. */
export function addOperatorCommands(program: Command): void {
  program.commandsGroup(maintenance);
  operatorCommand(
    program,
    'migrate',
    {
      description: 'apply all pending migrations; creates the embedded database if there is none',
      json: 'print {"applied": [names]} instead',
    },
    async ({ connectionString, logger }) => {
      const { migrate } = await import('#libs/database/migrate.ts');
      const applied = await migrate({ connectionString, logger });
      if (applied.length > 0) await recordMigrations(connectionString, applied, logger);
      const text = applied.length === 0 ? 'no migration is pending' : `applied: ${applied.join(', ')}`;
      return { text: [text], json: [{ applied }] };
    },
    { mayCreate: true },
  );
  addCheckCommand(program, checks);
  operatorCommand<{ adoptBlobs?: boolean; list?: string }>(
    program,
    'restore',
    {
      description:
        'prepare a database and blobs that you restored from a backup, and report what is missing; exit with status 1 if ' +
        'something needs your attention. Stop all processes of Sluice first. Can be repeated',
      json: 'print the report as one JSON object instead',
    },
    async ({ options: { adoptBlobs = false, list = null }, connectionString, logger, onProgress }) => {
      const { restore } = await import('../restore/restore.ts');
      const { describeRestore, listProblems } = await import('../restore/describe-restore.ts');
      const report = await restore({ connectionString, adoptBlobs, listFile: list, onProgress }, logger);
      const problems = listProblems(report);
      const ok = problems.length === 0;
      return { text: describeRestore(report, problems), json: [{ ok, ...report, problems }], ok };
    },
  )
    .option('--adopt-blobs', 'use this blob folder although the database belongs to another one, which is lost')
    .option('--list <file>', 'write every missing, incomplete and surplus blob to this file, one JSON object per line');

  addReplayLogCommand(program);
  addSubscriberCommands(program);
  addKeyCommands(program);
  addAuditCommands(program);
  addPriceCommands(program);
  addProviderCommand(program);
}

async function recordMigrations(connectionString: string, applied: string[], logger: Logger): Promise<void> {
  const { withMigratedPool } = await import('./migrated-pool.ts');
  const { createDatabase } = await import('#libs/database/pool.ts');
  const { recordCommand } = await import('./operator-metadata.ts');
  await withMigratedPool({ connectionString, applicationName: 'sluice-migrate' }, logger, (pool) =>
    recordCommand(createDatabase(pool), 'migrate', { applied }),
  );
}

function addReplayLogCommand(program: Command): void {
  databaseCommand<{ until?: LogEnd; into: string }>(
    program,
    'replay',
    {
      description:
        'build the tables of an earlier moment in another, empty database, from the event log; exit with status 1 if ' +
        'counts differ. Works while Sluice runs',
      json: 'print the report as one JSON object instead',
    },
    async ({ options: { until = null, into }, db, logger, onProgress }) => {
      const { describeReplay, replayLog } = await import('./replay-log.ts');
      const report = await replayLog(db, { into, until }, onProgress, logger);
      const { events, lastEvent, problems } = report;
      const ok = problems.length === 0;
      const recorded = { events, last_event_at: lastEvent?.recordedAt.toISOString() ?? null, problems };
      return { text: describeReplay(report), json: [{ ok, ...report }], ok, recorded };
    },
  )
    .requiredOption('--into <url>', 'address of the database, such as postgres://user:password@host/replayed')
    .option(
      '--until <time|index>',
      'a time such as 7d or 2026-11-21T14:00Z, or how many events from the beginning of the log, as in a checkpoint of ' +
        'the first tree (default: all)',
      toLogEnd,
    );
}

/** A time, or a number of events. Throws InvalidArgumentError. */
const toLogEnd = (text: string): LogEnd =>
  /^\d{1,15}$/.test(text) ? { events: Number(text) } : { at: new Date(toMoment(text)) };

function addSubscriberCommands(program: Command): void {
  const subscribers = program
    .command('subscribers')
    .description('the subscribers of the event log, which fill tables such as the audit log');
  databaseCommand(
    subscribers,
    'list',
    {
      description: 'show the progress of each subscriber, and the error that stops it',
      json: 'print one JSON object per subscriber instead',
    },
    async ({ db }) => {
      const { listSubscribers } = await import('#libs/event-log/subscriber.ts');
      const { describeSubscriber } = await import('./subscribers.ts');
      const states = await listSubscribers(db);
      return { text: states.map(describeSubscriber), json: states };
    },
  );
  databaseCommand(
    subscribers,
    'restart <name>',
    { description: 'retry a failed subscriber now instead of after its delay', json: 'print {"name"} instead' },
    async ({ args: [name = ''], db }) => {
      const { restartSubscriber } = await import('./subscribers.ts');
      await restartSubscriber(db, name);
      const text = `${name} retries within a second if a worker is running`;
      return { text: [text], json: [{ name }], recorded: { name } };
    },
  );
  databaseCommand(
    subscribers,
    'rebuild <name>',
    {
      description: "make a subscriber's tables equal to what the event log gives; works while Sluice runs",
      json: 'print {"name", "events"} instead',
    },
    async ({ args: [name = ''], db, onProgress }) => {
      const { rebuildFromLog } = await import('./subscribers.ts');
      const events = await rebuildFromLog(db, name, (count) => onProgress(`${count} events`));
      const text = `${name}: rebuilt from ${events} events`;
      return { text: [text], json: [{ name, events }], recorded: { name, events } };
    },
  );
}

function addKeyCommands(program: Command): void {
  const keys = addGroup(program, 'keys', 'replace the master key, or keys that are lost');
  keys.commandsGroup(maintenance);
  databaseCommand(
    keys,
    'rewrap',
    {
      description: 'encrypt all stored secrets with the newest master key; works while Sluice runs. Can be repeated',
      json: 'print the result as one JSON object instead',
    },
    async ({ db, onProgress }) => {
      const { describeRewrap, rewrapKeys } = await import('./keys.ts');
      const report = await rewrapKeys(db, (rewrapped) => onProgress(`${rewrapped} secrets`));
      const ok = Object.keys(report.left).length === 0;
      return { text: describeRewrap(report), json: [report], ok, recorded: report.rewrapped > 0 ? report : undefined };
    },
  );
  databaseCommand<{ workspace?: string; name: string }>(
    keys,
    'create-admin',
    {
      description: 'create an admin key in case you lost yours. It is printed only once',
      json: 'print {"id", "workspace_id", "key"} instead',
    },
    async ({ options: { workspace = null, name }, db }) => {
      const { makeAdminKey } = await import('./keys.ts');
      const { id, workspaceId, key } = await makeAdminKey(db, { workspace, name });
      return { text: [key.reveal()], json: [{ id, workspaceId, key: key.reveal() }] };
    },
  )
    .option('--workspace <id>', 'id or name of the workspace; required if there are several')
    .option('--name <name>', 'name of the key', 'admin');
  databaseCommand(
    keys,
    'forget-master',
    {
      description:
        'accept another master key from the next start on, because yours is lost. Secrets that it encrypted stay ' +
        'unreadable. Stop all processes of Sluice first',
      json: 'print {"unreadable"}, the number of secrets by the id of their master key, instead',
    },
    async ({ db, applicationName }) => {
      const { describeUnreadable, forgetMasterKey } = await import('./keys.ts');
      const unreadable = await forgetMasterKey(db, applicationName);
      return { text: describeUnreadable(unreadable), json: [{ unreadable }], recorded: { unreadable } };
    },
  );
}

function addAuditCommands(program: Command): void {
  const audit = addGroup(program, 'audit', 'the seal of the event log, and what the log says about a person');
  audit.commandsGroup(maintenance);
  databaseCommand<{ reason: string }>(
    audit,
    'erase <user>',
    {
      description:
        'erase e-mail addresses, names and network addresses of a deleted user from the log, the records and the request ' +
        'log. Hashes of events stay valid. Works while Sluice runs. Can be repeated',
      json: 'print {"events", "calls"}, the numbers of changed events and calls, instead',
    },
    async ({ args: [userId = ''], options: { reason }, db, onProgress }) => {
      const { erasePerson } = await import('../../platform/erase-person.ts');
      const { operatorMetadata } = await import('./operator-metadata.ts');
      const wanted = { userId, reason, metadata: operatorMetadata() };
      const counts = await erasePerson(db, wanted, (position) => onProgress(`event ${position}`));
      return { text: [`erased from ${counts.events} events and ${counts.calls} calls`], json: [counts] };
    },
  ).requiredOption('--reason <text>', 'why, without naming the person; the log keeps it');
  databaseCommand<{ out: string; from?: Date; to?: Date; workspace?: string }>(
    audit,
    'export',
    {
      description:
        'write the sealed events and calls of a time range to a folder, with proofs and a program that checks them. Works while ' +
        'Sluice runs. Repeat an interrupted run to complete it',
      json: 'print {"events", "calls", "trees"}, the numbers of exported events, calls and trees, instead',
    },
    async ({ options: { out, from = null, to = null, workspace: workspaceId = null }, db, onProgress }) => {
      const { exportLog } = await import('../audit/export-log.ts');
      const { openAudit } = await import('../audit/open-audit.ts');
      const { limitYoungGeneration } = await import('#libs/kernel/heap-growth.ts');
      limitYoungGeneration();
      const wanted = { out, from, to, workspaceId };
      const counts = await exportLog(
        { db, ...(await openAudit()) },
        { ...wanted, onProgress: (n) => onProgress(`${n} events`) },
      );
      return {
        text: [
          `${counts.events} events and ${counts.calls} calls in ${out}; check them with: node ${out}/audit-verify.mjs ${out}`,
        ],
        json: [counts],
      };
    },
  )
    .requiredOption('--out <folder>', 'the folder, which is created')
    .option('--from <time>', 'the time of the first event, such as 2026-10-01T00:00:00Z', toDate)
    .option('--to <time>', 'the time of the last event', toDate)
    .option('--workspace <id>', 'only the events of this workspace, and nothing of others');
  addProveCommand(audit);
}

type ProofOptions = { event?: string; call?: string; batch?: string; line?: number; customId?: string; out: string };

function addProveCommand(audit: Command): void {
  databaseCommand<ProofOptions>(
    audit,
    'prove',
    {
      description:
        'write a proof that an event, a call or a line of a batch is in the log, as one file that audit-verify.mjs of an ' +
        'export checks. Use --event, --call, or --batch with --line or --custom-id',
      json: 'print {"tree", "index"}, the place of the event, or {"line", "request", "result"}, what is proved of the line',
    },
    async ({ options: { event, call, batch, line = null, customId = null, out }, db }) => {
      const { openAudit } = await import('../audit/open-audit.ts');
      const lineOptions = [line, customId].filter((option) => option !== null).length;
      const isRight = [event, call, batch].filter((option) => option !== undefined).length === 1;
      if (!isRight || lineOptions !== (batch === undefined ? 0 : 1)) {
        const message = 'Use one of --event, --call, or --batch with one of --line and --custom-id.';
        throw new CliError(message, { exitCode: exitCodes.usage });
      }
      const deps = { db, ...(await openAudit()) };
      if (batch !== undefined) {
        const { describeLineProof, proveLine } = await import('../audit/prove-line.ts');
        const proved = await proveLine(deps, { batchId: batch, line, customId, out });
        return { text: describeLineProof(proved, out), json: [proved] };
      }
      const { proveEvent } = await import('../audit/prove-event.ts');
      const { writeCallProof } = await import('../audit/prove-call.ts');
      const place =
        event === undefined
          ? await writeCallProof(deps, { callId: call ?? '', out })
          : await proveEvent(deps, { eventId: event, out });
      return { text: [`entry ${place.index} of tree ${place.tree}; the proof is in ${out}`], json: [place] };
    },
  )
    .option('--event <id>', 'the ID of the event')
    .option('--call <id>', 'the ID of the record of a call (log_…), or its request ID, which takes longer')
    .option('--batch <id>', 'the ID of the batch')
    .option('--line <number>', 'the number of the line, from 1', toCount({ min: 1, max: 2_147_483_647 }))
    .option('--custom-id <id>', 'the custom_id of the line')
    .requiredOption('--out <file>', 'the file of the proof');
}

function toDate(text: string): Date {
  const date = new Date(text);
  if (!Number.isNaN(date.getTime())) return date;
  throw new InvalidArgumentError('Use a time such as 2026-10-01T00:00:00Z.');
}

function addPriceCommands(program: Command): void {
  const prices = program.command('prices').description('what models cost, and the current price table');
  databaseCommand(
    prices,
    'list',
    {
      description: 'list the providers of the current price table, with the source and date of their prices',
      json: 'print the table as a document that refresh accepts',
    },
    async ({ db }) => {
      const { readCurrentPriceTable } = await import('#libs/resources/price-tables.ts');
      const { describeTable } = await import('./prices.ts');
      const table = await readCurrentPriceTable(db);
      return { text: describeTable(table), json: [JSON.stringify(table.document, null, 2)] };
    },
  );
  databaseCommand(
    prices,
    'show <model>',
    {
      description:
        'show what each provider charges for a model, in dollars per million tokens; exit with status 1 if no provider ' +
        'has a price',
      json: 'print one JSON object per provider instead',
    },
    async ({ args: [model = ''], db }) => {
      const { readCurrentPriceTable } = await import('#libs/resources/price-tables.ts');
      const { describePrice, findPrices } = await import('./prices.ts');
      const found = findPrices(await readCurrentPriceTable(db), model);
      const none = [`no provider has a price for ${model}`];
      return { text: found.length === 0 ? none : found.map(describePrice), json: found, ok: found.length > 0 };
    },
  );
  databaseCommand<{ file: string; dryRun?: boolean }>(
    prices,
    'refresh',
    {
      description: 'use the price table in a file from now on; prints what it changes',
      json: 'print {"before", "after", "changes", "stored"} instead',
    },
    async ({ options: { file, dryRun = false }, db }) => {
      const { describeRefresh, refreshPrices } = await import('./prices.ts');
      const refresh = await refreshPrices(db, { file, isDryRun: dryRun });
      return { text: describeRefresh(refresh), json: [refresh] };
    },
  )
    .requiredOption('--file <file>', 'a price table, such as `prices list --json` prints')
    .option('--dry-run', 'only print what it would change');
}

function addProviderCommand(program: Command): void {
  addGroup(program, 'providers', 'what each provider supports, its address and its settings')
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

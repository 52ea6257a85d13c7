import { setTimeout as wait } from 'node:timers/promises';
import { Option, type Command } from 'commander';
import { createOutage } from './outage.ts';
import { CliError } from '../server/cli-error.ts';
import { clientCommand, addGroup, toCount, toPairs, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { download } from '../batches/download.ts';
import type { Client, Query } from '../server/http-client.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { note, print, printObject, printRows, showsTable, tableForStdout } from '../terminal/output.ts';
import { formatBytes, formatCost, formatTime } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { isObject } from '../records/read-documents.ts';
import { checkTargets } from '../batches/result-targets.ts';
import { toMoment } from './time-range.ts';

type Log = {
  id: string;
  created_at: string;
  kind: string;
  status: number | null;
  error_code: string | null;
  model: string | null;
  provider: string | null;
  duration_ms: number;
  cost_usd: string | null;
  trace_id: string | null;
};

const columns: readonly Column<Log>[] = [
  ['time', ({ created_at: at }) => formatTime(at, { seconds: true })],
  ['status', ({ status }) => status],
  ['ms', ({ duration_ms: ms }) => Math.round(ms), { spare: 3 }],
  ['cost', ({ cost_usd: usd, provider }) => formatCost(usd, provider === 'simulator'), { right: true, spare: 2 }],
  ['provider', ({ provider }) => provider, { spare: 1 }],
  ['id', ({ id }) => id],
  ['model', ({ model, error_code: code }) => (code === null ? model : `${model} ${code}`)],
];

/** Returns a call without empty members and without the duplicate members that exist for other clients. */
function readable({ _id, metrics: _metrics, ...log }: Record<string, unknown>): object {
  const hasSomething = (value: unknown): boolean =>
    typeof value === 'object' && value !== null ? Object.values(value).some(hasSomething) : (value ?? '') !== '';
  const without = (value: object): object =>
    Object.fromEntries(
      Object.entries(value)
        .filter(([, member]) => hasSomething(member))
        .map(([name, member]) => [name, isObject(member) ? without(member) : member]),
    );
  return without(log);
}

type Filters = {
  status?: string;
  model?: string;
  provider?: string;
  virtualKey?: string;
  batch?: string;
  trace?: string;
  session?: string;
  agent?: string;
  kind?: string;
  since?: string;
  until?: string;
  metadata?: Record<string, string>;
};

const queryOf = (filters: Filters): Query => ({
  status: filters.status,
  model: filters.model,
  provider: filters.provider,
  virtual_key: filters.virtualKey,
  batch_id: filters.batch,
  trace_id: filters.trace,
  session_id: filters.session,
  agent_id: filters.agent,
  kind: filters.kind,
  time_of_generation_min: filters.since,
  time_of_generation_max: filters.until,
  metadata: filters.metadata && JSON.stringify(filters.metadata),
});

const withFilters = (command: Command): Command =>
  command
    .option('--status <status>', 'for example 429, 5xx or error')
    .option('--model <model>', 'with this model')
    .option('--provider <provider>', 'to this provider')
    .option('--virtual-key <slug>', 'with this virtual key')
    .option('--batch <id>', 'of this batch')
    .option('--trace <id>', 'with this trace id')
    .option('--session <id>', 'of this agent session')
    .option('--agent <id>', 'of this sub-agent')
    .option('--kind <kind>', 'live, batch or imported')
    .option('--metadata <name=value>', 'with this metadata; can be repeated', toPairs);

/** All columns except requests and answers. */
const exportedColumns =
  'id,trace_id,created_at,is_success,ai_org,ai_model,req_units,res_units,total_units,request_url,cost,cost_currency,' +
  'response_time,response_status_code,mode,config,prompt_slug,metadata,session_id,agent_id,parent_agent_id';

const tailEveryMs = 1_000;
const tailPage = 100;

/** Adds `sluice logs search|get|tail|export`. */
export function addLogCommands(program: Command): void {
  const logs = addGroup(program, 'logs', 'the request log: search, follow, export');

  withFilters(clientCommand(logs, 'search', 'list calls, newest first'))
    .option('--since <time>', 'start: 24h or 7d ago, or a time such as 2026-11-21', toMoment)
    .option('--until <time>', 'end, in the same format', toMoment)
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (options: ClientOptions & Filters & { limit: number }) => {
      const client = await connect(options);
      printRows(await client.list<Log>('/v1/logs', queryOf(options), options.limit), columns, options);
    });

  clientCommand(logs, 'get <id>', 'show a call').action(async (id: string, options: ClientOptions) => {
    const client = await connect(options);
    const found = await client.json<Record<string, unknown>>('GET', `/v1/logs/${encodeURIComponent(id)}`);
    printObject(showsTable(options) ? readable(found) : found, options);
  });

  withFilters(clientCommand(logs, 'tail', 'print calls as they are recorded, until Ctrl-C')).action(
    async (options: ClientOptions & Filters) => {
      const client = await connect(options);
      await interruptible(
        (signal) => tail(client, options, signal),
        () => 'Recording continues on the server.',
      );
    },
  );

  clientCommand(logs, 'export', 'write all calls of a time range to a file')
    .requiredOption('-o, --output <file>', 'file for the calls, one JSON object per line')
    .requiredOption('--since <time>', 'start: 24h or 7d ago, or a time such as 2026-11-21', toMoment)
    .addOption(
      new Option('--until <time>', 'end, in the same format')
        .argParser(toMoment)
        .default(new Date().toISOString(), 'now'),
    )
    .action(async (options: ClientOptions & { output: string; since: string; until: string }) => {
      const client = await connect(options);
      await checkTargets([options.output]);
      await interruptible(
        (signal) => exportLogs(client, options, signal),
        () => 'The export continues on the server. To see it: sluice log-exports list',
      );
    });
}

async function tail(client: Client, options: ClientOptions & Filters, signal: AbortSignal): Promise<void> {
  const query = queryOf(options);
  const newCalls = createNewCalls((limit) => client.list<Log>('/v1/logs', query, limit), note);
  const table = tableForStdout(columns);
  const outage = createOutage();
  for (;;) {
    let fresh: Log[];
    try {
      fresh = await newCalls();
      outage.isOver('no call was missed');
    } catch (error) {
      if (signal.aborted || !outage.isExpected(error)) throw error;
      await outage.pause(signal);
      continue;
    }
    if (!showsTable(options)) for (const log of fresh) print(JSON.stringify(log));
    else if (fresh.length > 0) for (const line of table.linesOf(fresh)) print(line);
    await wait(tailEveryMs, undefined, { signal });
  }
}

/** The limit per poll: more calls than a person can read are left out, with a message. */
const shownMax = 500;

/**
 * Polls the request log: each poll returns the new calls, oldest first. The first one returns none. `read` returns the
 * newest calls. Calls are identified by their IDs and not by their order, because processes write them a little later
 * than they happen.
 * @testOnly
 */
export function createNewCalls<Log extends { id: string }>(
  read: (limit: number) => Promise<readonly Log[]>,
  note: (line: string) => void,
): () => Promise<Log[]> {
  let seen: ReadonlySet<string> | null = null;
  return async () => {
    const before = seen;
    const isNew = ({ id }: Log): boolean => before?.has(id) === false;
    let page = await read(tailPage);
    if (page.length === tailPage && page.every(isNew)) page = await read(shownMax);
    if (page.length === shownMax && page.every(isNew))
      note('Some calls are left out, because there are too many to show.');
    seen = new Set(page.map(({ id }) => id));
    return page.filter(isNew).reverse();
  };
}

async function exportLogs(
  client: Client,
  { output, since, until }: { output: string; since: string; until: string },
  signal: AbortSignal,
): Promise<void> {
  const filters = { time_of_generation_min: since, time_of_generation_max: until };
  const { id } = await client.json<{ id: string }>('POST', '/v1/logs/exports', {
    json: { filters, requested_data: exportedColumns.split(','), description: 'sluice logs export' },
    signal,
  });
  await client.json('POST', `/v1/logs/exports/${id}/start`, { signal });
  for (;;) {
    const { status, error } = await client.json<{ status: string; error?: string | null }>(
      'GET',
      `/v1/logs/exports/${id}`,
      { signal },
    );
    if (status === 'success') break;
    if (status === 'failed' || status === 'stopped')
      throw new CliError(`The export ${id} is ${status}${error ? `: ${error}` : ''}.`);
    await wait(tailEveryMs, undefined, { signal });
  }
  const { signed_url: url } = await client.json<{ signed_url: string }>('GET', `/v1/logs/exports/${id}/download`, {
    signal,
  });
  const { pathname, search } = new URL(url);
  const { bytes, lines } = await download(client, id, output, { path: pathname + search, signal });
  note(`${output}: ${lines} ${lines === 1 ? 'call' : 'calls'}, ${formatBytes(bytes)}`);
}

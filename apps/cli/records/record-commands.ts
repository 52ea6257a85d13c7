import type { Command } from 'commander';
import { CliError, exitCodes } from '../server/cli-error.ts';
import { clientCommand, addGroup, toCount, toPairs, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { note, printObject, printRows, showsTable } from '../terminal/output.ts';
import { formatTime } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { addDeliveryCommands } from './delivery-commands.ts';
import { readObject } from './read-documents.ts';
import { recordKinds, type RecordKind } from './record-kinds.ts';

type Row = { id: string } & Record<string, string | number | null | undefined>;
type Body = { file?: string; set?: Record<string, string> };
type Place = { workspace?: string };

/** Adds list, get, create, update and delete for every kind of record. */
export function addRecordCommands(program: Command): void {
  for (const kind of recordKinds) {
    const group = addCommandsOf(program, kind);
    if (kind.kind === 'webhook_endpoint') addDeliveryCommands(group, kind.path);
  }
}

function addCommandsOf(program: Command, kind: RecordKind): Command {
  const { many, address, path } = kind;
  const verbs = [
    'list',
    'get',
    ...(kind.canCreate ? ['create'] : []),
    ...(kind.canUpdate ? ['update'] : []),
    ...(kind.canDelete ? ['delete'] : []),
  ];
  const group = addGroup(program, kind.command, `${many}: ${verbs.join(', ')}`);
  const at = (name: string): string => `${path}/${encodeURIComponent(name)}`;
  const query = ({ workspace }: Place): { workspace_id: string | undefined } => ({ workspace_id: workspace });
  const add = (usage: string, description: string): Command =>
    clientCommand(group, usage, description).option(
      '--workspace <id>',
      'workspace of the records, for an organisation key',
    );

  add('list', `list ${many}, newest first`)
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 100)
    .action(async (options: ClientOptions & Place & { limit: number }) => {
      const client = await connect(options);
      printRows(await client.list<Row>(path, query(options), options.limit), columnsOf(kind), options);
    });

  add(`get <${address}>`, `show one of the ${many}`).action(async (name: string, options: ClientOptions & Place) => {
    const client = await connect(options);
    const found = await client.json<Record<string, unknown>>('GET', at(name), { query: query(options) });
    // For some clients, the answer repeats the record in `data`.
    const { data: _data, success: _success, ...once } = found;
    printObject(showsTable(options) ? once : found, options);
  });

  if (kind.canCreate) {
    withBody(add('create', `create one of the ${many}; prints a secret that is shown only once`)).action(
      async (options: ClientOptions & Place & Body) => {
        const client = await connect(options);
        const json = {
          ...(await toBodyObject(options)),
          ...(options.workspace ? { workspace_id: options.workspace } : {}),
        };
        const made = await client.json<{ key?: unknown }>('POST', path, { json });
        printObject(made, options);
        if (kind.kind === 'api_key' && typeof made.key === 'string') note('Store the key now. It is not shown again.');
      },
    );
  }

  if (kind.canUpdate) {
    withBody(add(`update <${address}>`, 'change the given members and keep the others')).action(
      async (name: string, options: ClientOptions & Place & Body) => {
        const client = await connect(options);
        const json = await toBodyObject(options);
        printObject(await client.json<object>('PUT', at(name), { json, query: query(options) }), options);
      },
    );
  }

  if (kind.canDelete) {
    add(`delete <${address}...>`, `delete ${many}`).action(async (names: string[], options: ClientOptions & Place) => {
      const client = await connect(options);
      for (const name of names) {
        await client.json('DELETE', at(name), { query: query(options) });
        note(`${name} deleted`);
      }
    });
  }
  return group;
}

const columnsOf = ({ address }: RecordKind): Column<Row>[] => [
  [address, (row) => row[address] ?? row.id],
  ['status', (row) => row['status'] ?? row['role']],
  ['created', (row) => formatTime(row['created_at']), { spare: 1 }],
  ['name', (row) => row['name'] ?? row['email'] ?? row['description']],
];

const withBody = (command: Command): Command =>
  command
    .option('-f, --file <file>', 'file with a JSON or YAML object; - for stdin')
    .option('--set <name=value>', 'set a member; valid JSON is parsed as JSON; can be repeated', toPairs);

async function toBodyObject({ file, set }: Body): Promise<Record<string, unknown>> {
  if (file === undefined && set === undefined) {
    throw new CliError('The command needs the members of the record: -f FILE, or --set name=value.', {
      exitCode: exitCodes.usage,
    });
  }
  const members = Object.entries(set ?? {}).map(([name, text]) => [name, jsonOrText(text)]);
  return { ...(file === undefined ? {} : await readObject(file)), ...Object.fromEntries(members) };
}

function jsonOrText(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}

import type { Command } from 'commander';
import { createOutage } from './outage.ts';
import { clientCommand, addGroup, toCount, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { readPieces, type Client } from '../server/http-client.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { print, printObject, printRows, showsTable, tableForStdout } from '../terminal/output.ts';
import { formatTime } from '../terminal/quantities.ts';
import { type Column } from '../terminal/table.ts';
import { toMoment } from './time-range.ts';

type Event = {
  id: string;
  type: string;
  stream: string;
  stream_version: number;
  recorded_at: string;
  data: object;
  metadata: { actor: { type: string; id: string } };
};

const columns: readonly Column<Event>[] = [
  ['time', ({ recorded_at: at }) => formatTime(at, { seconds: true })],
  ['type', ({ type }) => type],
  ['record', ({ stream }) => stream],
  ['version', ({ stream_version: version }) => version, { spare: 1 }],
  // The prefix of the ID shows whether it is a key or a user.
  ['by', ({ metadata }) => metadata.actor.id, { spare: 2 }],
  ['data', ({ data }) => data, { spare: 3 }],
];
/** The columns for the history of one record, which omit the record because it is the same in each row. */
const historyColumns = columns.filter(([heading]) => heading !== 'record');

type RecordState = {
  id?: never;
  stream: string;
  version: number;
  recorded_at: string;
  event: { type: string };
  state: object;
};

const recordColumns: readonly Column<RecordState>[] = [
  ['record', ({ stream }) => stream],
  ['version', ({ version }) => version, { spare: 1 }],
  ['last changed', ({ recorded_at: at }) => formatTime(at, { seconds: true })],
  ['by event', ({ event }) => event.type, { spare: 2 }],
  ['state', ({ state }) => state, { spare: 3 }],
];

type Change = { op: string; path: string; value?: unknown };
type ChangeEvent = { type: string; recorded_at: string; actor: { id: string } };
type Diff = { patch: Change[]; changes: { path: string; events: ChangeEvent[] }[] };
/** `last`: the last event that changed the member. */
type ChangeRow = Change & { last: ChangeEvent | undefined };

const changeColumns: readonly Column<ChangeRow>[] = [
  ['last changed', ({ last }) => formatTime(last?.recorded_at, { seconds: true })],
  ['type', ({ last }) => last?.type],
  ['by', ({ last }) => last?.actor.id, { spare: 1 }],
  ['change', ({ op }) => op],
  ['member', ({ path }) => path],
  ['value', ({ value }) => value, { spare: 2 }],
];

const toChanges = ({ patch, changes }: Diff): ChangeRow[] =>
  patch.map((change) => {
    const member = changes.find(({ path }) => change.path === path || change.path.startsWith(`${path}/`));
    return { ...change, last: member?.events.at(-1) };
  });

/** Adds `sluice events list|show|replay|records|diff|tail`. */
export function addEventCommands(program: Command): void {
  const events = addGroup(program, 'events', 'the event log: list, history of a record, earlier states, diff, follow');

  withRange(clientCommand(events, 'list', 'list events, oldest first'))
    .option('--record <id>', 'only of this record, for example batch_…')
    .option('--type <type>', 'only of this type, for example api_key.created')
    .option('--after <id>', 'only after this event')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 100)
    .action(
      async (options: ClientOptions & Range & { record?: string; type?: string; after?: string; limit: number }) => {
        const { record: stream, type, after, limit } = options;
        const client = await connect(options);
        const query = { stream, type, after, ...toQuery(options) };
        printRows(await client.list<Event>('/v1/events', query, limit), columns, options);
      },
    );

  withRange(clientCommand(events, 'show <record>', 'show the history of a record')).action(
    async (stream: string, options: ClientOptions & Range) => {
      const client = await connect(options);
      const query = { stream, ...toQuery(options) };
      printRows(await client.list<Event>('/v1/events', query, 10_000), historyColumns, options);
    },
  );

  withWorkspace(
    clientCommand(events, 'replay <record>', 'show the state of a record at a time, by replaying its events'),
  )
    .option('--at <time>', '24h or 7d ago, or a time such as 2026-11-21T14:00Z (default: now)', toMoment)
    .option(
      '--version <count>',
      'the state after this event of the record, counted from 1',
      toCount({ min: 1, max: 999_999_999 }),
    )
    .action(async (stream: string, options: ClientOptions & Range & { at?: string; version?: number }) => {
      const client = await connect(options);
      const { at, version, workspace: workspace_id } = options;
      const query = { stream, at, version, workspace_id };
      printObject(await client.json<object>('GET', '/v1/events/replay', { query }), options);
    });

  withWorkspace(
    clientCommand(events, 'records <kind>', 'list the records of a kind as they were at a time, newest first'),
  )
    .option('--at <time>', '24h or 7d ago, or a time such as 2026-11-21T14:00Z (default: now)', toMoment)
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 100)
    .action(async (kind: string, options: ClientOptions & Range & { at?: string; limit: number }) => {
      const client = await connect(options);
      const { at, limit, workspace: workspace_id } = options;
      printRows(
        await client.list<RecordState>('/v1/events/records', { kind, at, workspace_id }, limit),
        recordColumns,
        options,
      );
    });

  withWorkspace(
    clientCommand(events, 'diff <record>', 'show what changed in a record, as JSON Patch, and by which events'),
  )
    .option(
      '--from <version|time>',
      'a version of the record or a time, such as 7d (default: before its first event)',
      toPoint,
    )
    .option('--to <version|time>', 'in the same form (default: now)', toPoint)
    .action(async (stream: string, options: ClientOptions & Range & { from?: string; to?: string }) => {
      const { from, to, workspace: workspace_id } = options;
      const query = { stream, from, to, workspace_id };
      const diff = await (await connect(options)).json<Diff>('GET', '/v1/events/diff', { query });
      if (showsTable(options)) printRows(toChanges(diff), changeColumns, options);
      else printObject(diff, options);
    });

  withRange(clientCommand(events, 'tail', 'print events as they happen, until Ctrl-C or --end'))
    .option('--record <id>', 'only of this record')
    .option('--after <id>', 'start after this event, without gaps')
    .action(async (options: TailOptions & { after?: string }) => {
      const client = await connect(options);
      const seen = { after: options.after };
      await interruptible(
        (signal) => tail(client, options, seen, signal),
        () => {
          const given = { ...options, after: seen.after };
          const flags = (['workspace', 'record', 'end', 'after'] as const).map((name) =>
            given[name] === undefined ? '' : ` --${name} ${given[name]}`,
          );
          return `To resume: sluice events tail${flags.join('')}`;
        },
      );
    });
}

/** A version of a record, or a time. */
const toPoint = (text: string): string => (/^\d+$/.test(text) ? text : toMoment(text));

/** The part of the log that a command reads. */
type Range = { workspace?: string; start?: string; end?: string };
type TailOptions = ClientOptions & Range & { record?: string };

const withWorkspace = (command: Command): Command =>
  command.option('--workspace <name>', 'another workspace, by ID or slug, or org_default for the organisation');

const withRange = (command: Command): Command =>
  withWorkspace(command)
    .option('--start <time>', 'only recorded at or after this time, such as 7d or 2026-11-21T14:00Z', toMoment)
    .option('--end <time>', 'only recorded at or before this time', toMoment);

const toQuery = ({ workspace, start, end }: Range) => ({ workspace_id: workspace, start_time: start, end_time: end });

/** Resolves only with `--end`, when all events up to that time have been printed. */
async function tail(
  client: Client,
  options: TailOptions,
  seen: { after: string | undefined },
  signal: AbortSignal,
): Promise<void> {
  const { createParser } = await import('eventsource-parser');
  const table = tableForStdout(columns);
  const outage = createOutage();
  for (;;) {
    const before = seen.after;
    const isLast = options.end !== undefined && Date.parse(options.end) < Date.now();
    const parser = createParser({
      maxBufferSize: 16 * 1_048_576,
      onEvent: ({ id, event, data }) => {
        if (event !== undefined || id === undefined) return;
        seen.after = id;
        if (!showsTable(options)) print(data);
        else for (const line of table.linesOf([JSON.parse(data) as Event])) print(line);
      },
    });
    try {
      const decoder = new TextDecoder();
      const response = await client.open('GET', '/v1/events/stream', {
        query: { stream: options.record, after: seen.after, ...toQuery(options) },
        signal,
      });
      outage.isOver(seen.after === undefined ? 'events in between are not shown' : 'no event was missed');
      for await (const piece of readPieces(response, client.server))
        parser.feed(decoder.decode(piece, { stream: true }));
      // The server also ends streams when it stops, so only one without further events was complete.
      if (isLast && seen.after === before) return;
    } catch (error) {
      if (signal.aborted || !outage.isExpected(error)) throw error;
    }
    await outage.pause(signal);
  }
}

import type { PoolClient } from 'pg';
import { foldEvent, getEventNouns, type AnyInlineModel, type StreamRow } from './inline-model.ts';
import { eventColumnNames, pageBytesMax, pageInBytes, toEvent, type PositionedEvent } from './read-events.ts';
import { upcast } from './upcast.ts';

export type FoldedRow = StreamRow & Record<string, unknown>;

/** Some of the rows that a model folds the log into. No row is returned twice. */
export type FoldedRows = { model: AnyInlineModel; rows: FoldedRow[] };

// How many events and folded rows each connection holds in memory. Higher values do not make it faster.
const pageEvents = 2_000;
const rowsAtOnce = 500;
/** Ranges per connection. With several, no connection is idle for long at the end. */
const rangesPerClient = 4;

/**
 * Folds the whole log, stream by stream, over all of these connections concurrently. Only some hundred rows are in
 * memory, however many there are. The connections must be in transactions that share a snapshot. `onProgress` gets the
 * number of events folded so far. Throws when a stream lacks a version, and when no model folds an event's type.
 */
export async function* foldLog(
  clients: readonly PoolClient[],
  models: readonly AnyInlineModel[],
  onProgress: (events: number) => void,
): AsyncGenerator<FoldedRows> {
  const [first] = clients;
  if (!first) throw new Error('a fold needs a connection');
  const ranges = await cutIntoRanges(first, clients.length);
  let events = 0;
  const onEvents = (more: number): void => onProgress((events += more));
  yield* merge(
    clients.map(async function* (client) {
      for (let range = ranges.pop(); range; range = ranges.pop()) yield* foldRange(client, range, models, onEvents);
    }),
  );
}

/** The streams after `from`, up to and including `to`; null means no end. */
type Range = { from: string; to: string | null };

/** Ranges with about the same number of events each, estimated from a sample of the log. A small log is one range. */
async function cutIntoRanges(client: PoolClient, clients: number): Promise<Range[]> {
  const count = clients * rangesPerClient;
  const shares = Array.from({ length: count - 1 }, (_value, index) => (index + 1) / count);
  const { rows } = await client.query<{ bounds: string[] | null }>(
    `select percentile_disc($1::float8[]) within group (order by stream_id) as bounds from event
     tablesample system ((
       select least(100, greatest(0.001, 1000000 / greatest(reltuples, 1))) from pg_class where oid = 'event'::regclass
     ))`,
    [shares],
  );
  const bounds = [...new Set(rows[0]?.bounds ?? [])];
  return [...bounds, null].map((to, index) => ({ from: bounds[index - 1] ?? '', to }));
}

/** Yields the values of all generators as they arrive. Each generator is at most one value ahead. */
async function* merge<Value>(generators: readonly AsyncGenerator<Value>[]): AsyncGenerator<Value> {
  const next = async (generator: AsyncGenerator<Value>) => ({ generator, result: await generator.next() });
  const pending = new Map(generators.map((generator) => [generator, next(generator)]));
  try {
    while (pending.size > 0) {
      const { generator, result } = await Promise.race(pending.values());
      if (result.done === true) pending.delete(generator);
      else {
        pending.set(generator, next(generator));
        yield result.value;
      }
    }
  } finally {
    // After one has failed, the queries of the others must end before their connections are returned to the pool.
    await Promise.allSettled(pending.values());
  }
}

/** Folds the streams of a range. `onEvents` gets the number of events in each page. */
async function* foldRange(
  client: PoolClient,
  range: Range,
  models: readonly AnyInlineModel[],
  onEvents: (events: number) => void,
): AsyncGenerator<FoldedRows> {
  const byNoun = new Map<string, AnyInlineModel[]>();
  for (const model of models) {
    for (const noun of getEventNouns(model)) byNoun.set(noun, [...(byNoun.get(noun) ?? []), model]);
  }
  let ready = new Map<AnyInlineModel, FoldedRow[]>();
  let readyRows = 0;
  const add = (model: AnyInlineModel, row: FoldedRow): void => {
    const rows = ready.get(model);
    if (rows) rows.push(row);
    else ready.set(model, [row]);
    readyRows += 1;
  };
  /** The events folded so far of the current stream. */
  let open = new Map<AnyInlineModel, FoldedRow>();
  const close = (): void => {
    for (const [model, row] of open) add(model, row);
    open = new Map();
  };
  let streamId = '';
  for await (const event of eventsByStream(client, range, onEvents)) {
    if (event.streamId !== streamId) close();
    streamId = event.streamId;
    const folding = byNoun.get(event.type.slice(0, event.type.indexOf('.')));
    if (!folding) throw new Error(`event ${event.position} has type ${event.type}, which no model folds`);
    for (const model of folding) {
      if (!model.perEvent) open.set(model, foldEvent(model, open.get(model), event as never));
      else if (model.perEvent.rowId(upcast(model.upcasts, event) as never) !== null)
        add(model, foldEvent(model, undefined, event as never));
    }
    if (readyRows < rowsAtOnce) continue;
    for (const [model, rows] of ready) yield { model, rows };
    ready = new Map();
    readyRows = 0;
  }
  close();
  for (const [model, rows] of ready) yield { model, rows };
}

/** The events of a range, sorted by stream and then by version, read in pages through that index. */
async function* eventsByStream(
  client: PoolClient,
  { from, to }: Range,
  onEvents: (events: number) => void,
): AsyncGenerator<PositionedEvent> {
  // No version is this high, so reading begins with the streams after `from`.
  let after: [string, number] = [from, 2_147_483_647];
  const page = pageInBytes('stream_id, stream_version');
  for (;;) {
    const { rows } = await client.query(
      `select ${eventColumnNames} from (
         select ${eventColumnNames}, ${page.columns}
         from event where (stream_id, stream_version) > ($1, $2) and ($3::text is null or stream_id <= $3)
         ${page.window} order by stream_id, stream_version limit $4
       ) as page where ${page.fits('$5')} order by stream_id, stream_version`,
      [...after, to, pageEvents, pageBytesMax],
    );
    for (const row of rows) yield toEvent(row);
    onEvents(rows.length);
    const last = rows.at(-1);
    if (!last) return;
    after = [last.stream_id, last.stream_version];
  }
}

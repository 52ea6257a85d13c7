import type { PoolClient } from 'pg';
import { foldEvent, nounsOf, type AnyInlineModel, type StreamRow } from './inline-model.ts';
import { eventColumnNames, toEvent, type PositionedEvent } from './read-events.ts';
import { upcast } from './upcast.ts';

export type FoldedRow = StreamRow & Record<string, unknown>;

/** Some of the rows that a model folds the log into; no row comes twice. */
export type FoldedRows = { model: AnyInlineModel; rows: FoldedRow[] };

// Events in memory at a time, and rows; more are no quicker.
const pageSize = 2_000;
const rowsAtOnce = 500;

/**
 * Folds the whole log, stream after stream, so that of however many rows only some hundred are in memory. The client has
 * to be in a transaction that sees one moment. `onProgress` hears the number of events folded so far.
 * Throws when a stream lacks a version, and when no model folds a type of event.
 */
export async function* foldLog(
  client: PoolClient,
  models: readonly AnyInlineModel[],
  onProgress: (events: number) => void,
): AsyncGenerator<FoldedRows> {
  const byNoun = new Map<string, AnyInlineModel[]>();
  for (const model of models) {
    for (const noun of nounsOf(model)) byNoun.set(noun, [...(byNoun.get(noun) ?? []), model]);
  }
  let ready = new Map<AnyInlineModel, FoldedRow[]>();
  let readyRows = 0;
  const add = (model: AnyInlineModel, row: FoldedRow): void => {
    const rows = ready.get(model);
    if (rows) rows.push(row);
    else ready.set(model, [row]);
    readyRows += 1;
  };
  /** Of the stream that is being folded. */
  let open = new Map<AnyInlineModel, FoldedRow>();
  const close = (): void => {
    for (const [model, row] of open) add(model, row);
    open = new Map();
  };
  let streamId = '';
  for await (const event of eventsByStream(client, onProgress)) {
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

/** All events, by stream and then by version, read in pages by that index. */
async function* eventsByStream(
  client: PoolClient,
  onProgress: (events: number) => void,
): AsyncGenerator<PositionedEvent> {
  let events = 0;
  let after: [string, number] = ['', 0];
  for (;;) {
    const { rows } = await client.query(
      `select ${eventColumnNames} from event where (stream_id, stream_version) > ($1, $2)
       order by stream_id, stream_version limit $3`,
      [...after, pageSize],
    );
    for (const row of rows) yield toEvent(row);
    events += rows.length;
    onProgress(events);
    const last = rows.at(-1);
    if (rows.length < pageSize || !last) return;
    after = [last.stream_id, last.stream_version];
  }
}

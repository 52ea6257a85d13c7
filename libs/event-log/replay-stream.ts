import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { foldEvent, getEventNouns, type AnyInlineModel } from './inline-model.ts';
import type { FoldedRow } from './fold-log.ts';
import {
  eventColumnNames,
  pageInBytes,
  sliceBytesMax,
  toEvent,
  type EventRow,
  type PositionedEvent,
} from './read-events.ts';

/** An event of a record, with the row of its model after it. The data of the event can be incomplete. */
export type ReplayedEvent = { event: PositionedEvent; model: AnyInlineModel; row: FoldedRow };

const pageEvents = 1_000;

/**
 * Yields the events of one stream, in order, each with the row of its model: by the fold that wrote the row. Events are
 * read in slices, and only one slice is in memory. `onSlice` gets the bytes of each slice before it is folded, and the
 * next one is read when it resolves. Yields nothing for events that no model folds.
 */
export async function* replayStream(
  db: Kysely<Database>,
  models: readonly AnyInlineModel[],
  streamId: string,
  onSlice: (bytes: number) => Promise<void>,
): AsyncGenerator<ReplayedEvent> {
  const folding = models.filter(({ perEvent }) => perEvent === undefined);
  const unread = folding.flatMap((model) => Object.entries(model.unread ?? {}));
  let row: FoldedRow | undefined;
  for (let [after, isLast] = [0, false]; !isLast;) {
    const slice = await readSlice(db, unread, streamId, after);
    isLast = slice.isLast;
    await onSlice(slice.bytes);
    for (const event of slice.events) {
      const noun = event.type.slice(0, event.type.indexOf('.'));
      const model = folding.find((each) => getEventNouns(each).includes(noun));
      if (model === undefined) return;
      row = foldEvent(model, row, event as never);
      yield { event, model, row };
      after = event.streamVersion;
    }
  }
}

/** The types whose data has members that are not read, with these members. */
type Unread = readonly (readonly [type: string, members: readonly string[]])[];

async function readSlice(
  db: Kysely<Database>,
  unread: Unread,
  streamId: string,
  after: number,
): Promise<{ events: PositionedEvent[]; bytes: number; isLast: boolean }> {
  const page = pageInBytes('stream_version', 'coalesce(octet_length(reduced::text), bytes)');
  const columns = sql.raw(eventColumnNames);
  // Only the data of these types is read to find its size. Others can be large, and their stored size is known.
  const cases = unread.map(
    ([type, members]) => sql`when type = ${type} then (data::jsonb - ${[...members]}::text[])::json`,
  );
  const reduced = sql.join([sql`when false then data`, ...cases], sql` `);
  const { rows } = await sql<EventRow & { bytes_through: number; found: number }>`
    select epoch, position, transaction_id, event_id, workspace_id, stream_id, stream_version, type, schema_version,
      coalesce(reduced, data) as data, metadata, recorded_at, bytes_through::float8 as bytes_through, found
    from (
      select *, count(*) over ()::int as found, ${sql.raw(page.columns)} from (
        select ${columns}, bytes, case ${reduced} end as reduced
        from event where stream_id = ${streamId} and stream_version > ${after}
        order by stream_version limit ${pageEvents}
      ) as next
      ${sql.raw(page.window)}
    ) as page
    where ${sql.raw(page.fits(sliceBytesMax))}
    order by stream_version`.execute(db);
  const last = rows.at(-1);
  return {
    events: rows.map(toEvent),
    bytes: last?.bytes_through ?? 0,
    isLast: last === undefined || (last.found < pageEvents && last.found === rows.length),
  };
}

import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { currentEpoch } from './epoch.ts';
import type { EventMetadata, RecordedEvent } from './event.ts';

/** A position in the log, in the order in which subscribers read it. */
export type Checkpoint = { epoch: number; transactionId: string; position: number };

/** The position before the first event. */
export const logStart: Checkpoint = { epoch: 0, transactionId: '0', position: 0 };

/** An event as it is stored, in the schema version that it was written in. */
export type PositionedEvent = RecordedEvent & Checkpoint & { metadata: EventMetadata };

export type EventRow = {
  epoch: number;
  position: number;
  transaction_id: string;
  event_id: string;
  workspace_id: string;
  stream_id: string;
  stream_version: number;
  type: string;
  schema_version: number;
  data: object;
  metadata: EventMetadata;
  recorded_at: Date;
};

/** The columns that `toEvent` needs. */
export const eventColumnNames =
  'epoch, position, transaction_id, event_id, workspace_id, stream_id, stream_version, type, schema_version, data, ' +
  'metadata, recorded_at';
const eventColumns = sql.raw(eventColumnNames);

/** The maximum total size of one page's events, unless a single event is larger. */
export const pageBytesMax = 4 * 1_048_576;

/** Events are read in slices of about this size. Reading and parsing one takes about 4 ms, in which no other request continues. */
export const sliceBytesMax = 262_144;

/**
 * SQL for a page that is limited in bytes: `columns` are added to the rows, in that order, and rows where `fits` is true are
 * the page. Its first row is always part of it. `size`: SQL for the bytes of a row.
 */
export const pageInBytes = (order: string, size: string = 'bytes') => ({
  columns: `sum(${size}) over page_order as bytes_through, row_number() over page_order as page_row`,
  window: `window page_order as (order by ${order} rows unbounded preceding)`,
  fits: (bytesMax: string | number): string => `(page_row = 1 or bytes_through <= ${bytesMax})`,
});

/**
 * SQL for events that are committed and before which no other event can appear: those of transactions older than every
 * running one.
 */
export const isClosed = sql`(epoch < ${currentEpoch} or transaction_id < pg_snapshot_xmin(pg_current_snapshot()))`;

export const isAfter = ({ epoch, transactionId, position }: Checkpoint) =>
  sql`(epoch, transaction_id, position) > (${epoch}::int, ${transactionId}::xid8, ${position}::bigint)`;

export const isUpTo = ({ epoch, transactionId, position }: Checkpoint) =>
  sql`(epoch, transaction_id, position) <= (${epoch}::int, ${transactionId}::xid8, ${position}::bigint)`;

/**
 * Returns the next events after a checkpoint. Only transactions older than every running one are read, in the order
 * (epoch, transaction id, position), so an event whose transaction commits late is never skipped. Returns at most
 * `limit` events, and stops once they have `bytesMax`.
 *
 * @testOnly
 */
export async function readClosed(
  db: Kysely<Database>,
  after: Checkpoint,
  limit: number,
  bytesMax: number = pageBytesMax,
  only?: { types: readonly string[]; until: Checkpoint },
): Promise<PositionedEvent[]> {
  const isWanted =
    only === undefined ? sql`true` : sql`not ${isAfter(only.until)} and type = any(${[...only.types]}::text[])`;
  const page = pageInBytes('epoch, transaction_id, position');
  const { rows } = await sql<EventRow>`
    select ${eventColumns} from (
      select ${eventColumns}, ${sql.raw(page.columns)}
      from event where ${isClosed} and ${isAfter(after)} and ${isWanted}
      ${sql.raw(page.window)}
      order by epoch, transaction_id, position
      limit ${limit}
    ) as page
    where ${sql.raw(page.fits(bytesMax))}
    order by epoch, transaction_id, position`.execute(db);
  return rows.map(toEvent);
}

/** How many events of other types are skipped together. */
const skippedMax = 10_000;

/**
 * Like `readClosed`, for a reader that wants only some types, if it names them. Without events, `end` is the position up to
 * which there are none of these types. No event can appear before it any more, so both statements agree.
 */
export async function readNextPage(
  db: Kysely<Database>,
  after: Checkpoint,
  limit: number,
  types: readonly string[] | undefined,
): Promise<{ events: PositionedEvent[]; end: Checkpoint | null; isFull: boolean }> {
  if (types === undefined) {
    const events = await readClosed(db, after, limit);
    return { events, end: events.at(-1) ?? null, isFull: events.length === limit };
  }
  const { rows } = await sql<Checkpoint & { scanned: number }>`
    select epoch, transaction_id as "transactionId", position, count(*) over ()::int as scanned from (
      select epoch, transaction_id, position from event where ${isClosed} and ${isAfter(after)}
      order by epoch, transaction_id, position limit ${skippedMax}
    ) as next
    order by epoch desc, transaction_id desc, position desc limit 1`.execute(db);
  const [end] = rows;
  if (end === undefined) return { events: [], end: null, isFull: false };
  const events = await readClosed(db, after, limit, pageBytesMax, { types, until: end });
  const last = events.at(-1);
  return { events, end, isFull: last === undefined ? end.scanned === skippedMax : last.position !== end.position };
}

/**
 * Returns the next events of one stream after a version, in order: at most `limit`, and no more than have `bytesMax`
 * together. An empty page is the end of the stream.
 */
export async function readStream(
  db: Kysely<Database>,
  streamId: string,
  after = 0,
  limit = 1_000,
  bytesMax: number = pageBytesMax,
): Promise<PositionedEvent[]> {
  const page = pageInBytes('stream_version');
  const { rows } = await sql<EventRow>`
    select ${eventColumns} from (
      select ${eventColumns}, ${sql.raw(page.columns)}
      from event where stream_id = ${streamId} and stream_version > ${after}
      ${sql.raw(page.window)}
      order by stream_version limit ${limit}
    ) as page
    where ${sql.raw(page.fits(bytesMax))}
    order by stream_version`.execute(db);
  return rows.map(toEvent);
}

/**
 * Returns the newest events of one stream, newest first, with only these members of their data, and the time of the
 * database.
 */
export async function readNewest(
  db: Kysely<Database>,
  streamId: string,
  { members, limit }: { members: readonly string[]; limit: number },
): Promise<{ events: { type: string; recordedAt: Date; data: Record<string, unknown> }[]; now: Date }> {
  const { rows } = await sql<{ type: string; recordedAt: Date; data: Record<string, unknown> | null; now: Date }>`
    select type, recorded_at as "recordedAt", clock_timestamp() as now, (
      select json_object_agg(key, value) from json_each(data) where key = any(${members}::text[])) as data
    from event where stream_id = ${streamId} order by stream_version desc limit ${limit}`.execute(db);
  const events = rows.map(({ data, ...row }) => ({ ...row, data: data ?? {} }));
  return { events, now: rows[0]?.now ?? new Date(Number.NaN) };
}

/**
 * Returns how far subscribers must be behind, in seconds: the age of the oldest event that is committed but not yet
 * readable by them. More than a few seconds means that a writing transaction was left open somewhere in the cluster.
 */
export async function closedLagSeconds(db: Kysely<Database>): Promise<number> {
  const { rows } = await sql<{ lag: number | null }>`
    select extract(epoch from clock_timestamp() - min(recorded_at))::float8 as lag from event
    where epoch = ${currentEpoch} and transaction_id >= pg_snapshot_xmin(pg_current_snapshot())`.execute(db);
  return Math.max(0, rows[0]?.lag ?? 0);
}

/**
 * Returns the position of the newest event, which is approximately the number of events, and when it was recorded; null
 * for an empty log.
 */
export async function newestEvent(db: Kysely<Database>): Promise<{ position: number; recordedAt: Date } | null> {
  const newest = await db
    .selectFrom('event')
    .select(['position', 'recorded_at'])
    .orderBy('epoch', 'desc')
    .orderBy('transaction_id', 'desc')
    .orderBy('position', 'desc')
    .limit(1)
    .executeTakeFirst();
  return newest === undefined ? null : { position: newest.position, recordedAt: newest.recorded_at };
}

/** Returns a row of `eventColumns` as an event. */
export function toEvent(row: EventRow): PositionedEvent {
  return {
    type: row.type,
    data: row.data,
    metadata: row.metadata,
    eventId: row.event_id,
    workspaceId: row.workspace_id,
    streamId: row.stream_id,
    streamVersion: row.stream_version,
    schemaVersion: row.schema_version,
    recordedAt: row.recorded_at,
    epoch: row.epoch,
    transactionId: row.transaction_id,
    position: row.position,
  };
}

/** Returns the newest position that subscribers can read; `logStart` for an empty log. */
export async function newestClosed(db: Kysely<Database>): Promise<Checkpoint> {
  const { rows } = await sql<Checkpoint>`
    select epoch, transaction_id as "transactionId", position from event where ${isClosed}
    order by epoch desc, transaction_id desc, position desc limit 1`.execute(db);
  return rows[0] ?? logStart;
}

/** The workspaces of the next `limit` events after a checkpoint, and the position of the last of these. */
export async function readNewEvents(
  db: Kysely<Database>,
  after: Checkpoint,
  limit: number,
): Promise<{ workspaceIds: ReadonlySet<string>; end: Checkpoint; isFull: boolean }> {
  const { rows } = await sql<Checkpoint & { workspaceId: string }>`
    select epoch, transaction_id as "transactionId", position, workspace_id as "workspaceId" from event
    where ${isClosed} and ${isAfter(after)}
    order by epoch, transaction_id, position limit ${limit}`.execute(db);
  const workspaceIds = new Set(rows.map(({ workspaceId }) => workspaceId));
  return { workspaceIds, end: rows.at(-1) ?? after, isFull: rows.length === limit };
}

/**
 * SQL for the time of the next event after the position in a row of the table or alias `reader`, which is one of the row's
 * workspace, or of any if the condition `readsAll` is true; null if there is none.
 */
export function nextEventTime(reader: string, readsAll: RawBuilder<unknown>): RawBuilder<Date | null> {
  const column = (name: string) => sql.ref(`${reader}.${name}`);
  const next = (condition: RawBuilder<unknown>) => sql`(
    select recorded_at from event where ${condition} and ${isClosed} and
      (event.epoch, event.transaction_id, event.position)
      > (${column('epoch')}, ${column('transaction_id')}, ${column('position')})
    order by event.epoch, event.transaction_id, event.position limit 1)`;
  return sql<Date | null>`case when ${readsAll} then ${next(sql`true`)} else ${next(sql`event.workspace_id = ${column('workspace_id')}`)} end`;
}

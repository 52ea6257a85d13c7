import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { uuidOrNull } from '#libs/kernel/ids.ts';
import {
  isAfter,
  isUpTo,
  isClosed,
  logStart,
  sliceBytesMax,
  toEvent,
  type Checkpoint,
  type EventRow,
  type PositionedEvent,
} from './read-events.ts';
import { upcast, type Upcasts } from './upcast.ts';

type EventQuery = {
  /** Null: all workspaces. */
  workspaceId: string | null;
  stream: string | null;
  type: string | null;
  /** Events that were recorded before are not listed. */
  startTime?: Date | undefined;
  /** Events that were recorded after it are not listed. */
  endTime?: Date | undefined;
  /** The id of the event after which the page begins, or a position in the log; null for the first page. */
  after: string | Checkpoint | null;
  limit: number;
  /** The maximum total size of the page's events, unless its first event is larger. */
  bytesMax: number;
  /** Called with the size of each slice. The next one is read when it resolves. */
  spend?: (bytes: number) => Promise<void>;
};

/** `text`: the recorded data. The hashes and salts are hexadecimal. */
export type ListedEvent = PositionedEvent & EventHashes & { text: string };

type EventHashes = {
  sha256: string;
  data_sha256: string;
  data_salt: string | null;
  metadata_sha256: string;
  metadata_salt: string | null;
};

export type EventPage<Item> = {
  items: Item[];
  hasMore: boolean;
  /** The event after which the next page begins. */
  nextAfter: string | null;
  /** The position of the last event of the page. */
  end: Checkpoint | null;
  bytes: number;
};

/** An event's time is within its transaction, which has at most one minute. */
const transactionMsMax = 60_000;

/** At most this many events are read for a page of one type, because a type can be rare in a large log. */
const typeScannedMax = 20_000;

type PageRow = Omit<EventRow, 'data'> & {
  data: string;
  hashes: EventHashes;
  place: number;
  matches: boolean;
  bytes_through: number;
  found: number;
};

/**
 * Returns a page of events in the order of the log, oldest first, converted by `toItem` from the current
 * shape of their types. Only closed transactions are read, so no event can appear later before one that was returned. A
 * page that is empty or not full can have a next page, when many events of other types came first, or when it has
 * reached its maximum size. Only one event is parsed at a time, because a parsed value can take twenty times the memory
 * of its text. Throws invalid_request when `after` is not an event of the workspace.
 */
export async function listEvents<Item>(
  db: Kysely<Database>,
  { after, limit, bytesMax, spend, ...query }: EventQuery,
  upcasts: Upcasts,
  toItem: (event: ListedEvent) => Item,
): Promise<EventPage<Item>> {
  const cursor = typeof after === 'string' ? await findEvent(db, query.workspaceId, after) : (after ?? logStart);
  const range = await findRange(db, query);
  const from = isLater(range.from, cursor) ? range.from : cursor;
  const page: EventPage<Item> = { items: [], hasMore: true, nextAfter: null, end: null, bytes: 0 };
  for (let isWhole = false; !isWhole;) {
    const left = { limit: limit - page.items.length, bytesMax: Math.min(bytesMax - page.bytes, sliceBytesMax) };
    const slice = await readSlice(
      db,
      { ...query, after: page.end ?? from, until: range.until, ...left },
      upcasts,
      toItem,
    );
    await spend?.(slice.bytes);
    // The first event of a slice is read even if it is too large for it.
    if (page.items.length > 0 && page.bytes + slice.bytes > bytesMax) return page;
    page.items.push(...slice.items);
    page.bytes += slice.bytes;
    page.hasMore = slice.hasMore;
    page.nextAfter = slice.nextAfter ?? page.nextAfter;
    page.end = slice.end ?? page.end;
    isWhole = !slice.isCut || page.items.length >= limit || page.bytes >= bytesMax;
  }
  return page;
}

/**
 * The part of the log that contains all events of a time range. It is slightly longer than the range, because concurrent
 * transactions can record events out of time order. `until` is null if no later event exists.
 */
async function findRange(
  db: Kysely<Database>,
  { startTime, endTime }: Pick<EventQuery, 'startTime' | 'endTime'>,
): Promise<{ from: Checkpoint; until: Checkpoint | null }> {
  // The first event that was recorded at a time is that of any workspace, of which only the position is used.
  const find = async (ms: number): Promise<Checkpoint | null> => {
    const { rows } = await asSystem(() =>
      sql<Checkpoint>`
        select epoch, transaction_id as "transactionId", position from event where recorded_at >= ${new Date(ms)}
        order by recorded_at limit 1`.execute(db),
    );
    return rows[0] ?? null;
  };
  const first = startTime ? await find(startTime.getTime() - transactionMsMax) : logStart;
  return {
    from: first ? { ...first, position: first.position - 1 } : logEnd,
    until: endTime ? await find(endTime.getTime() + transactionMsMax) : null,
  };
}

/** A position after every event. */
const logEnd: Checkpoint = { epoch: 2 ** 31 - 1, transactionId: '0', position: 0 };

const isLater = (a: Checkpoint, b: Checkpoint): boolean => {
  if (a.epoch !== b.epoch) return a.epoch > b.epoch;
  const [one, other] = [BigInt(a.transactionId), BigInt(b.transactionId)];
  return one === other ? a.position > b.position : one > other;
};

type SliceQuery = Omit<EventQuery, 'spend'> & { after: Checkpoint; until: Checkpoint | null };

async function readSlice<Item>(
  db: Kysely<Database>,
  { workspaceId, stream, type, startTime, endTime, after: from, until, limit, bytesMax }: SliceQuery,
  upcasts: Upcasts,
  toItem: (event: ListedEvent) => Item,
): Promise<EventPage<Item> & { isCut: boolean }> {
  const inRange = sql.join(
    [
      isClosed,
      ...(until ? [isUpTo(until)] : []),
      ...(startTime ? [sql`recorded_at >= ${startTime}`] : []),
      ...(endTime ? [sql`recorded_at <= ${endTime}`] : []),
    ],
    sql` and `,
  );
  // A comparison of positions in the log has no useful estimate, so for one stream Postgres would read the whole workspace.
  // Inside a stream, its versions have the same order.
  const selected =
    stream === null
      ? sql`${isAfter(from)} order by epoch, transaction_id, position`
      : sql`stream_id = ${stream} and stream_version > ${await versionAt(db, stream, from)} order by stream_version`;
  const scannedMax = type === null ? limit + 1 : typeScannedMax;
  const { rows } = await sql<PageRow>`
    with looked_at as materialized (
      select position, row_number() over () as place, coalesce(type = ${type}, true) as matches from (
        select position, type from event where ${isOf(workspaceId)} and ${inRange} and ${selected}
        limit ${scannedMax}
      ) as next
    ), page as (
      select event.*, place, matches,
        coalesce(sum(bytes) filter (where matches) over (order by place rows unbounded preceding), 0)
          as bytes_through,
        count(*) over () as found, row_number() over (order by place) as number
      from (
        select * from looked_at where matches or place = ${scannedMax} order by place limit ${limit + 1}
      ) as chosen join event using (position)
    )
    select epoch, position, transaction_id, event_id, workspace_id, stream_id, stream_version, type, schema_version,
      case when matches and number <= ${limit} then data::text end as data, metadata, recorded_at,
      case when matches and number <= ${limit} then ${hashes} end as hashes, place, matches, bytes_through, found
    from page where number = 1 or bytes_through <= ${bytesMax}
    order by place`.execute(db);
  const shown = rows.filter((row) => row.matches).slice(0, limit);
  const last = rows.at(-1);
  const wasCut = last !== undefined && last.found > rows.length;
  const hasMore = rows.length > limit || wasCut || last?.place === scannedMax;
  // A page without enough events of its type ends where the search ended.
  const end = hasMore && !wasCut && shown.length < limit ? last : shown.at(-1);
  return {
    items: shown.map((row) =>
      toItem({
        ...upcast(upcasts, toEvent({ ...row, data: JSON.parse(row.data) as object })),
        ...row.hashes,
        text: row.data,
      }),
    ),
    hasMore,
    nextAfter: end?.event_id ?? null,
    end: end === undefined ? null : toPosition(end),
    bytes: shown.at(-1)?.bytes_through ?? 0,
    isCut: wasCut,
  };
}

const hashes = sql`json_build_object(
  'sha256', encode(sha256, 'hex'),
  'data_sha256', encode(coalesce(data_sha256, salted_sha256(data_salt, data)), 'hex'),
  'data_salt', encode(data_salt, 'hex'),
  'metadata_sha256', encode(coalesce(metadata_sha256, salted_sha256(metadata_salt, metadata)), 'hex'),
  'metadata_salt', encode(metadata_salt, 'hex'))`;

const toPosition = ({ epoch, transaction_id, position, stream_id, stream_version }: PageRow): EventPosition => ({
  epoch,
  transactionId: transaction_id,
  position,
  streamId: stream_id,
  streamVersion: stream_version,
});

/** Lists the changes after a position, without the data of the events. */
export async function listChanges(
  db: Kysely<Database>,
  { workspaceId, after, limit }: { workspaceId: string; after: Checkpoint; limit: number },
): Promise<(Checkpoint & { type: string; streamId: string })[]> {
  const { rows } = await sql<Checkpoint & { type: string; streamId: string }>`
    select epoch, transaction_id as "transactionId", position, type, stream_id as "streamId" from event
    where workspace_id = ${workspaceId} and ${isClosed} and ${isAfter(after)}
    order by epoch, transaction_id, position limit ${limit}`.execute(db);
  return rows;
}

const isOf = (workspaceId: string | null) => (workspaceId === null ? sql`true` : sql`workspace_id = ${workspaceId}`);

type EventPosition = Checkpoint & { streamId?: string; streamVersion?: number };

/** The position of an event of the workspace. Throws invalid_request when there is no such event. */
export async function findEvent(
  db: Kysely<Database>,
  workspaceId: string | null,
  eventId: string,
): Promise<EventPosition> {
  const { rows } = await sql<EventPosition>`
    select epoch, transaction_id as "transactionId", position, stream_id as "streamId", stream_version as "streamVersion"
    from event where event_id = ${uuidOrNull(eventId)}::uuid and ${isOf(workspaceId)}`.execute(db);
  if (rows[0]) return rows[0];
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'after': this workspace has no event with this ID. If the server was restored from a backup, the event may be lost. Continue after an earlier event.",
    { param: 'after' },
  );
}

/** The version of a stream at a position of the log: 0 if the stream begins after it. */
async function versionAt(db: Kysely<Database>, stream: string, at: EventPosition): Promise<number> {
  if (at.streamId === stream && at.streamVersion !== undefined) return at.streamVersion;
  if (at.position === 0) return 0;
  // Reads backwards, and therefore only events that come after the position anyway.
  const { rows } = await sql<{ version: number }>`
    select stream_version as version from event where stream_id = ${stream} and not ${isAfter(at)}
    order by stream_version desc limit 1`.execute(db);
  return rows[0]?.version ?? 0;
}

import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { uuidOrNull } from '#libs/kernel/ids.ts';
import {
  eventColumnNames,
  isAfter,
  isClosed,
  logStart,
  toEvent,
  type Checkpoint,
  type EventRow,
  type PositionedEvent,
} from './read-events.ts';
import { upcast, type Upcasts } from './upcast.ts';

type EventQuery = {
  workspaceId: string;
  stream: string | null;
  type: string | null;
  /** The id of the event after which the page begins, or a position in the log; null for the first page. */
  after: string | Checkpoint | null;
  limit: number;
};

export type ListedEvent = PositionedEvent & { sha256: string | null };

/** At most this many events are read for a page of one type, because a type may be rare in a large log. */
const typeScannedMax = 20_000;

/**
 * Returns a page of a workspace's events in the order of the log, oldest first, in the current shape of their types.
 * Only closed transactions are read, so no event can appear later before one that was returned. `nextAfter` is the
 * event after which the next page begins. A page that is empty or not full may have a next page, when many events of
 * other types came first. Throws invalid_request when `after` is not an event.
 */
export async function listEvents(
  db: Kysely<Database>,
  { workspaceId, stream, type, after, limit }: EventQuery,
  upcasts: Upcasts,
): Promise<{ events: ListedEvent[]; hasMore: boolean; nextAfter: string | null }> {
  const from = typeof after === 'string' ? await placeOf(db, workspaceId, after) : (after ?? logStart);
  const isOfStream = stream === null ? sql`true` : sql`stream_id = ${stream}`;
  const scannedMax = type === null ? limit + 1 : typeScannedMax;
  const { rows } = await sql<EventRow & { sha256: string | null; place: number; matches: boolean }>`
    with looked_at as materialized (
      select position, row_number() over () as place, coalesce(type = ${type}, true) as matches from (
        select position, type from event
        where workspace_id = ${workspaceId} and ${isOfStream} and ${isClosed} and ${isAfter(from)}
        order by epoch, transaction_id, position limit ${scannedMax}
      ) as next
    )
    select ${sql.raw(eventColumnNames)}, encode(sha256, 'hex') as sha256, place, matches
    from looked_at join event using (position)
    where matches or place = ${scannedMax}
    order by place limit ${limit + 1}`.execute(db);
  const events = rows.filter((row) => row.matches).slice(0, limit);
  const last = rows.at(-1);
  const hasMore = rows.length > limit || last?.place === scannedMax;
  return {
    events: events.map((row) => ({ ...upcast(upcasts, toEvent(row)), sha256: row.sha256 })),
    hasMore,
    nextAfter: (hasMore && events.length < limit ? last : events.at(-1))?.event_id ?? null,
  };
}

/** The position of an event of the workspace. Throws invalid_request for an id that is none. */
export async function placeOf(db: Kysely<Database>, workspaceId: string, eventId: string): Promise<Checkpoint> {
  const { rows } = await sql<Checkpoint>`
    select epoch, transaction_id as "transactionId", position from event
    where event_id = ${uuidOrNull(eventId)}::uuid and workspace_id = ${workspaceId}`.execute(db);
  if (rows[0]) return rows[0];
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'after': it is the id of no event of this workspace. If the server was restored from a backup, the event is " +
      'lost: go on after an earlier one.',
    { param: 'after' },
  );
}

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
  /** The id of the event to read on from; null: from the beginning. */
  after: string | null;
  limit: number;
};

export type ListedEvent = PositionedEvent & { sha256: string | null };

/** A page of one type looks at so many events at most: a type may be rare in a log that is large. */
const typeScannedMax = 20_000;

/**
 * A workspace's events in the order of the log, oldest first, in the current shape of their types. Only closed ones: none
 * can appear before the last one of a page later. `nextAfter` is the event to read on from; a page that is not full, or
 * empty, can still have more after it, when many events of other types came first. Throws invalid_request when `after` is
 * no event.
 */
export async function listEvents(
  db: Kysely<Database>,
  { workspaceId, stream, type, after, limit }: EventQuery,
  upcasts: Upcasts,
): Promise<{ events: ListedEvent[]; hasMore: boolean; nextAfter: string | null }> {
  const from = after === null ? logStart : await placeOf(db, workspaceId, after);
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

async function placeOf(db: Kysely<Database>, workspaceId: string, eventId: string): Promise<Checkpoint> {
  const { rows } = await sql<Checkpoint>`
    select epoch, transaction_id as "transactionId", position from event
    where event_id = ${uuidOrNull(eventId)}::uuid and workspace_id = ${workspaceId}`.execute(db);
  if (rows[0]) return rows[0];
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'after': it is the id of no event of this workspace.",
    { param: 'after' },
  );
}

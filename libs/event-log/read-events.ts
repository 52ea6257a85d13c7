import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { RecordedEvent } from './event.ts';

/** A place in the log as subscribers see it; `0, 0` is before the first event. */
export type Checkpoint = { transactionId: string; position: number };

export type PositionedEvent = RecordedEvent & Checkpoint;

type EventRow = {
  position: number;
  transaction_id: string;
  event_id: string;
  workspace_id: string;
  stream_id: string;
  stream_version: number;
  type: string;
  schema_version: number;
  data: object;
  recorded_at: Date;
};

const columns = sql.raw(
  'position, transaction_id, event_id, workspace_id, stream_id, stream_version, type, schema_version, data, recorded_at',
);

/**
 * The next events after a checkpoint that can never change any more: only transactions older than every running one
 * are read, in (transaction id, position) order, so that one which commits late is never skipped. At most `limit`.
 */
export async function readClosed(db: Kysely<Database>, after: Checkpoint, limit: number): Promise<PositionedEvent[]> {
  const { rows } = await sql<EventRow>`
    select ${columns} from event
    where transaction_id < pg_snapshot_xmin(pg_current_snapshot())
      and (transaction_id, position) > (${after.transactionId}::xid8, ${after.position}::bigint)
    order by transaction_id, position
    limit ${limit}`.execute(db);
  return rows.map(toEvent);
}

/** One stream's events in order, `limit` at most, after a version. */
export async function readStream(
  db: Kysely<Database>,
  streamId: string,
  after = 0,
  limit = 1_000,
): Promise<PositionedEvent[]> {
  const { rows } = await sql<EventRow>`
    select ${columns} from event where stream_id = ${streamId} and stream_version > ${after}
    order by stream_version limit ${limit}`.execute(db);
  return rows.map(toEvent);
}

/**
 * How far the guarded read is behind, in seconds: the age of the oldest event that is committed but not yet readable
 * by subscribers. More than a few seconds means that a writing transaction was forgotten somewhere in the cluster.
 */
export async function closedLagSeconds(db: Kysely<Database>): Promise<number> {
  const { rows } = await sql<{ lag: number | null }>`
    select extract(epoch from clock_timestamp() - min(recorded_at))::float8 as lag from event
    where transaction_id >= pg_snapshot_xmin(pg_current_snapshot())`.execute(db);
  return Math.max(0, rows[0]?.lag ?? 0);
}

export function toEvent(row: EventRow): PositionedEvent {
  return {
    type: row.type,
    data: row.data,
    eventId: row.event_id,
    workspaceId: row.workspace_id,
    streamId: row.stream_id,
    streamVersion: row.stream_version,
    schemaVersion: row.schema_version,
    recordedAt: row.recorded_at,
    transactionId: row.transaction_id,
    position: row.position,
  };
}

import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { uuidOrNull } from '#libs/kernel/ids.ts';
import { isAfter, isClosed, logStart, type Checkpoint } from './read-events.ts';

export type LogSelection = {
  from: Date | null;
  to: Date | null;
  /** Null: all workspaces. */
  workspaceId: string | null;
  /** Only the event with this ID. */
  eventId?: string;
};

type Row = Checkpoint & {
  workspaceId: string;
  isWanted: boolean;
  bytes: number;
};

/** `envelope`: the text that the hash of the event covers. Salts are hexadecimal. */
export type EventContent = {
  position: number;
  envelope: string;
  data: string;
  metadata: string;
  dataSalt: string | null;
  metadataSalt: string | null;
};

const pageEvents = 1_000;
const pageBytesMax = 4 * 1024 * 1024;

/** All events in the order of the log; null for those that are not wanted, which are not read. */
export async function* readLog(
  db: Kysely<Database>,
  selection: LogSelection,
): AsyncGenerator<EventContent | null, undefined> {
  const isWanted = await wantedEvents(db, selection);
  for (let after = logStart; ;) {
    const { rows } = await sql<Row>`
      select epoch, transaction_id as "transactionId", position, workspace_id as "workspaceId", bytes, ${isWanted} as "isWanted"
      from event where ${isClosed} and ${isAfter(after)}
      order by epoch, transaction_id, position limit ${pageEvents}`.execute(db);
    const last = rows.at(-1);
    if (last === undefined) return undefined;
    for (let start = 0; start < rows.length;) {
      let [end, bytes] = [start, 0];
      for (; end < rows.length && (end === start || bytes < pageBytesMax); end += 1) bytes += rows[end]?.bytes ?? 0;
      const group = rows.slice(start, end);
      const contents = await readContents(
        db,
        group.filter((row) => row.isWanted),
      );
      for (const { position } of group) yield contents.get(position) ?? null;
      start = end;
    }
    after = last;
  }
}

async function readContents(db: Kysely<Database>, rows: readonly Row[]): Promise<Map<number, EventContent>> {
  if (rows.length === 0) return new Map();
  const result = await sql<EventContent>`
    select position, event_envelope(event) as envelope, data::text, metadata::text,
      encode(data_salt, 'hex') as "dataSalt", encode(metadata_salt, 'hex') as "metadataSalt"
    from event where position = any(${rows.map(({ position }) => position)}::bigint[])`.execute(db);
  return new Map(result.rows.map((row) => [row.position, row]));
}

/**
 * The condition for the events of a selection: from the first to the last one in the time range. Those between them are
 * included although concurrent transactions can record events out of time order, so that an export has no gaps.
 */
async function wantedEvents(db: Kysely<Database>, { from, to, workspaceId, eventId }: LogSelection) {
  if (eventId !== undefined) return sql`event_id = ${uuidOrNull(eventId)}::uuid`;
  const find = async (inRange: ReturnType<typeof sql>, order: 'asc' | 'desc'): Promise<Checkpoint | null> => {
    const by = sql.raw(`epoch ${order}, transaction_id ${order}, position ${order}`);
    const { rows } = await sql<Checkpoint>`
      select epoch, transaction_id as "transactionId", position from event where ${inRange} order by ${by} limit 1`.execute(
      db,
    );
    return rows[0] ?? null;
  };
  const first = await find(from === null ? sql`true` : sql`recorded_at >= ${from}`, 'asc');
  const last = await find(to === null ? sql`true` : sql`recorded_at <= ${to}`, 'desc');
  if (first === null || last === null) return sql`false`;
  const beforeFirst = { ...first, position: first.position - 1 };
  const isInWorkspace = workspaceId === null ? sql`true` : sql`workspace_id = ${workspaceId}`;
  return sql`(${isAfter(beforeFirst)} and not ${isAfter(last)} and ${isInWorkspace})`;
}

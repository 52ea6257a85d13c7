import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { isAfter, isClosed, isUpTo, logStart, type Checkpoint } from './read-events.ts';

/** `envelope`: the text that the hash of the event covers. Salts are hexadecimal; null for a part that was erased. */
export type EventContent = Checkpoint & {
  workspaceId: string;
  envelope: string;
  data: string;
  metadata: string;
  dataSalt: string | null;
  metadataSalt: string | null;
};

type Row = Checkpoint & { workspaceId: string; bytes: number };

const pageEvents = 500;
const pageBytesMax = 524_288;

/** Events up to a place in the log, of one workspace or of all (null). `end`: null for the end of the log. */
export type LogSelection = { end: Checkpoint | null; workspaceId: string | null };

/** All events after a place in the order of the log; null for those that are not selected, which are not read. */
export async function* readLog(
  db: Kysely<Database>,
  start: Checkpoint,
  { end, workspaceId }: LogSelection,
): AsyncGenerator<EventContent | null, undefined> {
  const isBefore = end === null ? sql`true` : isUpTo(end);
  for (let after = start; ;) {
    const { rows } = await sql<Row>`
      select ${place}, workspace_id as "workspaceId", bytes from event where ${isClosed} and ${isAfter(after)} and ${isBefore}
      order by epoch, transaction_id, position limit ${pageEvents}`.execute(db);
    const last = rows.at(-1);
    if (last === undefined) return undefined;
    for (let from = 0; from < rows.length;) {
      let [to, bytes] = [from, 0];
      for (; to < rows.length && (to === from || bytes < pageBytesMax); to += 1) bytes += rows[to]?.bytes ?? 0;
      const group = rows.slice(from, to);
      const wanted = group.filter((row) => workspaceId === null || row.workspaceId === workspaceId);
      const positions = wanted.map(({ position }) => position);
      const contents = wanted.length === 0 ? [] : await readContents(db, sql`position = any(${positions}::bigint[])`);
      const found = new Map(contents.map((content) => [content.position, content]));
      for (const { position } of group) yield found.get(position) ?? null;
      from = to;
    }
    after = last;
  }
}

const place = sql.raw('epoch, transaction_id as "transactionId", position');

/** The contents of the events for which a condition is true, which the caller bounds, in the order of the log. */
export async function readContents(db: Kysely<Database>, condition: RawBuilder<unknown>): Promise<EventContent[]> {
  const { rows } = await sql<EventContent>`
    select ${place}, workspace_id as "workspaceId", event_envelope(event) as envelope, data::text, metadata::text,
      encode(data_salt, 'hex') as "dataSalt", encode(metadata_salt, 'hex') as "metadataSalt"
    from event where ${condition} and ${isClosed} order by epoch, transaction_id, position`.execute(db);
  return rows;
}

/** The positions of the events for which a condition is true, in the order of the log. Reads the whole log. */
export async function findPositions(db: Kysely<Database>, condition: RawBuilder<unknown>): Promise<number[]> {
  const { rows } = await sql<{ position: number }>`
    select position from event where ${condition} order by epoch, transaction_id, position`.execute(db);
  return rows.map(({ position }) => position);
}

/** A range of the log. `start`: the place before its first event. `before` and `after`: the events next to it. */
type LogRange = { start: Checkpoint; end: Checkpoint | null; before: number | null; after: number | null };

/**
 * Finds the events of a workspace, or of all, from the first one at `from` or later to the last one at `to` or earlier, in
 * log order. Those between them are included although concurrent transactions can record events out of time order, so that
 * a range has no gaps. `before` and `after`: the positions of the closest other events; null if there are none, or no limit.
 */
export async function findRange(
  db: Kysely<Database>,
  { from, to, workspaceId }: { from: Date | null; to: Date | null; workspaceId: string | null },
): Promise<LogRange> {
  const inWorkspace = workspaceId === null ? sql`true` : sql`workspace_id = ${workspaceId}`;
  const find = async (condition: RawBuilder<unknown>, order: 'asc' | 'desc'): Promise<Checkpoint | null> => {
    const by = sql.raw(`epoch ${order}, transaction_id ${order}, position ${order}`);
    const { rows } = await sql<Checkpoint>`
      select ${place} from event where ${condition} and ${isClosed} order by ${by} limit 1`.execute(db);
    return rows[0] ?? null;
  };
  const first = from === null ? null : await find(sql`recorded_at >= ${from} and ${inWorkspace}`, 'asc');
  const isEarlier = first === null ? sql`true` : isUpTo({ ...first, position: first.position - 1 });
  const last = to === null ? null : await find(sql`recorded_at <= ${to} and ${inWorkspace}`, 'desc');
  const isLater = last === null ? sql`true` : isAfter(last);
  const start = from === null ? null : await find(isEarlier, 'desc');
  const before = from === null ? null : await find(sql`${isEarlier} and ${inWorkspace}`, 'desc');
  const after = to === null ? null : await find(sql`${isLater} and ${inWorkspace}`, 'asc');
  return {
    start: start ?? logStart,
    end: to === null ? null : (last ?? logStart),
    before: before?.position ?? null,
    after: after?.position ?? null,
  };
}

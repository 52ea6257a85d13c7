import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { FoldedRow } from './fold-log.ts';
import type { AnyInlineModel } from './inline-model.ts';

export type StreamQuery = {
  model: AnyInlineModel;
  /** The noun of the event types of these streams. */
  noun: string;
  /** Null: all workspaces. */
  workspaceId: string | null;
  /** Null: now. */
  at: Date | null;
  /** The ID of the stream after which the page begins; null for the first page. */
  after: string | null;
  limit: number;
};

/**
 * Returns the streams of a kind whose records existed at a moment, newest first. `isUnchanged`: no event came later, so
 * that the row is the state at that moment. The rows name the streams, because no record ever loses its row. Throws
 * invalid_request when `after` is not such a stream.
 */
export async function listStreams(
  db: Kysely<Database>,
  query: StreamQuery,
): Promise<{ id: string; isUnchanged: boolean }[]> {
  const { model, workspaceId, at, after, limit } = query;
  const moment = sql`coalesce(${at}::timestamptz, 'infinity')`;
  const conditions = [sql`created_at <= ${moment}`, ...ofKind(query)];
  if (workspaceId !== null) conditions.push(sql`workspace_id = ${workspaceId}`);
  if (model.hasDeletions) conditions.push(sql`(deleted_at is null or deleted_at > ${moment})`);
  if (after !== null) conditions.push(sql`(created_at, id) < (${await findCreation(db, query, after)}, ${after})`);
  const { rows } = await sql<{ id: string; isUnchanged: boolean }>`
    select id, updated_at <= ${moment} as "isUnchanged" from ${sql.table(model.name)}
    where ${sql.join(conditions, sql` and `)}
    order by created_at desc, id desc limit ${limit}`.execute(db);
  return rows;
}

const ofKind = ({ model, noun }: StreamQuery) => (model.nouns ? [sql`kind = ${noun}`] : []);

async function findCreation(db: Kysely<Database>, query: StreamQuery, id: string): Promise<Date> {
  const conditions = [sql`id = ${id}`, ...ofKind(query)];
  if (query.workspaceId !== null) conditions.push(sql`workspace_id = ${query.workspaceId}`);
  const { rows } = await sql<{ createdAt: Date }>`
    select created_at as "createdAt" from ${sql.table(query.model.name)}
    where ${sql.join(conditions, sql` and `)}`.execute(db);
  if (rows[0]) return rows[0].createdAt;
  const message = "Invalid 'after': there is no record of this kind with this ID. Send the `last_id` of a page.";
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}

/** The row of a stream, and the event that it was last folded from. Undefined if one of them is missing. */
export async function readRow(
  db: Kysely<Database>,
  { name }: AnyInlineModel,
  id: string,
): Promise<{ row: FoldedRow; lastEvent: { eventId: string; type: string } } | undefined> {
  const { rows } = await sql<FoldedRow>`select * from ${sql.table(name)} where id = ${id}`.execute(db);
  const [row] = rows;
  if (row === undefined) return undefined;
  const lastEvent = await db
    .selectFrom('event')
    .select(['event_id as eventId', 'type'])
    .where('stream_id', '=', id)
    .where('stream_version', '=', row.version)
    .executeTakeFirst();
  return lastEvent && { row, lastEvent };
}

import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

export type PageRequest = { workspaceId: string; after: string | null; limit: number };

/**
 * A page of a workspace's keys or configs, newest first, after the one with the id `after`: up to `limit + 1` rows, the one too many
 * only says that there are more. Deleted ones are left out, revoked ones are not.
 * Throws invalid_request when the workspace has no such id.
 */
export async function listPage<Row>(
  db: Kysely<Database>,
  table: 'api_key' | 'virtual_key' | 'config',
  { workspaceId, after, limit }: PageRequest,
): Promise<Row[]> {
  const source = sql.table(table);
  const isListed = table === 'api_key' ? sql`true` : sql`deleted_at is null`;
  const isAfter =
    after === null ? sql`true` : sql`(created_at, id) < (${await createdAt(db, table, workspaceId, after)}, ${after})`;
  const { rows } = await sql<Row>`
    select * from ${source} where workspace_id = ${workspaceId} and ${isListed} and ${isAfter}
    order by created_at desc, id desc limit ${limit + 1}`.execute(db);
  return rows;
}

async function createdAt(
  db: Kysely<Database>,
  table: 'api_key' | 'virtual_key' | 'config',
  workspaceId: string,
  id: string,
): Promise<Date> {
  const { rows } = await sql<{ created_at: Date }>`
    select created_at from ${sql.table(table)} where id = ${id} and workspace_id = ${workspaceId}`.execute(db);
  const row = rows[0];
  if (row) return row.created_at;
  throw new GatewayError('invalid_request', 'invalid_value', "Invalid 'after': this list has no item with that id.", {
    param: 'after',
  });
}

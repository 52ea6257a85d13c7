import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { VirtualKeyRow } from './virtual-key-model.ts';

export type PageRequest = { workspaceId: string; after: string | null; limit: number };

/**
 * A page of a workspace's virtual keys, newest first, after the one with the id `after`: up to `limit + 1` rows; the one too
 * many only says that there are more. Throws invalid_request when the workspace has no such id.
 */
export async function listPage(
  db: Kysely<Database>,
  { workspaceId, after, limit }: PageRequest,
): Promise<VirtualKeyRow[]> {
  const isAfter =
    after === null ? sql`true` : sql`(created_at, id) < (${await createdAt(db, workspaceId, after)}, ${after})`;
  const { rows } = await sql<VirtualKeyRow>`
    select * from virtual_key where workspace_id = ${workspaceId} and deleted_at is null and ${isAfter}
    order by created_at desc, id desc limit ${limit + 1}`.execute(db);
  return rows;
}

async function createdAt(db: Kysely<Database>, workspaceId: string, id: string): Promise<Date> {
  const { rows } = await sql<{ created_at: Date }>`
    select created_at from virtual_key where id = ${id} and workspace_id = ${workspaceId}`.execute(db);
  const row = rows[0];
  if (row) return row.created_at;
  throw new GatewayError('invalid_request', 'invalid_value', "Invalid 'after': this list has no item with that id.", {
    param: 'after',
  });
}

import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

export type PageRequest = { after?: string | undefined; limit: number };
export type Page<Row> = { rows: Row[]; hasMore: boolean };

/**
 * One page of a workspace's keys, newest first, after the one with the id `after`; deleted ones are left out, revoked
 * ones are not.
 * Throws invalid_request when the workspace has no such id.
 */
export async function listPage<Row extends { created_at: Date }>(
  db: Kysely<Database>,
  table: 'api_key' | 'virtual_key',
  workspaceId: string,
  { after, limit }: PageRequest,
): Promise<Page<Row>> {
  const source = sql.table(table);
  let before = sql`true`;
  if (after !== undefined) {
    const cursor = await sql<{ created_at: Date }>`
      select created_at from ${source} where id = ${after} and workspace_id = ${workspaceId}`.execute(db);
    const row = cursor.rows[0];
    if (!row) {
      throw new GatewayError(
        'invalid_request',
        'invalid_value',
        "Invalid 'after': it is the id of no item of this list.",
        {
          param: 'after',
        },
      );
    }
    before = sql`(created_at, id) < (${row.created_at}, ${after})`;
  }
  const listed = table === 'virtual_key' ? sql`deleted_at is null` : sql`true`;
  const { rows } = await sql<Row>`
    select * from ${source} where workspace_id = ${workspaceId} and ${listed} and ${before}
    order by created_at desc, id desc limit ${limit + 1}`.execute(db);
  return { rows: rows.slice(0, limit), hasMore: rows.length > limit };
}

/** A page in the form of the public API. */
export function toListObject<Row, Item extends { id: string }>(page: Page<Row>, toItem: (row: Row) => Item) {
  const data = page.rows.map(toItem);
  return {
    object: 'list' as const,
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: page.hasMore,
  };
}

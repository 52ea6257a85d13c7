import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AnyResource } from './define-resource.ts';
import type { PageRequest, ResourceRow, ResourceVersionRow } from './resource-row.ts';

type Page<Row> = { rows: Row[]; total: number };

/** Records of a kind, newest first: up to `limit + 1`; the one too many only says that there are more. */
export async function listResources<Data>(
  db: Kysely<Database>,
  kind: AnyResource,
  { workspaceId, after, skip, limit, filters = {} }: PageRequest,
): Promise<Page<ResourceRow<Data>>> {
  const conditions = [sql`kind = ${kind.noun}`];
  if (workspaceId !== null) conditions.push(sql`workspace_id = ${workspaceId}`);
  if (kind.removal?.isShown !== true) conditions.push(sql`deleted_at is null`);
  for (const [name, value] of Object.entries(filters)) {
    const filter = kind.filters?.[name];
    if (filter === undefined || value === undefined) continue;
    const column = sql`data ->> ${filter.field}`;
    conditions.push(
      filter.match === 'equal' ? sql`${column} = ${value}` : sql`position(lower(${value}) in lower(${column})) > 0`,
    );
  }
  const listed = and(conditions);
  const from =
    after === null
      ? sql`true`
      : sql`(created_at, id) < (${await createdAt(db, kind.noun, workspaceId, after)}, ${after})`;
  const { rows } = await sql<ResourceRow<Data>>`
    select * from resource where ${listed} and ${from}
    order by created_at desc, id desc limit ${limit + 1} offset ${skip}`.execute(db);
  return { rows, total: await count(db, sql`resource where ${listed}`) };
}

/** The versions of a record, newest first, as in `listResources`. */
export async function listVersions<Data>(
  db: Kysely<Database>,
  { id }: ResourceRow<Data>,
  { after, skip, limit }: PageRequest,
): Promise<Page<ResourceVersionRow<Data>>> {
  const number = after === null ? null : Number(after.startsWith(`${id}@`) ? after.slice(id.length + 1) : Number.NaN);
  if (number !== null && !(Number.isInteger(number) && number < 2 ** 31)) throw wrongCursor();
  const { rows } = await sql<ResourceVersionRow<Data>>`
    select * from resource_version where resource_id = ${id} and (${number}::int is null or number < ${number}::int)
    order by number desc limit ${limit + 1} offset ${skip}`.execute(db);
  return { rows, total: await count(db, sql`resource_version where resource_id = ${id}`) };
}

const and = (conditions: RawBuilder<unknown>[]): RawBuilder<unknown> => sql.join(conditions, sql` and `);

async function count(db: Kysely<Database>, listed: RawBuilder<unknown>): Promise<number> {
  const { rows } = await sql<{ total: number }>`select count(*)::int as total from ${listed}`.execute(db);
  return rows[0]?.total ?? 0;
}

/** A deleted record is still a cursor: it may have been the last item of the page before. */
async function createdAt(db: Kysely<Database>, kind: string, workspaceId: string | null, id: string): Promise<Date> {
  const { rows } = await sql<{ created_at: Date }>`
    select created_at from resource
    where id = ${id} and kind = ${kind} and (${workspaceId}::text is null or workspace_id = ${workspaceId})`.execute(
    db,
  );
  if (rows[0]) return rows[0].created_at;
  throw wrongCursor();
}

const wrongCursor = (): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', "Invalid 'after': this list has no item with that id.", {
    param: 'after',
  });

import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AnyResource, ListFilter } from './define-resource.ts';
import type { PageRequest, ResourceRow, ResourceVersionRow } from './resource-row.ts';

/** Where counting ends: a list with a million records would otherwise read them all for each page. */
export const totalMax = 10_000;

/** `total` is exact up to `totalMax`, which also stands for more. */
type Page<Row> = { rows: Row[]; total: number };

/** Records of a kind, newest first: up to `limit + 1`; the one too many only says that there are more. */
export async function listResources<Data>(
  db: Kysely<Database>,
  kind: AnyResource,
  { workspaceId, after, skip, limit, filters = {} }: PageRequest,
): Promise<Page<ResourceRow<Data>>> {
  const isArchived = kind.isArchived === true && filters['status'] === 'archived';
  const conditions = [
    sql`kind = ${kind.noun}`,
    isArchived ? sql`deleted_at is not null` : sql`deleted_at is null`,
    ownedBy(kind, workspaceId),
  ];
  for (const [name, value] of Object.entries(filters)) {
    const filter = kind.filters?.[name];
    if (filter === undefined || value === undefined) continue;
    conditions.push(conditionOf(filter, value));
  }
  const listed = and(conditions);
  const from =
    after === null ? sql`true` : sql`(created_at, id) < (${await createdAt(db, kind, workspaceId, after)}, ${after})`;
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

function conditionOf(filter: ListFilter, value: unknown): RawBuilder<unknown> {
  if ('where' in filter) return filter.where(value as never);
  const column = sql`data ->> ${filter.field}`;
  return filter.match === 'equal' ? sql`${column} = ${value}` : sql`position(lower(${value}) in lower(${column})) > 0`;
}

/** Whether a workspace sees a record: its own, and of a kind that has shared ones those of the organisation. null: all. */
export function ownedBy(kind: AnyResource, workspaceId: string | null): RawBuilder<unknown> {
  if (workspaceId === null) return sql`true`;
  if (kind.hasShared !== true) return sql`workspace_id = ${workspaceId}`;
  const isSeen = kind.sharedWith?.(workspaceId) ?? sql`true`;
  return sql`(workspace_id = ${workspaceId} or (workspace_id = ${organisationId} and ${isSeen}))`;
}

const and = (conditions: RawBuilder<unknown>[]): RawBuilder<unknown> => sql.join(conditions, sql` and `);

async function count(db: Kysely<Database>, listed: RawBuilder<unknown>): Promise<number> {
  const { rows } = await sql<{ total: number }>`
    select count(*)::int as total from (select from ${listed} limit ${totalMax}) as counted`.execute(db);
  return rows[0]?.total ?? 0;
}

/** A deleted record is still a cursor: it may have been the last item of the page before. */
async function createdAt(
  db: Kysely<Database>,
  kind: AnyResource,
  workspaceId: string | null,
  id: string,
): Promise<Date> {
  const { rows } = await sql<{ created_at: Date }>`
    select created_at from resource
    where id = ${id} and kind = ${kind.noun} and ${ownedBy(kind, workspaceId)}`.execute(db);
  if (rows[0]) return rows[0].created_at;
  throw wrongCursor();
}

const wrongCursor = (): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', "Invalid 'after': this list has no item with that id.", {
    param: 'after',
  });

import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { pageBytesMax, pageInBytes } from '#libs/event-log/read-events.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AnyResource, ListFilter } from '#libs/records/define-resource.ts';
import { ownedBy } from '#libs/records/traits/shared.ts';
import {
  totalMax,
  type PageRequest,
  type ResourcePage,
  type ResourceRow,
  type ResourceVersionRow,
} from '#libs/records/resource-row.ts';

/** Returns records of a kind, newest first: up to `limit + 1`. The extra one only shows that there are more. */
export async function listResources<Data>(
  db: Kysely<Database>,
  kind: AnyResource,
  { workspaceId, after, filters = {}, ...page }: PageRequest,
): Promise<ResourcePage<ResourceRow<Data>>> {
  const isArchived = kind.removal && kind.removal.archives && filters['status'] === 'archived';
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
  const found = await readPage<ResourceRow<Data>>(
    db,
    sql`resource where ${listed} and ${from}`,
    'created_at desc, id desc',
    page,
  );
  return { ...found, total: await count(db, sql`resource where ${listed}`) };
}

/** The versions of a record, newest first, as in `listResources`. */
export async function listVersions<Data>(
  db: Kysely<Database>,
  { id }: ResourceRow<Data>,
  { after, ...page }: PageRequest,
): Promise<ResourcePage<ResourceVersionRow<Data>>> {
  const number = after === null ? null : Number(after.startsWith(`${id}@`) ? after.slice(id.length + 1) : Number.NaN);
  if (number !== null && !(Number.isInteger(number) && number < 2 ** 31)) throw wrongCursor();
  const listed = sql`resource_version where resource_id = ${id}`;
  const from = sql`${listed} and (${number}::int is null or number < ${number}::int)`;
  const found = await readPage<ResourceVersionRow<Data>>(db, from, 'number desc', page);
  return { ...found, total: await count(db, listed) };
}

async function readPage<Row>(
  db: Kysely<Database>,
  listed: RawBuilder<unknown>,
  order: string,
  { skip, limit, bytesMax = pageBytesMax }: Pick<PageRequest, 'skip' | 'limit' | 'bytesMax'>,
): Promise<Omit<ResourcePage<Row>, 'total'>> {
  const page = pageInBytes(order, 'octet_length(data::text)');
  const { rows } = await sql<Row & { bytes_through: number; page_row: number; found: number }>`
    select * from (
      select *, ${sql.raw(page.columns)}, count(*) over () as found
      from (select * from ${listed} order by ${sql.raw(order)} limit ${limit + 1} offset ${skip}) as listed
      ${sql.raw(page.window)}
    ) as page where ${sql.raw(page.fits(bytesMax))} order by page_row`.execute(db);
  const last = rows.at(-1);
  return {
    rows: rows.map(({ bytes_through: _bytes, page_row: _row, found: _found, ...row }) => row as Row),
    bytes: last?.bytes_through ?? 0,
    isCut: last !== undefined && last.found > rows.length,
  };
}

function conditionOf(filter: ListFilter, value: unknown): RawBuilder<unknown> {
  if ('where' in filter) return filter.where(value as never);
  const column = sql`data ->> ${filter.field}`;
  return filter.match === 'equal' ? sql`${column} = ${value}` : sql`position(lower(${value}) in lower(${column})) > 0`;
}

const and = (conditions: RawBuilder<unknown>[]): RawBuilder<unknown> => sql.join(conditions, sql` and `);

async function count(db: Kysely<Database>, listed: RawBuilder<unknown>): Promise<number> {
  const { rows } = await sql<{ total: number }>`
    select count(*)::int as total from (select from ${listed} limit ${totalMax}) as counted`.execute(db);
  return rows[0]?.total ?? 0;
}

/** A deleted record still works as a cursor: it could have been the last item of the previous page. */
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
  new GatewayError('invalid_request', 'invalid_value', "Invalid 'after': this list has no item with this ID.", {
    param: 'after',
  });

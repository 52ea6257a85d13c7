import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { ActivityTable, Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { pageInBytes, sliceBytesMax } from '#libs/event-log/read-events.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { uuidOrNull } from '#libs/kernel/ids.ts';

export type ActivityFilters = {
  startTime?: Date | undefined;
  endTime?: Date | undefined;
  /** The ID of a key, or of a user, whose keys are included. */
  person?: string | undefined;
} & { [Column in FilteredColumn]?: string | number | undefined };

type FilteredColumn = (typeof filteredColumns)[number];
const filteredColumns = [
  'method',
  'uri',
  'request_id',
  'actor_type',
  'status',
  'resource_type',
  'resource_id',
  'action',
  'address',
] as const;

/** `data` is the event's as JSON; null if the previous rows have reached the maximum size of a page. */
export type ActivityRow = ActivityTable & { data: string | null };

/** The maximum of `total`. Counting further would read as many rows for each page. */
const totalMax = 100_000;

/**
 * `bytesMax`: the maximum total size of a page's data, unless its first record is larger. `spend` is called with the size
 * of each slice. The next one is read when it resolves.
 */
type DataRead = { bytesMax: number; spend: (bytes: number) => Promise<void> };

/**
 * Returns the activity of a workspace, or of all of them (null), newest first: up to `limit + 1` rows, of which the last one
 * only shows that there are more. Throws invalid_request when `after` is not the id of a row.
 */
export async function listActivity(
  db: Kysely<Database>,
  workspaceId: string | null,
  filters: ActivityFilters,
  { after, skip, limit, ...read }: { after: string | null; skip: number; limit: number } & DataRead,
): Promise<{ rows: ActivityRow[]; total: number; bytes: number }> {
  const conditions = [ownedBy(workspaceId)];
  if (filters.startTime) conditions.push(sql`activity.recorded_at >= ${filters.startTime}`);
  if (filters.endTime) conditions.push(sql`activity.recorded_at <= ${filters.endTime}`);
  if (filters.person) conditions.push(sql`${filters.person} in (activity.actor_id, activity.principal_id)`);
  for (const column of filteredColumns) {
    if (filters[column] !== undefined) conditions.push(sql`${sql.ref(`activity.${column}`)} = ${filters[column]}`);
  }
  const listed = sql.join(conditions, sql` and `);
  const from =
    after === null
      ? sql`true`
      : sql`(activity.recorded_at, activity.id) < (${await recordedAt(db, workspaceId, after)}, ${uuidOrNull(after)}::uuid)`;
  const { rows } = await sql<Omit<ActivityRow, 'data'>>`
    select * from activity where ${listed} and ${from}
    order by activity.recorded_at desc, activity.id desc limit ${limit + 1} offset ${skip}`.execute(db);
  const counted = await sql<{ total: number }>`
    select count(*)::int as total from (select from activity where ${listed} limit ${totalMax}) as counted`.execute(db);
  const shown = rows.slice(0, limit).map(({ id }) => id);
  const { data, bytes } = await readData(db, shown, read);
  return {
    rows: rows.map((row) => ({ ...row, data: data.get(row.id) ?? null })),
    total: counted.rows[0]?.total ?? 0,
    bytes,
  };
}

/** The data of events, in this order, up to `bytesMax`. */
async function readData(
  db: Kysely<Database>,
  ids: readonly string[],
  { bytesMax, spend }: DataRead,
): Promise<{ data: Map<string, string>; bytes: number }> {
  const data = new Map<string, string>();
  let bytes = 0;
  for (let from = 0; from < ids.length && bytes < bytesMax;) {
    const slice = await readSlice(db, ids.slice(from), Math.min(bytesMax - bytes, sliceBytesMax));
    const last = slice.at(-1);
    if (last === undefined) break;
    await spend(last.bytes);
    // The first event of a slice is read even if it is too large for it.
    if (data.size > 0 && bytes + last.bytes > bytesMax) break;
    for (const { id, data: text } of slice) data.set(id, text);
    bytes += last.bytes;
    from += last.place;
  }
  return { data, bytes };
}

/** Some events of a workspace's activity belong to the organisation, such as that a user joined the workspace. */
async function readSlice(db: Kysely<Database>, ids: readonly string[], bytesMax: number): Promise<DataRow[]> {
  const page = pageInBytes('place');
  const { rows } = await asSystem(() =>
    sql<DataRow>`
      select event_id as id, data::text as data, place::int as place, bytes_through as bytes from (
        select event.*, place, ${sql.raw(page.columns)}
        from unnest(${ids}::uuid[]) with ordinality as wanted (id, place) join event on event_id = wanted.id
        ${sql.raw(page.window)}
      ) as page where ${sql.raw(page.fits(bytesMax))} order by place`.execute(db),
  );
  return rows;
}

type DataRow = { id: string; data: string; place: number; bytes: number };

const ownedBy = (workspaceId: string | null): RawBuilder<unknown> =>
  workspaceId === null ? sql`true` : sql`activity.workspace_id = ${workspaceId}`;

async function recordedAt(db: Kysely<Database>, workspaceId: string | null, id: string): Promise<Date> {
  const { rows } = await sql<{ recorded_at: Date }>`
    select recorded_at from activity where id = ${uuidOrNull(id)}::uuid and ${ownedBy(workspaceId)}`.execute(db);
  if (rows[0]) return rows[0].recorded_at;
  throw new GatewayError('invalid_request', 'invalid_value', "Invalid 'after': this list has no item with this ID.", {
    param: 'after',
  });
}

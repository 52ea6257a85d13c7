import { sql, type Kysely, type RawBuilder, type SelectQueryBuilder } from 'kysely';
import { getSqlState } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { ExactFilterName, LogListQuery } from '#libs/contracts/logs/logs.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { columnList, type RequestLogTable } from '../columns.ts';
import { hasNotSucceeded, wasRefused } from '../row/call-outcome.ts';
import { rangesOf, rollupConditions, sharedLogConditions } from './call-conditions.ts';
import { listLogDays, nextDay } from '../write/log-partitions.ts';
import { fromLogId, lowestLogUuid, getLogUuidTime, toLogId, utcDay } from '../row/log-id.ts';

export type LogListRow = RequestLogTable;
type Query = SelectQueryBuilder<Database, 'request_log_row', LogListRow>;

const allColumns = columnList.map(([name]) => name);

// A search for a rare value reads far back. It ends before it costs more than the answer is worth.
const defaultSearchTimeoutMs = 10_000;

/**
 * Returns a page of a workspace's log, newest first: up to `limit + 1` rows, of which the last only shows that more
 * follow. Paging by `after` shows every row that existed when the first page was read exactly once, whatever is written
 * meanwhile. Throws invalid_request for an `after` that is not an ID of the log, and when the filters match so little
 * that the search takes longer than `searchTimeoutMs` (default 10 s).
 */
export async function selectLogs(
  db: Kysely<Database>,
  workspaceId: string,
  query: Partial<LogListQuery> & { limit: number },
  { searchTimeoutMs = defaultSearchTimeoutMs }: { searchTimeoutMs?: number } = {},
): Promise<LogListRow[]> {
  const span = query.batch_id === undefined ? undefined : await batchSpan(db, workspaceId, query.batch_id);
  if (span === null) return [];
  const select = (from: Kysely<Database>): Promise<LogListRow[]> =>
    selectPage(from, workspaceId, { ...query, ...span }, searchTimeoutMs);
  return isSearch(query) ? await selectInTime(db, searchTimeoutMs, select) : await select(db);
}

/** A statement plans and locks all days that it can read, with their indexes, so a page reads this many at a time. */
const daysAtOnce = 32;

/** Returns up to `limit + 1` records, newest first. Throws invalid_request after `timeoutMs`. */
export async function selectPage(
  db: Kysely<Database>,
  workspaceId: string,
  query: PageQuery & { limit: number },
  timeoutMs = Number.POSITIVE_INFINITY,
): Promise<LogListRow[]> {
  const endsAtMs = performance.now() + timeoutMs;
  const found: LogListRow[] = [];
  for (const span of await toSpans(db, query)) {
    const part = { ...query, ...span, limit: query.limit - found.length };
    found.push(...(await selectSpan(db, workspaceId, part, { endsAtMs, timeoutMs })));
    if (found.length > query.limit) break;
  }
  return found;
}

/** Divides the time of a page into spans of a few days, newest first. */
async function toSpans(db: Kysely<Database>, query: PageQuery): Promise<Pick<PageQuery, 'fromMs' | 'toMs'>[]> {
  const { from, to } = toBounds(query);
  const logDays = await listLogDays(db);
  const days = logDays.map(({ day }) => day).filter((day) => day >= (from?.day ?? '') && !(day > (to?.day ?? day)));
  if (days.length <= daysAtOnce) return [{}];
  const spans: Pick<PageQuery, 'fromMs' | 'toMs'>[] = [];
  for (let end = days.length; end > 0; end -= daysAtOnce) {
    const [first = '', last = ''] = [days[Math.max(0, end - daysAtOnce)], days[end - 1]];
    // The newest span has no end, because the next day can begin at any time.
    const toMs = end === days.length ? Number.POSITIVE_INFINITY : Date.parse(nextDay(last));
    spans.push({
      fromMs: Math.max(query.fromMs ?? 0, Date.parse(first)),
      toMs: Math.min(query.toMs ?? Number.POSITIVE_INFINITY, toMs),
    });
  }
  return spans;
}

/** Packs that are read together: at first, and after every doubling. */
const packsMin = 4;
const packsMax = 256;

/**
 * Returns up to `limit + 1` records of a span, newest first: rows, and lines of packs. Packs are read from the newest end
 * backwards until none that is left can have a line of the page.
 */
async function selectSpan(
  db: Kysely<Database>,
  workspaceId: string,
  query: PageQuery & { limit: number },
  { endsAtMs, timeoutMs }: { endsAtMs: number; timeoutMs: number },
): Promise<LogListRow[]> {
  const wanted = query.limit + 1;
  const rows: LogListRow[] = [];
  for (const part of rowStatements(db, workspaceId, query)) {
    rows.push(...(await part.limit(wanted - rows.length).execute()));
    if (rows.length === wanted) break;
  }
  // A pack that ends before the last row of a full page has none of its lines.
  const newerThan = rows.length === wanted ? rows.at(-1)?.id : undefined;
  const lines: LogListRow[] = [];
  let olderThan: string | undefined;
  for (let packs = packsMin; ; packs = Math.min(2 * packs, packsMax)) {
    const found = await findPacks(db, workspaceId, query, { newerThan, olderThan }).limit(packs).execute();
    const ids = found.map(({ last_id }) => last_id);
    if (ids.length > 0) lines.push(...(await selectLines(db, workspaceId, query, ids).limit(wanted).execute()));
    olderThan = ids.at(-1);
    // Lines of the packs that are left are older than the last of these packs.
    const isFound = olderThan !== undefined && lines.filter(({ id }) => id >= (olderThan ?? '')).length >= wanted;
    if (ids.length < packs || isFound) break;
    if (performance.now() > endsAtMs) throw searchTooBroad(timeoutMs);
  }
  if (lines.length === 0) return rows;
  return [...rows, ...lines].toSorted((a, b) => (a.id < b.id ? 1 : -1)).slice(0, wanted);
}

/** The packs that can have lines of a page, newest first, with the bounds on their last ID. */
function findPacks(
  db: Kysely<Database>,
  workspaceId: string,
  query: PageQuery,
  { newerThan, olderThan }: { newerThan: string | undefined; olderThan: string | undefined },
) {
  let packs = db.selectFrom('request_log_pack').select('last_id').where('workspace_id', '=', workspaceId);
  for (const condition of sharedConditions(query, workspaceId)) packs = packs.where(condition);
  const { from, to } = toBounds(query);
  if (from !== undefined) packs = packs.where('recorded_on', '>=', from.day).where('last_id', '>=', from.id);
  if (to !== undefined) packs = packs.where('recorded_on', '<=', to.day).where('first_id', '<', to.id);
  if (newerThan !== undefined)
    packs = packs.where('recorded_on', '>=', toDay(newerThan)).where('last_id', '>', newerThan);
  if (olderThan !== undefined)
    packs = packs.where('recorded_on', '<=', toDay(olderThan)).where('last_id', '<', olderThan);
  return packs.orderBy('recorded_on', 'desc').orderBy('last_id', 'desc');
}

/** The lines of a page that are in these packs, newest first. */
function selectLines(db: Kysely<Database>, workspaceId: string, query: PageQuery, lastIds: readonly string[]) {
  const days = lastIds.map(toDay);
  let lines = db
    .selectFrom('request_log')
    .select(allColumns)
    .where('workspace_id', '=', workspaceId)
    .where('recorded_on', 'in', [...new Set(days)])
    .where('last_id', 'in', lastIds);
  for (const condition of rangesOf(query)) lines = lines.where(sql<boolean>`${condition}`);
  const { from, to } = toBounds(query);
  if (from !== undefined) lines = lines.where('id', '>=', from.id);
  if (to !== undefined) lines = lines.where('id', '<', to.id);
  return lines.orderBy('id', 'desc');
}

/** Returns one record by its public ID; undefined when the workspace has none. Reads one day. */
export async function findLog(db: Kysely<Database>, workspaceId: string, id: string): Promise<LogListRow | undefined> {
  const uuid = fromLogId(id);
  if (uuid === undefined) return undefined;
  return await db
    .selectFrom('request_log')
    .select(allColumns)
    .where('recorded_on', '=', toDay(uuid))
    .where('id', '=', uuid)
    .where('workspace_id', '=', workspaceId)
    // Which packs to read: a pack has lines of one minute.
    .where('first_id', '<=', uuid)
    .where('last_id', '>=', uuid)
    .where('last_id', '<', lowestLogUuid(getLogUuidTime(uuid) + packMs))
    .executeTakeFirst();
}

/** Returns the records of live calls with these public IDs, in no order. Those that the workspace does not have are left out. */
export async function findLiveLogs(
  db: Kysely<Database>,
  workspaceId: string,
  ids: readonly string[],
): Promise<LogListRow[]> {
  const uuids = ids.flatMap((id) => fromLogId(id) ?? []);
  if (uuids.length === 0) return [];
  return await db
    .selectFrom('request_log_row')
    .selectAll()
    .where('recorded_on', 'in', [...new Set(uuids.map(toDay))])
    .where('id', 'in', uuids)
    .where('workspace_id', '=', workspaceId)
    .execute();
}

/** The maximum time between the first and the last line of a pack. */
export const packMs = 60_000;

const lineTimeoutMs = 2_000;

/** Returns the record of one line of a batch; undefined when there is none, or it was not found within two seconds. */
export async function findLineLog(
  db: Kysely<Database>,
  workspaceId: string,
  { batchId, line }: { batchId: string; line: number },
): Promise<LogListRow | undefined> {
  const span = await batchSpan(db, workspaceId, batchId);
  if (span === null) return undefined;
  try {
    return await selectInTime(db, lineTimeoutMs, async (tx) => {
      const { rows: packs } = await sql<{ last_id: string }>`
        select last_id from request_log_pack
        where workspace_id = ${workspaceId} and batch_id = ${batchId} and batch_line @> ${[line]}::int[]
        order by last_id desc limit 1`.execute(tx);
      const [pack] = packs;
      if (pack !== undefined)
        return await selectLines(tx, workspaceId, {}, [pack.last_id]).where('batch_line', '=', line).executeTakeFirst();
      const rows = tx
        .selectFrom('request_log_row')
        .selectAll()
        .where('workspace_id', '=', workspaceId)
        .where('batch_id', '=', batchId)
        .where('batch_line', '=', line);
      return await within(rows, toTimeBounds(span)).limit(1).executeTakeFirst();
    });
  } catch (error) {
    if (error instanceof GatewayError && error.code === 'search_too_broad') return undefined;
    throw error;
  }
}

/** The conditions of a page. The code that runs the statements sets `limit`. */
export type PageQuery = Partial<Omit<LogListQuery, 'limit'>> & { fromMs?: number; toMs?: number };

/**
 * Returns the statements for the rows of a page that are in no pack, newest first. A statement is only needed if the
 * previous ones returned too few rows. The plain list walks the index (workspace_id, recorded_on, id) from the newest
 * partition backwards and stops: its cost is that of the page, however large the log is.
 *
 * After a cursor there are two statements: the rest of its day, and the earlier days. With one comparison of
 * (recorded_on, id), Postgres would expect a single row for the rest of the day, by the statistics of recorded_on, and
 * read every row of every workspace by primary key.
 * @testOnly
 */
export function rowStatements(db: Kysely<Database>, workspaceId: string, query: PageQuery): Query[] {
  let page = db.selectFrom('request_log_row').selectAll().where('workspace_id', '=', workspaceId);
  for (const condition of [...sharedConditions(query, workspaceId), ...rangesOf(query)])
    page = page.where(sql<boolean>`${condition}`);
  page = within(page, toTimeBounds(query)).orderBy('recorded_on', 'desc').orderBy('id', 'desc');
  if (query.after === undefined) return [page];
  const uuid = uuidOfCursor(query.after);
  const day = toDay(uuid);
  return [page.where('recorded_on', '=', day).where('id', '<', uuid), page.where('recorded_on', '<', day)];
}

/** The IDs of the records of a page, in no order. */
export function selectIds(db: Kysely<Database>, workspaceId: string, query: PageQuery) {
  let ids = db.selectFrom('request_log').select('id').where('workspace_id', '=', workspaceId);
  for (const condition of [...sharedConditions(query, workspaceId), ...rangesOf(query)])
    ids = ids.where(sql<boolean>`${condition}`);
  const { from, to } = toBounds(query);
  if (from !== undefined)
    ids = ids.where('recorded_on', '>=', from.day).where('id', '>=', from.id).where('last_id', '>=', from.id);
  if (to !== undefined)
    ids = ids.where('recorded_on', '<=', to.day).where('id', '<', to.id).where('first_id', '<', to.id);
  return ids;
}

/** The conditions that all lines of a pack meet, or none. */
function sharedConditions(query: PageQuery, workspaceId: string): RawBuilder<boolean>[] {
  const exact = columnList.flatMap(([name, { filter }]) => {
    const value = filter?.isExact === true ? query[name as ExactFilterName] : undefined;
    return value === undefined ? [] : [sql`${sql.ref(name)} = ${value}`];
  });
  const status = query.status === undefined ? [] : [statusCondition(query.status)];
  const conditions = [...exact, ...rollupConditions(query), ...sharedLogConditions(query, workspaceId), ...status];
  return conditions.map((condition) => sql<boolean>`${condition}`);
}

/** A time as the lowest ID at that time, or an ID, and its day. */
type Bound = { day: string; id: string };
type Bounds = { from: Bound | undefined; to: Bound | undefined };

const toDay = (uuid: string): string => utcDay(getLogUuidTime(uuid));

/** The times of a page as bounds on the IDs of its records; `to` is exclusive. */
function toTimeBounds(query: PageQuery): Bounds {
  const { fromMs = 0, toMs = Infinity, created_after: after = 0, created_before: before = Infinity } = query;
  const { time_of_generation_min: min, time_of_generation_max: max } = query;
  const from = Math.max(fromMs, after * 1_000, min?.getTime() ?? 0);
  const to = Math.min(toMs, before * 1_000, (max?.getTime() ?? Infinity) + 1);
  const boundAt = (timeMs: number): Bound => ({ day: utcDay(timeMs), id: lowestLogUuid(timeMs) });
  return { from: from > 0 ? boundAt(from) : undefined, to: to < Infinity ? boundAt(to) : undefined };
}

/** The same with the cursor. */
function toBounds(query: PageQuery): Bounds {
  const { from, to } = toTimeBounds(query);
  if (query.after === undefined) return { from, to };
  const id = uuidOfCursor(query.after);
  return { from, to: to !== undefined && to.id < id ? to : { day: toDay(id), id } };
}

/** The bounds on the ID imply those on the day, but only the day allows Postgres to skip partitions. */
function within(page: Query, { from, to }: Bounds): Query {
  let bounded = page;
  if (from !== undefined) bounded = bounded.where('recorded_on', '>=', from.day).where('id', '>=', from.id);
  if (to !== undefined) bounded = bounded.where('recorded_on', '<=', to.day).where('id', '<', to.id);
  return bounded;
}

function uuidOfCursor(after: string): string {
  const uuid = fromLogId(after);
  if (uuid !== undefined) return uuid;
  const message =
    "Invalid 'after': expected the ID of a log record (log_ and 32 hexadecimal digits), such as the last_id of a page.";
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}

function statusCondition(status: string): RawBuilder<unknown> {
  if (status === 'error') return hasNotSucceeded;
  if (status === 'refused') return wasRefused;
  if (status === 'failed') return sql`${hasNotSucceeded} and not ${wasRefused}`;
  if (!status.endsWith('xx')) return sql`status = ${Number(status)}`;
  const lowest = Number(status.slice(0, 1)) * 100;
  return sql`status >= ${lowest} and status < ${lowest + 100}`;
}

/** Whether a page may have to skip many rows. A trace ID has an index. */
export function isSearch(query: Partial<LogListQuery>): boolean {
  return Object.entries(query).some(([name, value]) => value !== undefined && !unsearched.has(name));
}

/** The parameters that a page can apply without skipping rows. */
const unsearched: ReadonlySet<string> = new Set<keyof LogListQuery>([
  'after',
  'limit',
  'trace_id',
  'created_after',
  'created_before',
  'time_of_generation_min',
  'time_of_generation_max',
  'workspace_id',
  'workspace_slug',
  'organisation_id',
]);

async function selectInTime<Found>(
  db: Kysely<Database>,
  searchTimeoutMs: number,
  select: (from: Kysely<Database>) => Promise<Found>,
): Promise<Found> {
  try {
    return await db.transaction().execute(async (tx) => {
      await sql`set local statement_timeout = ${sql.lit(searchTimeoutMs)}`.execute(tx);
      return await select(tx);
    });
  } catch (error) {
    if (getSqlState(error) !== '57014') throw error;
    throw searchTooBroad(searchTimeoutMs, error);
  }
}

const searchTooBroad = (timeoutMs: number, cause?: unknown): GatewayError =>
  new GatewayError(
    'invalid_request',
    'search_too_broad',
    `The search took longer than ${timeoutMs / 1_000} s because few records match. Narrow it with 'time_of_generation_min' and 'time_of_generation_max'.`,
    { cause },
  );

// Rows of a batch's last lines are recorded shortly after they were settled, by processes with different clocks.
const spanMarginMs = 3_600_000;

/**
 * The time in which rows of a batch were recorded. Rows have no index by batch, and this finds a batch of last month
 * without reading newer rows. null when the workspace has no such batch; `toMs` is absent while it runs.
 */
async function batchSpan(
  db: Kysely<Database>,
  workspaceId: string,
  batchId: string,
): Promise<{ fromMs: number; toMs?: number } | null> {
  const batch = await db
    .selectFrom('batch')
    .select(['created_at', 'completed_at', 'failed_at', 'expired_at', 'cancelled_at'])
    .where('id', '=', batchId)
    .where('workspace_id', '=', workspaceId)
    .executeTakeFirst();
  if (!batch) return null;
  const fromMs = batch.created_at.getTime() - spanMarginMs;
  const end = batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at;
  return end === null ? { fromMs } : { fromMs, toMs: end.getTime() + spanMarginMs };
}

/**
 * Returns the ID of the newest record of each of these workspaces. Workspaces without one from today or yesterday are
 * left out.
 */
export async function newestLogs(
  db: Kysely<Database>,
  workspaceIds: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const { rows } = await sql<{ workspace_id: string; id: string | null }>`
    select workspace_id, greatest(${newestId('request_log_row', 'id')}, ${newestId('request_log_pack', 'last_id')}) as id
    from unnest(${workspaceIds}::text[]) as watched (workspace_id)`.execute(db);
  return new Map(rows.flatMap(({ workspace_id: workspace, id }) => (id === null ? [] : [[workspace, toLogId(id)]])));
}

const newestId = (table: string, id: string): RawBuilder<unknown> => sql`(
  select ${sql.ref(id)} from ${sql.table(table)} where workspace_id = watched.workspace_id
    and recorded_on >= (clock_timestamp() at time zone 'utc')::date - 1
  order by recorded_on desc, ${sql.ref(id)} desc limit 1)`;

import { sql, type Kysely, type SelectQueryBuilder } from 'kysely';
import { getSqlState } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import type { ExactFilterName, LogListQuery } from '#libs/contracts/logs/logs.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { columnList, type RequestLogTable } from '../columns.ts';
import { hasNotSucceeded, wasRefused } from '../row/call-outcome.ts';
import { logConditions, rollupConditions } from './call-conditions.ts';
import { fromLogId, lowestLogUuid, getLogUuidTime, toLogId, utcDay } from '../row/log-id.ts';

export type LogListRow = RequestLogTable;
type Query = SelectQueryBuilder<Database, 'request_log', LogListRow>;

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
  query: LogListQuery,
  { searchTimeoutMs = defaultSearchTimeoutMs }: { searchTimeoutMs?: number } = {},
): Promise<LogListRow[]> {
  const span = query.batch_id === undefined ? undefined : await batchSpan(db, workspaceId, query.batch_id);
  if (span === null) return [];
  const select = (from: Kysely<Database>): Promise<LogListRow[]> =>
    selectPage(from, workspaceId, { ...query, ...span });
  return isSearch(query) ? await selectInTime(db, searchTimeoutMs, select) : await select(db);
}

export async function selectPage(
  db: Kysely<Database>,
  workspaceId: string,
  query: PageQuery & { limit: number },
): Promise<LogListRow[]> {
  const rows: LogListRow[] = [];
  for (const part of pageStatements(db, workspaceId, query)) {
    rows.push(...(await part.limit(query.limit + 1 - rows.length).execute()));
    if (rows.length > query.limit) break;
  }
  return rows;
}

/** Returns one row by its public ID; undefined when the workspace has no such row. Reads one partition. */
export async function findLog(db: Kysely<Database>, workspaceId: string, id: string): Promise<LogListRow | undefined> {
  const uuid = fromLogId(id);
  if (uuid === undefined) return undefined;
  return await db
    .selectFrom('request_log')
    .selectAll()
    .where('recorded_on', '=', utcDay(getLogUuidTime(uuid)))
    .where('id', '=', uuid)
    .where('workspace_id', '=', workspaceId)
    .executeTakeFirst();
}

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
    return await selectInTime(db, lineTimeoutMs, async (from) => {
      const page = from
        .selectFrom('request_log')
        .selectAll()
        .where('workspace_id', '=', workspaceId)
        .where('batch_id', '=', batchId)
        .where('batch_line', '=', line);
      return await withinTime(page, span).limit(1).executeTakeFirst();
    });
  } catch (error) {
    if (error instanceof GatewayError && error.code === 'search_too_broad') return undefined;
    throw error;
  }
}

/** The conditions of a page. The code that runs the statements sets `limit`. */
export type PageQuery = Partial<Omit<LogListQuery, 'limit'>> & { fromMs?: number; toMs?: number };

/**
 * Returns the statements of a page, newest rows first. A statement is only needed if the previous ones returned too few
 * rows. The plain list walks the index (workspace_id, recorded_on, id) from the newest partition backwards and stops:
 * its cost is that of the page, however large the log is.
 *
 * After a cursor there are two statements: the rest of its day, and the earlier days. With one comparison of
 * (recorded_on, id), Postgres would expect a single row for the rest of the day, by the statistics of recorded_on, and
 * read every row of every workspace by primary key.
 */
export function pageStatements(db: Kysely<Database>, workspaceId: string, query: PageQuery): Query[] {
  let page = db.selectFrom('request_log').selectAll().where('workspace_id', '=', workspaceId);
  for (const [name, { filter }] of columnList) {
    const value = filter?.isExact === true ? query[name as ExactFilterName] : undefined;
    if (value !== undefined) page = page.where(sql.ref(name), '=', value);
  }
  for (const condition of [...rollupConditions(query), ...logConditions(query, workspaceId)])
    page = page.where(sql<boolean>`${condition}`);
  if (query.status !== undefined) page = withStatus(page, query.status);
  page = withinTime(page, query).orderBy('recorded_on', 'desc').orderBy('id', 'desc');
  if (query.after === undefined) return [page];
  const uuid = uuidOfCursor(query.after);
  const day = utcDay(getLogUuidTime(uuid));
  return [page.where('recorded_on', '=', day).where('id', '<', uuid), page.where('recorded_on', '<', day)];
}

/** The bounds on the ID imply those on the day, but only the day allows Postgres to skip partitions. */
function withinTime(page: Query, query: PageQuery): Query {
  const { fromMs = 0, toMs = Infinity, created_after: after = 0, created_before: before = Infinity } = query;
  const { time_of_generation_min: min, time_of_generation_max: max } = query;
  let within = page;
  const from = Math.max(fromMs, after * 1_000, min?.getTime() ?? 0);
  if (from > 0) within = within.where('recorded_on', '>=', utcDay(from)).where('id', '>=', lowestLogUuid(from));
  const to = Math.min(toMs, before * 1_000, (max?.getTime() ?? Infinity) + 1);
  if (to < Infinity) within = within.where('recorded_on', '<=', utcDay(to)).where('id', '<', lowestLogUuid(to));
  return within;
}

function uuidOfCursor(after: string): string {
  const uuid = fromLogId(after);
  if (uuid !== undefined) return uuid;
  const message =
    "Invalid 'after': expected the ID of a log record (log_ and 32 hexadecimal digits), such as the last_id of a page.";
  throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}

function withStatus(page: Query, status: string): Query {
  if (status === 'error') return page.where(hasNotSucceeded);
  if (status === 'refused') return page.where(wasRefused);
  if (status === 'failed') return page.where(hasNotSucceeded).where(sql<boolean>`not ${wasRefused}`);
  if (!status.endsWith('xx')) return page.where('status', '=', Number(status));
  const lowest = Number(status.slice(0, 1)) * 100;
  return page.where('status', '>=', lowest).where('status', '<', lowest + 100);
}

/** Whether a page may have to skip many rows. A trace ID has an index. */
export function isSearch(query: LogListQuery): boolean {
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
    throw new GatewayError(
      'invalid_request',
      'search_too_broad',
      `The search took longer than ${searchTimeoutMs / 1_000} s because few records match. Narrow it with 'time_of_generation_min' and 'time_of_generation_max'.`,
      { cause: error },
    );
  }
}

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
    select workspace_id, (
      select id from request_log where workspace_id = watched.workspace_id
        and recorded_on >= (clock_timestamp() at time zone 'utc')::date - 1
      order by recorded_on desc, id desc limit 1) as id
    from unnest(${workspaceIds}::text[]) as watched (workspace_id)`.execute(db);
  return new Map(rows.flatMap(({ workspace_id: workspace, id }) => (id === null ? [] : [[workspace, toLogId(id)]])));
}

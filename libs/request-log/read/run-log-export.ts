import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { LogExportFilters } from '#libs/contracts/logs/log-exports.ts';
import { isDatabaseTrouble, getSqlState } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { continuedBy } from '#libs/event-log/by-worker.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { deleteUnheld, isHeld } from '#libs/people/retention.ts';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';
import type { WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { logExportModel, type LogExportData } from '#libs/resources/log-exports.ts';
import { bodyFields, type ExportedRow } from './export-columns.ts';
import { exportFormats, type ExportEncoder } from './export-formats.ts';
import { toLogId } from '../row/log-id.ts';
import { createBodiesReader, type ReadBodies } from '../bodies/recorded-bodies.ts';
import { selectIds, selectPage, type LogListRow, type PageQuery } from './read-log.ts';

/** Writes the file of one export. A lost job resumes after the last finished part. */
export const logExportQueue: QueueDefinition<{ export_id: string }> = {
  name: 'log-export',
  payload: z.object({ export_id: z.string() }),
  key: ({ export_id }) => export_id,
  options: {
    policy: 'exclusive',
    retryLimit: 10_000,
    retryDelay: 1,
    retryBackoff: true,
    retryDelayMax: 30,
    heartbeatSeconds: 10,
    expireInSeconds: 86_399, // pg-boss requires less than a day.
    retentionSeconds: 60 * 86_400,
    deleteAfterSeconds: 3_600,
    notify: true,
  },
};

type Deps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  blobs: BlobStore;
  logger: Logger;
  /** For the keys of recorded bodies. */
  secrets: Pick<Secrets, 'readOwned'>;
  limits: { rowsMax: number; partRows?: number; pageRows?: number };
};

/** The progress of an export: the row after which it resumes, and how many rows it has skipped and written. */
type Progress = { part: number; lastId: string | null; skipped: number; written: number };

/**
 * Returns a message for the owner if the error ends an export as failed; null for any other error, which is retried.
 */
function toFailure(error: unknown): string | null {
  if (error instanceof GatewayError) return error.message;
  if (getSqlState(error) === '57014')
    return 'Reading the log took too long because few records match. Choose a shorter period, or fewer filters.';
  return null;
}

const pageTimeoutMs = 300_000;

/** Runs an export that is in progress until its file is written, it is cancelled, or it fails. Safe to repeat. */
export async function runLogExport(deps: Deps, exportId: string, signal: AbortSignal): Promise<void> {
  const row = await findRunning(deps.db, exportId);
  if (row === undefined) return;
  try {
    if (await writeFile(deps, row, signal)) await end(deps, row, { type: 'log_export.succeeded', status: 'success' });
  } catch (error) {
    const message = toFailure(error);
    if (message === null || signal.aborted) throw error;
    deps.logger.warn({ err: error, export_id: exportId }, 'an export of the request log failed');
    await end(deps, row, { type: 'log_export.failed', status: 'failed', error: message });
  }
}

type Running = { id: string; workspace_id: string; data: LogExportData };

async function findRunning(db: Kysely<Database>, exportId: string): Promise<Running | undefined> {
  const { rows } = await sql<Running>`
    select id, workspace_id, data from resource
    where kind = 'log_export' and id = ${exportId} and deleted_at is null
      and data ->> 'status' = 'in_progress'`.execute(db);
  return rows[0];
}

/** Exports in progress, each of which has one job. */
export const exportsInProgress: WorkedOn<{ export_id: string }> = {
  what: 'an export of the request log',
  queue: logExportQueue,
  async findOpen(db, { changedBefore, after, max }) {
    const { rows } = await sql<{ id: string }>`
      select id from resource
      where kind = 'log_export' and deleted_at is null and data ->> 'status' = 'in_progress'
        and updated_at < (select clock_timestamp()) - ${changedBefore}::interval and id > ${after}
      order by id limit ${max}`.execute(db);
    return rows.map(({ id }) => ({ id, job: { export_id: id } }));
  },
};

/** Counts the exports of all workspaces that are in progress. */
export async function countRunningExports(db: Kysely<Database>): Promise<number> {
  const { rows } = await sql<{ exports: number }>`
    select count(*) as exports from resource
    where kind = 'log_export' and deleted_at is null and data ->> 'status' = 'in_progress'`.execute(db);
  return rows[0]?.exports ?? 0;
}

async function end(
  { eventLog }: Deps,
  { id, workspace_id: workspaceId }: Running,
  { type, ...data }: { type: string; status: string; error?: string },
): Promise<void> {
  const metadata = continuedBy('log export');
  await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
    const row = await unit.load(logExportModel, id);
    if (!row || row.deleted_at || (row.data as LogExportData).status !== 'in_progress') return;
    await unit.append(logExportModel, id, [{ type, data }]);
  });
}

/** Returns false if the export was cancelled, or another worker writes it. */
async function writeFile(deps: Deps, row: Running, signal: AbortSignal): Promise<boolean> {
  const { db, limits } = deps;
  const { rows: parts } = await sql<Progress>`
    select max(part) + 1 as part, max(skipped)::float8 as skipped, sum(rows)::float8 as written,
      (array_agg(last_id order by part desc))[1] as "lastId"
    from log_export_part where export_id = ${row.id} having count(*) > 0`.execute(db);
  let progress: Progress = parts[0] ?? { part: 0, lastId: null, skipped: 0, written: 0 };
  const isInParts = exportFormats[row.data.format ?? 'ndjson'].isInParts;
  if (!isInParts && progress.part > 0) return true;
  const partRows = isInParts ? (limits.partRows ?? 50_000) : Number.POSITIVE_INFINITY;
  for (;;) {
    const next = await writePart(deps, row, progress, partRows, signal);
    if (next === null) return false;
    if (next.isEnd) return true;
    progress = next;
  }
}

async function writePart(
  deps: Deps,
  row: Running,
  progress: Progress,
  partRows: number,
  signal: AbortSignal,
): Promise<(Progress & { isEnd: boolean }) | null> {
  const { db, blobs, limits } = deps;
  const { format = 'ndjson', requested_data: fields } = row.data;
  const readBodies = createBodiesReader(deps);
  const encoder: ExportEncoder = exportFormats[format].open(fields, progress.part === 0);
  const writer = await blobs.openWriter();
  try {
    let { lastId, skipped, written } = progress;
    for (let isEnd = false; ;) {
      signal.throwIfAborted();
      if ((await findRunning(db, row.id)) === undefined) {
        await writer.abort();
        return null;
      }
      const page = await readPage(db, row, { lastId, skipped, written }, limits.pageRows ?? 1_000);
      ({ isEnd, skipped } = page);
      lastId = page.lastId ?? lastId;
      written += page.rows.length;
      if (written > limits.rowsMax) throw tooLarge(limits.rowsMax);
      for await (const rows of withBodies(readBodies, row, page.rows)) await writer.write(encoder.encode(rows));
      if (!isEnd && written - progress.written < partRows) continue;
      await writer.write(encoder.end());
      const { blob, sizeBytes } = await writer.commit();
      const { rows: inserted } = await sql`
        insert into log_export_part (workspace_id, export_id, part, blob, size_bytes, rows, skipped, last_id)
        values (${row.workspace_id}, ${row.id}, ${progress.part}, ${blob}, ${sizeBytes}, ${written - progress.written},
          ${skipped}, ${lastId})
        on conflict do nothing returning part`.execute(db);
      return inserted.length === 0 ? null : { part: progress.part + 1, lastId, skipped, written, isEnd };
    }
  } catch (error) {
    await writer.abort();
    throw error;
  }
}

/** The maximum characters of bodies in memory, not counting the last record. */
const bodyCharsMax = 4_194_304;

/**
 * Yields the rows in groups, with the recorded bodies if a column asks for them. A group is not empty. Throws
 * GatewayError for bodies that cannot be opened: a retry would not help, and a file without them would suggest that no
 * bodies were recorded.
 */
async function* withBodies(
  read: ReadBodies,
  { workspace_id: workspaceId, data }: Running,
  rows: readonly LogListRow[],
): AsyncIterable<readonly ExportedRow[]> {
  if (!bodyFields.some((field) => data.requested_data.includes(field))) {
    if (rows.length > 0) yield rows;
    return;
  }
  let group: ExportedRow[] = [];
  let chars = 0;
  for (const row of rows) {
    const bodies =
      row.bodies_blob === null
        ? null
        : await read(workspaceId, row.bodies_blob).catch((error: unknown) => {
            throw isDatabaseTrouble(error) ? error : unreadable(row.id, error);
          });
    group.push({ ...row, bodies });
    chars += (bodies?.request?.length ?? 0) + (bodies?.response?.length ?? 0);
    if (chars < bodyCharsMax) continue;
    yield group;
    group = [];
    chars = 0;
  }
  if (group.length > 0) yield group;
}

const unreadable = (id: string, cause: unknown): GatewayError =>
  new GatewayError(
    'internal',
    'recorded_bodies_unreadable',
    `The recorded bodies of ${toLogId(id)} cannot be read. Their blob is damaged, or their key cannot be decrypted. Leave out 'request' and 'response', or choose a period without this record.`,
    { cause },
  );

/** The next rows of the file. Rows before its page are skipped. */
async function readPage(
  db: Kysely<Database>,
  { workspace_id, data }: Running,
  { lastId, skipped, written }: Omit<Progress, 'part'>,
  pageRows: number,
): Promise<{ rows: LogListRow[]; lastId: string | undefined; skipped: number; isEnd: boolean }> {
  const { query, skip, rowsMax } = readExportFilters(data.filters);
  const until = data.until === undefined ? {} : { toMs: Date.parse(data.until) };
  const after = lastId === null ? {} : { after: toLogId(lastId) };
  const found = await db.transaction().execute(async (tx) => {
    await sql`set local statement_timeout = ${sql.lit(pageTimeoutMs)}`.execute(tx);
    return await selectPage(tx, workspace_id, { ...query, ...until, ...after, limit: pageRows }, pageTimeoutMs);
  });
  const page = found.slice(0, pageRows);
  const passed = Math.min(page.length, skip - skipped);
  const rows = page.slice(passed, passed + rowsMax - written);
  const isEnd = found.length <= pageRows || written + rows.length >= rowsMax;
  return { rows, lastId: page.at(-1)?.id, skipped: skipped + passed, isEnd };
}

/** The filters of an export as a query of the log, with its page: the rows to skip, and the maximum of rows. */
function readExportFilters(filters: Record<string, unknown>): {
  query: PageQuery;
  skip: number;
  rowsMax: number;
} {
  const { current_page: page = 0, page_size: size, ...query } = LogExportFilters.parse(filters);
  return { query, skip: page * (size ?? 0), rowsMax: size ?? Number.POSITIVE_INFINITY };
}

const countTimeoutMs = 2_000;

/** Returns how many records an export would have now; null: more than `max`, or too many to count in two seconds. */
export async function countForExport(
  db: Kysely<Database>,
  workspaceId: string,
  filters: Record<string, unknown>,
  max: number,
): Promise<number | null> {
  const { query, skip, rowsMax } = readExportFilters(filters);
  try {
    return await db.transaction().execute(async (tx) => {
      await sql`set local statement_timeout = ${sql.lit(countTimeoutMs)}`.execute(tx);
      const limited = selectIds(tx, workspaceId, query).limit(skip + Math.min(max, rowsMax) + 1);
      const { count } = await tx
        .selectFrom(limited.as('matching'))
        .select(({ fn }) => fn.countAll<number>().as('count'))
        .executeTakeFirstOrThrow();
      const total = Math.min(Math.max(0, count - skip), rowsMax);
      return total > max ? null : total;
    });
  } catch (error) {
    if (getSqlState(error) === '57014') return null;
    throw error;
  }
}

const tooLarge = (rowsMax: number): GatewayError =>
  new GatewayError(
    'invalid_request',
    'log_export_too_large',
    `More than ${rowsMax} records match, the maximum of one export (SLUICE_EXPORT_ROWS_MAX). Choose a shorter period, or set page_size.`,
  );

/**
 * Deletes the files of exports that ended without success, were deleted, or are older than `retentionMs`, except under legal
 * hold. Returns how many of each workspace.
 */
export async function sweepLogExports(db: Kysely<Database>, retentionMs: number): Promise<Map<string, number>> {
  const { rows } = await deleteUnheld(db, (tx) =>
    sql<{ workspaceId: string; count: number }>`
      with deleted as (
        delete from log_export_part using resource
        where resource.id = log_export_part.export_id and not ${isHeld('log_export_part.workspace_id')} and (
          resource.deleted_at is not null or resource.data ->> 'status' in ('stopped', 'failed')
          or (resource.data ->> 'status' = 'success'
            and resource.updated_at < clock_timestamp() - ${retentionMs} * interval '1 millisecond'))
        returning log_export_part.workspace_id, export_id
      )
      select workspace_id as "workspaceId", count(distinct export_id)::int as count from deleted group by 1`.execute(
      tx,
    ),
  );
  return new Map(rows.map(({ workspaceId, count }) => [workspaceId, count]));
}

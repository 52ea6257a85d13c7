import { createHash } from 'node:crypto';
import { sql, type Kysely, type Selectable } from 'kysely';
import type { BlobStore, StoredBlob } from '#libs/blobs/blob-store.ts';
import type { UploadObject, UploadPartObject } from '#libs/contracts/batches/uploads.ts';
import type { Database, UploadPartTable, UploadTable } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { admitUpload, type Files } from './files.ts';
import { toOpenAiFile } from './to-openai-file.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';

export type NewUpload = Pick<UploadTable, 'filename' | 'purpose' | 'mime_type' | 'bytes' | 'sha256' | 'expires_after'>;
type UploadRow = Selectable<UploadTable> & { is_over: boolean };
type PartRow = Selectable<UploadPartTable>;

export type Uploads = {
  /**
   * With a hash, an upload of the same file that is pending or has just been completed is returned instead of a new
   * one. Throws rate_limited when the workspace has too many pending uploads, and quota_exceeded when the file would
   * exceed the storage quota together with stored and announced files.
   */
  create(workspaceId: string, upload: NewUpload): Promise<UploadObject>;
  /** Throws not_found. */
  retrieve(workspaceId: string, id: string): Promise<UploadObject>;
  /** Called before the bytes of a part are received. Throws not_found, and conflict (`upload_not_pending`). */
  admitPart(workspaceId: string, id: string): Promise<void>;
  /** Throws like `admitPart`, and invalid_request when the parts would be larger than the file. */
  addPart(workspaceId: string, id: string, blob: StoredBlob): Promise<UploadPartObject>;
  /**
   * Joins the parts to a file; a repeat returns the same one. Throws not_found, conflict (`upload_not_pending`), and
   * invalid_request for parts that do not match the file.
   */
  complete(
    workspaceId: string,
    id: string,
    wanted: { partIds: readonly string[]; md5: string | null },
    metadata: EventMetadata,
  ): Promise<UploadObject>;
  /** Its parts are removed. Repeating it has no effect. Throws not_found, and conflict for one that was completed. */
  cancel(workspaceId: string, id: string): Promise<UploadObject>;
};

type Deps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  blobs: BlobStore;
  files: Pick<Files, 'record' | 'find'>;
  /** The maximum of files and announced uploads of a workspace. */
  storedBytesMax: number;
};

/**
 * The time from the creation of an upload to its completion, as at OpenAI. Here, each part starts it again, up to a day
 * in total.
 */
const lifetime = '1 hour';
const lifetimeMax = '1 day';
const pendingMax = 100;
const partsMax = 10_000;
/** How long an upload can still be retrieved after it has expired. */
const keptFor = '1 day';

export function createUploads(deps: Deps): Uploads {
  const { db, blobs, storedBytesMax } = deps;
  /** The running completions of this process. A repeat waits for the first, so that the parts are copied once. */
  const completing = new Map<string, Promise<unknown>>();

  return {
    async create(workspaceId, upload) {
      const same = await findSame(deps, workspaceId, upload);
      if (same !== undefined) return await viewOf(deps, same, await partsOf(db, same));
      const id = newId('upload_');
      const { rows } = await db.transaction().execute(async (tx) => {
        // Uploads that begin at the same time are counted one after another.
        await sql`select pg_advisory_xact_lock(hashtextextended(${`uploads:${workspaceId}`}, 0))`.execute(tx);
        await refuseTooMuch(tx, workspaceId, { bytes: upload.bytes, storedBytesMax });
        return await sql<UploadRow>`
          insert into upload (id, workspace_id, filename, purpose, mime_type, bytes, sha256, expires_after, expires_at)
          values (${id}, ${workspaceId}, ${upload.filename}, ${upload.purpose}, ${upload.mime_type}, ${upload.bytes},
            ${upload.sha256}, ${upload.expires_after}, clock_timestamp() + ${lifetime}::interval)
          returning *, false as is_over`.execute(tx);
      });
      return await viewOf(deps, rows[0] as UploadRow, upload.sha256 === null ? undefined : []);
    },

    async retrieve(workspaceId, id) {
      const row = await find(db, workspaceId, id);
      return await viewOf(deps, row, await partsOf(db, row));
    },

    async admitPart(workspaceId, id) {
      refuseUnlessPending(await find(db, workspaceId, id));
    },

    async addPart(workspaceId, id, blob) {
      return await db.transaction().execute(async (tx) => {
        const upload = await find(tx, workspaceId, id, true);
        refuseUnlessPending(upload);
        const { rows } = await sql<{ parts: number; bytes: number }>`
          select count(*) as parts, coalesce(sum(bytes), 0)::int8 as bytes from upload_part where upload_id = ${id}`.execute(
          tx,
        );
        const { parts = 0, bytes = 0 } = rows[0] ?? {};
        if (parts >= partsMax)
          throw invalid('data', `The upload already has ${parts} parts, the maximum. Send larger parts.`);
        // Parts can be sent again after an answer was lost, so there can be more bytes than the file has, up to a limit.
        if (bytes + blob.sizeBytes > 2 * upload.bytes || blob.sizeBytes > upload.bytes)
          throw invalid('data', `The parts exceed the ${upload.bytes} bytes that the upload was created for.`);
        const part = { id: newId('part_'), upload_id: id, workspace_id: workspaceId, blob: blob.blob };
        const row = await tx
          .insertInto('upload_part')
          .values({ ...part, bytes: blob.sizeBytes, sha256: blob.sha256 })
          .returningAll()
          .executeTakeFirstOrThrow();
        await sql`
          update upload set expires_at = greatest(expires_at,
            least(clock_timestamp() + ${lifetime}::interval, created_at + ${lifetimeMax}::interval))
          where id = ${id}`.execute(tx);
        return viewOfPart(row);
      });
    },

    async complete(workspaceId, id, wanted, metadata) {
      const name = `${workspaceId} ${id}`;
      for (let running = completing.get(name); running !== undefined; running = completing.get(name))
        await running.catch(() => undefined);
      const completion = completeOnce(deps, workspaceId, id, wanted, metadata).finally(() => completing.delete(name));
      completing.set(name, completion);
      return await completion;
    },

    async cancel(workspaceId, id) {
      const { row, parts } = await db.transaction().execute(async (tx) => {
        const upload = await find(tx, workspaceId, id, true);
        if (upload.status === 'completed') throw notPending(upload);
        const removed = await tx.deleteFrom('upload_part').where('upload_id', '=', id).returning('blob').execute();
        await tx.updateTable('upload').set({ status: 'cancelled' }).where('id', '=', id).execute();
        return { row: { ...upload, status: 'cancelled' as const }, parts: removed };
      });
      await removeBlobs(blobs, parts);
      return await viewOf(deps, row);
    },
  };
}

async function find(tx: Kysely<Database>, workspaceId: string, id: string, isLocked = false): Promise<UploadRow> {
  const { rows } = await sql<UploadRow>`
    select *, expires_at <= clock_timestamp() as is_over from upload
    where id = ${id} and workspace_id = ${workspaceId} ${isLocked ? sql`for update` : sql``}`.execute(tx);
  if (rows[0] === undefined) throw noSuchUpload(id);
  return rows[0];
}

async function partsOf(tx: Kysely<Database>, { id }: { id: string }): Promise<PartRow[]> {
  return await tx
    .selectFrom('upload_part')
    .selectAll()
    .where('upload_id', '=', id)
    .orderBy('created_at')
    .orderBy('id')
    .limit(partsMax)
    .execute();
}

async function viewOf({ files }: Deps, row: UploadRow, parts?: readonly PartRow[]): Promise<UploadObject> {
  const file = row.file_id === null ? undefined : await files.find(row.workspace_id, row.file_id);
  return {
    id: row.id,
    object: 'upload',
    bytes: row.bytes,
    created_at: seconds(row.created_at),
    expires_at: seconds(row.expires_at),
    filename: row.filename,
    purpose: row.purpose as UploadObject['purpose'],
    status: row.status === 'pending' && row.is_over ? 'expired' : row.status,
    file: file === undefined ? null : (toOpenAiFile(file) as UploadObject['file']),
    ...(parts === undefined ? {} : { parts: parts.map(viewOfPart) }),
  };
}

/** An upload of the same file that can be used: a pending one, or one completed to a file that still exists. */
async function findSame({ db, files }: Deps, workspaceId: string, upload: NewUpload): Promise<UploadRow | undefined> {
  if (upload.sha256 === null) return undefined;
  const { rows } = await sql<UploadRow>`
    select *, false as is_over from upload
    where workspace_id = ${workspaceId} and sha256 = ${upload.sha256} and bytes = ${upload.bytes}
      and purpose = ${upload.purpose} and filename = ${upload.filename}
      and expires_after is not distinct from ${upload.expires_after}
      and expires_at > clock_timestamp() and status <> 'cancelled'
    order by created_at desc limit 1`.execute(db);
  const [row] = rows;
  if (row === undefined || row.file_id === null) return row;
  const file = await files.find(workspaceId, row.file_id);
  return file === undefined || file.deleted_at !== null ? undefined : row;
}

async function refuseTooMuch(
  tx: Kysely<Database>,
  workspaceId: string,
  { bytes, storedBytesMax }: { bytes: number; storedBytesMax: number },
): Promise<void> {
  const { rows } = await sql<{ pending: number }>`
    select count(*) as pending from upload
    where workspace_id = ${workspaceId} and status = 'pending' and expires_at > clock_timestamp()`.execute(tx);
  const pending = rows[0]?.pending ?? 0;
  if (pending >= pendingMax) {
    const message = `The workspace already has ${pending} incomplete uploads, the maximum. Complete or cancel some.`;
    throw new GatewayError('rate_limited', 'too_many_uploads', message, { retryAfterMs: 60_000 });
  }
  await admitUpload(tx, workspaceId, storedBytesMax, bytes);
}

/** Removes blobs of parts whose rows were deleted. The sweep of blobs removes any that remain. */
async function removeBlobs(blobs: BlobStore, parts: readonly { blob: string }[]): Promise<void> {
  for (const { blob } of parts) await blobs.remove(blob);
}

/** The bytes of the parts, one after the other, as one blob. Throws invalid_request if their hash differs. */
async function assemble(blobs: BlobStore, parts: readonly PartRow[], md5: string | null): Promise<StoredBlob> {
  const hash = md5 === null ? null : createHash('md5');
  const joined = await blobs.join(
    parts.map(({ blob, bytes }) => ({ blob, sizeBytes: bytes })),
    { leavesReserve: true, onBytes: (bytes) => hash?.update(bytes) },
  );
  if (hash === null || hash.digest('hex') === md5?.toLowerCase()) return joined;
  await blobs.remove(joined.blob);
  throw wrongContent('md5');
}

async function completeOnce(
  deps: Deps,
  ...[workspaceId, id, { partIds, md5 }, metadata]: Parameters<Uploads['complete']>
): Promise<UploadObject> {
  const { db, eventLog, blobs, files } = deps;
  const upload = await find(db, workspaceId, id);
  if (upload.status === 'completed') return await viewOf(deps, upload);
  refuseUnlessPending(upload);
  const all = await partsOf(db, upload);
  const parts = orderedParts(upload, all, partIds);
  const blob = await assemble(blobs, parts, md5);
  const fileId = newId('file-');
  try {
    if (upload.sha256 !== null && blob.sha256 !== upload.sha256) throw wrongContent('sha256');
    const completed = await eventLog.transact({ workspaceId, streams: [fileId], metadata }, async (unit) => {
      const current = await find(unit.tx, workspaceId, id, true);
      // Another process was faster, and its file is used.
      if (current.status !== 'pending') return current;
      await files.record(unit, fileId, {
        purpose: upload.purpose,
        filename: upload.filename,
        blob,
        expiresAfterSeconds: upload.expires_after,
      });
      await unit.tx.deleteFrom('upload_part').where('upload_id', '=', id).execute();
      const { rows } = await sql<UploadRow>`
          update upload set status = 'completed', file_id = ${fileId} where id = ${id}
          returning *, false as is_over`.execute(unit.tx);
      return rows[0] as UploadRow;
    });
    if (completed.file_id !== fileId) await blobs.remove(blob.blob);
    if (completed.status !== 'completed') throw notPending(completed);
    await removeBlobs(blobs, all);
    return await viewOf(deps, completed);
  } catch (error) {
    // The COMMIT may have succeeded, so the sweep of blobs decides.
    if (error instanceof GatewayError && error.kind !== 'unavailable') await blobs.remove(blob.blob);
    throw error;
  }
}

/**
 * Removes the parts of expired uploads, and the uploads a day later. Returns how many parts of each workspace were removed.
 */
export async function sweepUploads(
  db: Kysely<Database>,
  blobs: Pick<BlobStore, 'remove'>,
): Promise<Map<string, number>> {
  const swept = new Map<string, number>();
  for (;;) {
    const { rows } = await sql<{ blob: string; workspaceId: string }>`
      delete from upload_part where id in (
        select part.id from upload_part as part join upload on upload.id = part.upload_id
        where upload.expires_at < clock_timestamp() - interval '5 minutes' limit 500)
      returning blob, workspace_id as "workspaceId"`.execute(db);
    for (const { blob, workspaceId } of rows) {
      await blobs.remove(blob);
      swept.set(workspaceId, (swept.get(workspaceId) ?? 0) + 1);
    }
    if (rows.length < 500) break;
  }
  await sql`delete from upload where expires_at < clock_timestamp() - ${keptFor}::interval`.execute(db);
  return swept;
}

/** The requested parts, in their order. Throws invalid_request if they do not match the file. */
function orderedParts(upload: UploadRow, all: readonly PartRow[], partIds: readonly string[]): PartRow[] {
  const byId = new Map(all.map((part) => [part.id, part]));
  const parts = partIds.map((partId, index) => {
    const part = byId.get(partId);
    if (part === undefined)
      throw invalid(
        `part_ids[${index}]`,
        `The upload has no part '${partId.slice(0, 100)}', or the request lists it twice.`,
      );
    byId.delete(partId);
    return part;
  });
  const bytes = parts.reduce((sum, part) => sum + part.bytes, 0);
  if (bytes === upload.bytes) return parts;
  throw invalid(
    'part_ids',
    `These parts have ${bytes} bytes in total, but the upload was created for ${upload.bytes} bytes.`,
  );
}

/** Throws conflict for an upload that accepts no more parts. */
function refuseUnlessPending(upload: UploadRow): void {
  if (upload.status !== 'pending' || upload.is_over) throw notPending(upload);
}

function notPending({ id, status }: UploadRow): GatewayError {
  const state = status === 'pending' ? 'expired' : status;
  const message = `The upload '${id}' is ${state}. ${state === 'completed' ? 'Its file can be used.' : 'Create another one.'}`;
  return new GatewayError('conflict', 'upload_not_pending', message);
}

const viewOfPart = ({ id, upload_id, bytes, sha256, created_at: createdAt }: PartRow): UploadPartObject => ({
  id,
  object: 'upload.part',
  created_at: seconds(createdAt),
  upload_id,
  bytes,
  sha256,
});

const seconds = (time: Date): number => Math.floor(time.getTime() / 1_000);

const invalid = (param: string, message: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', message, { param });

const wrongContent = (name: 'md5' | 'sha256'): GatewayError =>
  invalid(
    name,
    `The ${name} of the parts does not match the announced one. A part is missing, damaged or out of order.`,
  );

const noSuchUpload = (id: string): GatewayError =>
  new GatewayError('not_found', null, `No such Upload object: ${id.slice(0, 100)}`, { param: 'upload_id' });

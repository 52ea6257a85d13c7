import { sql, type Kysely } from 'kysely';
import type { BlobStore, StoredBlob } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { continuedBy } from '#libs/event-log/by-worker.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { fingerprintBody, transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import { checkHold, isHeld, underHold } from '#libs/people/retention.ts';
import { fileModel, type FileEvent, type FileRow } from './file-model.ts';
import { toOpenAiFile, type OpenAiFile } from './to-openai-file.ts';

export type NewFile = {
  purpose: string;
  filename: string;
  blob: StoredBlob;
  /** Seconds from the creation of the file; null if it never expires. */
  expiresAfterSeconds: number | null;
};

export type FileListQuery = {
  workspaceId: string;
  purpose: string | null;
  order: 'asc' | 'desc';
  after: string | null;
  limit: number;
};

export type Files = {
  /**
   * Makes an uploaded blob a file. A repeated call returns the answer of the first one, and the blob of the repeat is
   * removed.
   */
  upload(
    identity: Omit<CallIdentity, 'fingerprint'>,
    metadata: EventMetadata,
    file: NewFile,
  ): Promise<{ file: OpenAiFile; replayed: boolean }>;
  /** Appends `file.uploaded` inside a transaction that has the file's stream locked. */
  record(unit: UnitOfWork, id: string, file: NewFile): Promise<FileRow>;
  /** Returns one more than `limit` if there are more. Throws invalid_request for an unknown cursor. */
  list(query: FileListQuery): Promise<FileRow[]>;
  /** Throws `not_found` for an unknown, deleted or expired file or one of another workspace. */
  retrieve(workspaceId: string, id: string): Promise<FileRow>;
  /**
   * Hides the file immediately. Its blob stays until no open batch needs it. Throws `not_found` like `retrieve`, and conflict
   * under legal hold.
   */
  remove(workspaceId: string, id: string, metadata: EventMetadata): Promise<void>;
  /** The row of a file, deleted or not. undefined when there never was such a file in the workspace. */
  find(workspaceId: string, id: string): Promise<FileRow | undefined>;
  /** Appends `file.expired` for expired files that are not under legal hold; returns how many. */
  expire(): Promise<number>;
};

export function createFiles(deps: { db: Kysely<Database>; eventLog: EventLog; blobs: BlobStore }): Files {
  const { db, eventLog, blobs } = deps;

  const select = (workspaceId: string, id: string) =>
    db.selectFrom('file').selectAll().where('id', '=', id).where('workspace_id', '=', workspaceId);

  const find: Files['find'] = (workspaceId, id) => select(workspaceId, id).executeTakeFirst();

  const retrieve: Files['retrieve'] = async (workspaceId, id) => {
    const file = await select(workspaceId, id).where('deleted_at', 'is', null).where(notExpired).executeTakeFirst();
    if (!file) throw noSuchFile(id);
    return file;
  };

  const record: Files['record'] = (unit, id, file) => unit.append(fileModel, id, [uploaded(file, unit.now)]);

  return {
    find,
    retrieve,
    record,
    async upload(identity, metadata, file) {
      const id = newId('file-');
      const { purpose, filename, expiresAfterSeconds, blob } = file;
      const fingerprint = fingerprintBody(JSON.stringify([purpose, filename, expiresAfterSeconds, blob.sha256]));
      const result = await transactOnce(
        eventLog,
        { ...identity, fingerprint },
        { workspaceId: identity.workspaceId, streams: [id], newStreams: [id], metadata },
        async (unit) => ({ status: 200, body: toOpenAiFile(await record(unit, id, file)) }),
      );
      if (result.replayed) await blobs.remove(blob.blob);
      return { file: result.body, replayed: result.replayed };
    },
    async list({ workspaceId, purpose, order, after, limit }) {
      let query = db
        .selectFrom('file')
        .selectAll()
        .where('workspace_id', '=', workspaceId)
        .where('deleted_at', 'is', null)
        .where(notExpired)
        .orderBy('created_at', order)
        .orderBy('id', order)
        .limit(limit + 1);
      if (purpose !== null) query = query.where('purpose', '=', purpose);
      if (after !== null) {
        const cursor = await find(workspaceId, after);
        if (!cursor) throw unknownCursor(after);
        const beyond = order === 'desc' ? '<' : '>';
        query = query.where((of) =>
          of(of.refTuple('created_at', 'id'), beyond, of.tuple(cursor.created_at, cursor.id)),
        );
      }
      return await query.execute();
    },
    async remove(workspaceId, id, metadata) {
      await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
        const file = await unit.load(fileModel, id);
        if (!file || file.workspace_id !== workspaceId || file.deleted_at !== null) throw noSuchFile(id);
        if (await checkHold(unit.tx, workspaceId)) throw underHold([workspaceId], 'so its files cannot be deleted');
        if (!isVisible(file, unit.now)) throw noSuchFile(id);
        await unit.append(fileModel, id, [{ type: 'file.deleted', data: {} }]);
      });
    },
    async expire() {
      const due = await db
        .selectFrom('file')
        .select(['id', 'workspace_id'])
        .where('deleted_at', 'is', null)
        .where('expires_at', '<=', sql<Date>`clock_timestamp()`)
        .where(sql<boolean>`not ${isHeld('workspace_id')}`)
        .orderBy('expires_at')
        .limit(500)
        .execute();
      for (const { id, workspace_id: workspaceId } of due) {
        const metadata = continuedBy('maintenance');
        await eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
          const file = await unit.load(fileModel, id);
          if (!file || file.deleted_at !== null || isVisible(file, unit.now)) return;
          if (!(await checkHold(unit.tx, workspaceId)))
            await unit.append(fileModel, id, [{ type: 'file.expired', data: {} }]);
        });
      }
      return due.length;
    },
  };
}

const uploaded = ({ purpose, filename, blob, expiresAfterSeconds }: NewFile, now: Date): FileEvent => ({
  type: 'file.uploaded',
  data: {
    purpose,
    filename,
    bytes: blob.sizeBytes,
    sha256: blob.sha256,
    blob: blob.blob,
    expires_at:
      expiresAfterSeconds === null ? null : new Date(now.getTime() + expiresAfterSeconds * 1_000).toISOString(),
  },
});

/** By the database's clock, like every deadline. Under legal hold, no file expires. */
const notExpired = sql<boolean>`(
  expires_at is null or expires_at > clock_timestamp() or ${isHeld('workspace_id')})`;

function isVisible(file: FileRow, now: Date): boolean {
  return file.deleted_at === null && (file.expires_at === null || file.expires_at > now);
}

/** OpenAI's text (FILE-6). A file of another workspace gets the same answer. */
function noSuchFile(id: string): GatewayError {
  return new GatewayError('not_found', null, `No such File object: ${id}`, { param: 'id' });
}

function unknownCursor(after: string): GatewayError {
  const message = `There is no file '${after}'. Set 'after' to the ID of the last file on the previous page.`;
  return new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}

// A deleted file disappears from the API immediately. Its bytes are swept within about a day.
const sweptAfter = '25 hours';

/**
 * Throws quota_exceeded when the files and pending uploads of a workspace already have `bytesMax` in total, including
 * deleted files that were not swept yet, or would with `addedBytes`. Called before an upload, when its size is not
 * known, so concurrent uploads can exceed the limit.
 */
export async function admitUpload(
  db: Kysely<Database>,
  workspaceId: string,
  bytesMax: number,
  addedBytes = 1,
): Promise<void> {
  const { rows } = await sql<{ bytes: number }>`
    select (
      (select coalesce(sum(bytes), 0) from stored_bytes where workspace_id = ${workspaceId})
      + (select coalesce(sum(bytes), 0) from file
         where workspace_id = ${workspaceId} and deleted_at > (select clock_timestamp()) - ${sweptAfter}::interval)
      + (select coalesce(sum(bytes), 0) from upload where workspace_id = ${workspaceId} and status = 'pending' and expires_at > clock_timestamp())
    )::int8 as bytes`.execute(db);
  const bytes = rows[0]?.bytes ?? 0;
  if (bytes + addedBytes <= bytesMax) return;
  const added = addedBytes === 1 ? '' : `, and this upload adds ${addedBytes}`;
  const message = `The files of this workspace use ${bytes} of at most ${bytesMax} bytes${added}. Delete some files. Their space is freed within a day.`;
  throw new GatewayError('quota_exceeded', 'storage_quota_exceeded', message);
}

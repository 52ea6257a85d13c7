import { createDecipheriv } from 'node:crypto';
import { inflateRawSync } from 'node:zlib';
import { sql, type Kysely } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { bodyKeyOwner } from './body-recorder.ts';
import { bodyCipher, documentBytesMax } from './seal-bodies-worker.ts';

type Deps = { db: Kysely<Database>; blobs: Pick<BlobStore, 'readRange'>; secrets: Pick<Secrets, 'readOwned'> };

/** The recorded texts of one call; null for one that was not recorded. */
export type RecordedTexts = { request: string | null; response: string | null };

/** Reads the bodies that a row of the request log names. null: they were never written, or their time is over. */
export async function readRecordedBodies(
  { db, blobs, secrets }: Deps,
  workspaceId: string,
  reference: string,
): Promise<RecordedTexts | null> {
  const [id = '', place = ''] = reference.split('.');
  const row = await db
    .selectFrom('recorded_bodies')
    .select(['blob', 'offsets', 'key_owner'])
    .where('id', '=', id)
    .where('workspace_id', '=', workspaceId)
    .executeTakeFirst();
  const [start, end] = [row?.offsets[Number(place)], row?.offsets[Number(place) + 1]];
  if (row === undefined || start === undefined || end === undefined) return null;
  const members = await secrets.readOwned(db, { workspaceId, ownerId: row.key_owner });
  const key = members?.['key'];
  if (key === undefined) return null;
  try {
    const sealed = await blobs.readRange(row.blob, start, end - start);
    return openBodies(sealed, Buffer.from(key.reveal(), 'base64'), `${workspaceId}/${id}/${place}`);
  } catch (error) {
    if (error instanceof GatewayError && error.kind === 'not_found') return null;
    throw error;
  }
}

function openBodies(sealed: Buffer, key: Buffer, identity: string): RecordedTexts {
  const { name, nonceBytes, tagBytes } = bodyCipher;
  const decipher = createDecipheriv(name, key, sealed.subarray(0, nonceBytes), { authTagLength: tagBytes });
  decipher.setAAD(Buffer.from(identity));
  decipher.setAuthTag(sealed.subarray(nonceBytes, nonceBytes + tagBytes));
  const document = Buffer.concat([decipher.update(sealed.subarray(nonceBytes + tagBytes)), decipher.final()]);
  const text = inflateRawSync(document, { maxOutputLength: documentBytesMax }).toString();
  return JSON.parse(text) as RecordedTexts;
}

const sweptAtOnce = 500;

/**
 * Deletes recorded bodies whose time is over, and those of deleted workspaces, with their blobs and keys. Returns how many
 * blobs.
 */
export async function sweepRecordedBodies(db: Kysely<Database>, blobs: Pick<BlobStore, 'remove'>): Promise<number> {
  let swept = 0;
  for (;;) {
    const { rows } = await sql<{ blob: string }>`
      delete from recorded_bodies where id in (
        select id from recorded_bodies where expires_at < clock_timestamp() or workspace_id in (
          select id from resource where kind = 'workspace' and deleted_at is not null)
        limit ${sweptAtOnce}) returning blob`.execute(db);
    // A blob that is left behind by a crash here goes with the sweep of blobs.
    for (const { blob } of rows) await blobs.remove(blob);
    swept += rows.length;
    if (rows.length < sweptAtOnce) break;
  }
  // A process uses its key for a day before it takes another one.
  await sql`
    delete from secret where starts_with(owner_id, ${bodyKeyOwner})
      and created_at < clock_timestamp() - interval '3 days'
      and not exists (select from recorded_bodies where key_owner = owner_id)`.execute(db);
  return swept;
}

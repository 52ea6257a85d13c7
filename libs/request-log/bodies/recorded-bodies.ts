import { createDecipheriv } from 'node:crypto';
import { inflateRawSync } from 'node:zlib';
import { sql, type Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { deleteUnheld, isHeld } from '#libs/people/retention.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { bodyKeyOwner } from './body-recorder.ts';
import { bodyCipher, documentBytesMax } from './seal-bodies-worker.ts';

type Deps = { db: Kysely<Database>; blobs: Pick<BlobStore, 'readRange'>; secrets: Pick<Secrets, 'readOwned'> };

/** The recorded texts of one call; null for one that was not recorded. */
export type RecordedTexts = { request: string | null; response: string | null };

/** Reads the bodies that a row of the request log names. null: they were never written, or have expired. */
export type ReadBodies = (workspaceId: string, reference: string) => Promise<RecordedTexts | null>;

type Group = { blob: string; offsets: number[]; key: Buffer };

/** Neighbouring rows of one process have their bodies in the same blob. */
const groupsMax = 16;

/**
 * Remembers the last few blobs and their keys, and which blobs do not exist. Create one for each request or part of an export:
 * blobs are written, and deleted with their keys, while a process runs.
 */
export function createBodiesReader({ db, blobs, secrets }: Deps): ReadBodies {
  const groups = new LRUCache<string, Promise<Group | null>>({ max: groupsMax });

  async function findGroup(workspaceId: string, id: string): Promise<Group | null> {
    const row = await db
      .selectFrom('recorded_bodies')
      .select(['blob', 'offsets', 'key_owner'])
      .where('id', '=', id)
      .where('workspace_id', '=', workspaceId)
      .executeTakeFirst();
    if (row === undefined) return null;
    const key = (await secrets.readOwned(db, { workspaceId, ownerId: row.key_owner }))?.['key'];
    return key === undefined ? null : { ...row, key: Buffer.from(key.reveal(), 'base64') };
  }

  return async (workspaceId, reference) => {
    const [id = '', place = ''] = reference.split('.');
    const name = `${workspaceId}/${id}`;
    const found = groups.get(name) ?? findGroup(workspaceId, id);
    groups.set(name, found);
    const group = await found;
    const [start, end] = [group?.offsets[Number(place)], group?.offsets[Number(place) + 1]];
    if (group === null || start === undefined || end === undefined) return null;
    try {
      const sealed = await blobs.readRange(group.blob, start, end - start);
      return openBodies(sealed, group.key, `${workspaceId}/${id}/${place}`);
    } catch (error) {
      if (error instanceof GatewayError && error.kind === 'not_found') return null;
      throw error;
    }
  };
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
 * Deletes expired bodies, and those of deleted workspaces, with their blobs and keys, except under legal hold. Returns of
 * how many calls of each workspace bodies were deleted.
 */
export async function sweepRecordedBodies(
  db: Kysely<Database>,
  blobs: Pick<BlobStore, 'remove'>,
): Promise<Map<string, number>> {
  const swept = new Map<string, number>();
  for (;;) {
    const { rows } = await deleteUnheld(db, (tx) =>
      sql<{ blob: string; workspaceId: string; calls: number }>`
        delete from recorded_bodies where id in (
          select id from recorded_bodies where not ${isHeld('workspace_id')}
            and (expires_at < clock_timestamp() or workspace_id in (
              select id from resource where kind = 'workspace' and deleted_at is not null))
          limit ${sweptAtOnce})
        returning blob, workspace_id as "workspaceId", cardinality(offsets) - 1 as calls`.execute(tx),
    );
    // If the process crashes here, the sweep of blobs deletes the remaining blob.
    for (const { blob, workspaceId, calls } of rows) {
      await blobs.remove(blob);
      swept.set(workspaceId, (swept.get(workspaceId) ?? 0) + calls);
    }
    if (rows.length < sweptAtOnce) break;
  }
  // A process uses its key for a day before it makes another one.
  await sql`
    delete from secret where starts_with(owner_id, ${bodyKeyOwner})
      and created_at < clock_timestamp() - interval '3 days'
      and not exists (select from recorded_bodies where key_owner = owner_id)`.execute(db);
  return swept;
}

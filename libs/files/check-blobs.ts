import { sql, type Kysely } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { fileIsNeeded, findReferencedBlobs } from './referenced-blobs.ts';

/** A difference between the rows and the blob store. */
export type BlobFinding = {
  /** `missing`: a row needs it; `wrong_size`: its size differs from that in the row; `surplus`: no row needs it. */
  problem: 'missing' | 'wrong_size' | 'surplus';
  blob: string;
  /** The size in the store; for a missing blob, the size in the row. */
  sizeBytes: number;
  /** The record that needs the blob; null for a surplus one. */
  owner: { type: BlobOwner; id: string; workspaceId: string } | null;
};

/** `batch`: the results of its lines. */
type BlobOwner = 'file' | 'upload' | 'log_export' | 'recorded_bodies' | 'batch';

/** `size`: null if the row does not have it. */
type NeededBlob = { blob: string; size: number | null; type: BlobOwner; id: string };
type NeededRow = NeededBlob & { workspace: string; after: string };

const pageSize = 500;

/** Each page contains the rows after a text, which is unique, in its order. */
const pagesOf = [
  (after: string) => sql<NeededRow>`
    select blob, bytes as size, 'file' as type, id, workspace_id as workspace, id as after from file
    where id > ${after} and ${fileIsNeeded} order by file.id limit ${pageSize}`,
  (after: string) => sql<NeededRow>`
    select blob, bytes as size, 'upload' as type, upload_id as id, workspace_id as workspace, id as after
    from upload_part where id > ${after} order by upload_part.id limit ${pageSize}`,
  (after: string) => sql<NeededRow>`
    select blob, size_bytes as size, 'log_export' as type, export_id as id, workspace_id as workspace, blob as after
    from log_export_part where blob > ${after} order by blob limit ${pageSize}`,
  (after: string) => sql<NeededRow>`
    select blob, size_bytes as size, 'recorded_bodies' as type, id::text as id, workspace_id as workspace, blob as after
    from recorded_bodies where blob > ${after} order by blob limit ${pageSize}`,
  (after: string) => sql<NeededRow>`
    select distinct on (segment) segment as blob, null::bigint as size, 'batch' as type, batch_id as id,
      (select workspace_id from batch where batch.id = batch_id) as workspace, segment as after
    from batch_result where segment > ${after} order by segment limit ${pageSize}`,
];

/**
 * Compares the blobs that rows need with those in the store, by name and size, and returns the differences as they are
 * found. Memory use does not grow with the number of files. Blobs that are written or removed in the meantime can be
 * reported. `onChecked` gets the number of rows and blobs checked so far.
 */
export async function* checkBlobs(
  deps: { db: Kysely<Database>; blobs: Pick<BlobStore, 'sizeOf' | 'list'> },
  onChecked: (checked: number) => void,
): AsyncGenerator<BlobFinding> {
  let checked = 0;
  const noteChecked = (count: number): void => onChecked((checked += count));
  yield* findMissing(deps, noteChecked);
  yield* findSurplus(deps, noteChecked);
}

type Deps = Parameters<typeof checkBlobs>[0];

async function* findMissing({ db, blobs }: Deps, onChecked: (count: number) => void): AsyncGenerator<BlobFinding> {
  for (const readPage of pagesOf) {
    let after: string | undefined = '';
    while (after !== undefined) {
      const { rows: page }: { rows: NeededRow[] } = await readPage(after).execute(db);
      const sizes = await Promise.all(page.map(({ blob }) => blobs.sizeOf(blob)));
      for (const [index, { blob, size, type, id, workspace }] of page.entries()) {
        const found = sizes[index] ?? null;
        if (found === size || (found !== null && size === null)) continue;
        const problem = found === null ? 'missing' : 'wrong_size';
        yield { problem, blob, sizeBytes: found ?? size ?? 0, owner: { type, id, workspaceId: workspace } };
      }
      onChecked(page.length);
      after = page.length < pageSize ? undefined : page.at(-1)?.after;
    }
  }
}

async function* findSurplus({ db, blobs }: Deps, onChecked: (count: number) => void): AsyncGenerator<BlobFinding> {
  let group: { blob: string; sizeBytes: number }[] = [];
  const unneeded = async (): Promise<BlobFinding[]> => {
    const needed = await findReferencedBlobs(
      db,
      group.map(({ blob }) => blob),
    );
    const surplus = group.filter(({ blob }) => !needed.has(blob));
    onChecked(group.length);
    group = [];
    return surplus.map(({ blob, sizeBytes }) => ({ problem: 'surplus', blob, sizeBytes, owner: null }));
  };
  for await (const { blob, sizeBytes } of blobs.list()) {
    group.push({ blob, sizeBytes });
    if (group.length === pageSize) yield* await unneeded();
  }
  if (group.length > 0) yield* await unneeded();
}

import type { BlobEntry, SweepOptions } from './blob-store.ts';

const namesPerQuestion = 500;

/**
 * Removes the blobs from before this time that `findReferenced` does not return, and returns their number. It checks
 * many names per query, so that a store of a million files costs two thousand queries.
 */
export async function sweepBlobs(
  store: { list: () => AsyncIterable<BlobEntry>; removeAll: (blobs: readonly string[]) => Promise<void> },
  { beforeMs, findReferenced }: Pick<SweepOptions, 'findReferenced'> & { beforeMs: number },
): Promise<number> {
  let removed = 0;
  let candidates: string[] = [];
  const settle = async (): Promise<void> => {
    if (candidates.length === 0) return;
    const referenced = await findReferenced(candidates);
    const unreferenced = candidates.filter((blob) => !referenced.has(blob));
    if (unreferenced.length > 0) await store.removeAll(unreferenced);
    removed += unreferenced.length;
    candidates = [];
  };
  for await (const { blob, modifiedMs } of store.list()) {
    if (modifiedMs > beforeMs) continue;
    candidates.push(blob);
    if (candidates.length === namesPerQuestion) await settle();
  }
  await settle();
  return removed;
}

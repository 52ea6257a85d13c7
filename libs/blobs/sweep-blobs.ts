import type { BlobStore, SweepOptions } from './blob-store.ts';

const namesPerQuestion = 500;

/**
 * Removes the blobs older than `olderThanMs` that `findReferenced` does not return, and returns their number. It checks
 * many names per query, so that a store of a million files costs two thousand queries.
 */
export async function sweepBlobs(
  store: Pick<BlobStore, 'list' | 'remove'>,
  options: SweepOptions & { nowMs: number },
): Promise<number> {
  let removed = 0;
  let candidates: string[] = [];
  const settle = async (): Promise<void> => {
    if (candidates.length === 0) return;
    const referenced = await options.findReferenced(candidates);
    for (const blob of candidates) {
      if (referenced.has(blob)) continue;
      await store.remove(blob);
      removed += 1;
    }
    candidates = [];
  };
  for await (const { blob, modifiedMs } of store.list()) {
    if (modifiedMs > options.nowMs - options.olderThanMs) continue;
    candidates.push(blob);
    if (candidates.length === namesPerQuestion) await settle();
  }
  await settle();
  return removed;
}

import { hashLeaf } from '#libs/seal/merkle-tree.ts';
import { toLogId } from '../row/log-id.ts';
import { toLeaf, type SealedRow } from './sealed-calls.ts';

/** `missing`: leaves without a record. `after`: the previous record; null if there is none. */
export type LeafDifference =
  | { kind: 'changed' | 'added'; id: string }
  | { kind: 'missing'; count: number; after: string | null };

/**
 * Yields how records differ from the hashes that were sealed, both in the order of their IDs. A record that was changed has
 * another hash than the leaf at its place.
 */
export async function* compareLeaves(
  hashes: Buffer,
  pages: AsyncIterable<readonly SealedRow[]>,
): AsyncGenerator<LeafDifference> {
  const places = new Map(Array.from(splitHashes(hashes), (hash, index) => [hash.toString('base64'), index]));
  let [next, after] = [0, null as string | null];
  let unmatched: string[] = [];
  function* upTo(index: number): Generator<LeafDifference> {
    const open = index - next;
    for (const [at, id] of unmatched.entries()) yield { kind: at < open ? 'changed' : 'added', id };
    if (unmatched.length < open) yield { kind: 'missing', count: open - unmatched.length, after };
    unmatched = [];
  }
  for await (const rows of pages) {
    for (const row of rows) {
      const index = places.get(hashLeaf(toLeaf(row)).toString('base64'));
      if (index === undefined || index < next) unmatched.push(toLogId(row.id));
      else {
        yield* upTo(index);
        [next, after] = [index + 1, toLogId(row.id)];
      }
    }
  }
  yield* upTo(hashes.length / 32);
}

export function* splitHashes(hashes: Buffer): Generator<Buffer> {
  for (let at = 0; at < hashes.length; at += 32) yield hashes.subarray(at, at + 32);
}

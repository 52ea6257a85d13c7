import { wordsPerDigest } from '../slice-task.ts';

const shardCount = 256;
const capacityInitial = 8;

/**
 * A set of 16-byte digests in plain memory, without an object per entry: tables of 16-byte slots that are 3/8 to 3/4 full. It
 * has 256 shards that grow one by one, because growing one table of millions would block the event loop for a second.
 */
export type DigestSet = {
  /**
   * Adds the digest at word `at` of `digests`. Returns false when the set already contains it. Throws for a digest of
   * all zeros.
   */
  add(digests: Uint32Array, at: number): boolean;
  has(digests: Uint32Array, at: number): boolean;
  readonly size: number;
};

type Shard = { words: Uint32Array; entries: number };

export function createDigestSet(): DigestSet {
  const shards: Shard[] = Array.from({ length: shardCount }, () => ({
    words: new Uint32Array(capacityInitial * wordsPerDigest),
    entries: 0,
  }));
  let size = 0;

  const shardOf = (digests: Uint32Array, at: number): Shard => {
    const shard = shards[(digests[at] ?? 0) & (shardCount - 1)];
    if (shard === undefined) throw new Error('no such shard');
    return shard;
  };

  return {
    has: (digests, at) => find(shardOf(digests, at).words, digests, at).found,
    add(digests, at) {
      const shard = shardOf(digests, at);
      const { found, slot } = find(shard.words, digests, at);
      if (found) return false;
      if (isEmpty(digests, at)) throw new Error('a digest of zeros marks an empty slot');
      copy(digests, at, shard.words, slot);
      shard.entries += 1;
      size += 1;
      if (shard.entries * wordsPerDigest * 4 > shard.words.length * 3) shard.words = grow(shard.words);
      return true;
    },
    get size() {
      return size;
    },
  };
}

/** The slot of the digest, or the empty slot where it belongs. Tables are never full. */
function find(words: Uint32Array, digests: Uint32Array, at: number): { found: boolean; slot: number } {
  const mask = words.length - 1;
  let slot = ((digests[at + 1] ?? 0) * wordsPerDigest) & mask;
  while (!isEmpty(words, slot)) {
    if (isSame(words, slot, digests, at)) return { found: true, slot };
    slot = (slot + wordsPerDigest) & mask;
  }
  return { found: false, slot };
}

function grow(words: Uint32Array): Uint32Array {
  const larger = new Uint32Array(words.length * 2);
  for (let at = 0; at < words.length; at += wordsPerDigest)
    if (!isEmpty(words, at)) copy(words, at, larger, find(larger, words, at).slot);
  return larger;
}

function isEmpty(words: Uint32Array, at: number): boolean {
  return words[at] === 0 && words[at + 1] === 0 && words[at + 2] === 0 && words[at + 3] === 0;
}

function isSame(left: Uint32Array, at: number, right: Uint32Array, from: number): boolean {
  return (
    left[at] === right[from] &&
    left[at + 1] === right[from + 1] &&
    left[at + 2] === right[from + 2] &&
    left[at + 3] === right[from + 3]
  );
}

function copy(from: Uint32Array, at: number, to: Uint32Array, slot: number): void {
  for (let word = 0; word < wordsPerDigest; word += 1) to[slot + word] = from[at + word] ?? 0;
}

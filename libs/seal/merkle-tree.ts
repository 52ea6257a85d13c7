import { hash } from 'node:crypto';

// The hash tree of RFC 6962, section 2.1, over SHA-256. Sizes and indexes are numbers below 2^53, so halves are computed
// with `Math.floor` instead of bit operations, which have 32 bits.

const digest = (bytes: Buffer): Buffer => hash('sha256', bytes, 'buffer');

const half = (value: number): number => Math.floor(value / 2);
const isOdd = (value: number): boolean => value % 2 === 1;

/** The hash of an empty tree. */
export const emptyRoot: Buffer = digest(Buffer.alloc(0));

const leafPrefix = Buffer.of(0);

export const hashLeaf = (entry: Uint8Array): Buffer => digest(Buffer.concat([leafPrefix, entry]));

const node = Buffer.alloc(65, 1);

export function hashNode(left: Uint8Array, right: Uint8Array): Buffer {
  node.set(left, 1);
  node.set(right, 33);
  return digest(node);
}

/** The root of a tree over consecutive hashes of 32 bytes, of which there is at least one. */
export function rootOfHashes(hashes: Buffer): Buffer {
  let level = Array.from({ length: hashes.length / 32 }, (_hash, index) =>
    hashes.subarray(index * 32, index * 32 + 32),
  );
  // Pairing from the left and moving an odd last node up gives the same tree as RFC 6962's split.
  while (level.length > 1) {
    const next: Buffer[] = [];
    for (let index = 0; index + 1 < level.length; index += 2) {
      next.push(hashNode(level[index] as Buffer, level[index + 1] as Buffer));
    }
    if (level.length % 2 === 1) next.push(level.at(-1) as Buffer);
    level = next;
  }
  return level[0] as Buffer;
}

/** Computes the root of a tree from its leaf hashes, one after the other, with one hash for each level in memory. */
export function createRunningRoot() {
  const subtrees: Uint8Array[] = [];
  let count = 0;
  return {
    add(leafHash: Uint8Array): void {
      let subtree = leafHash;
      for (let rest = count; isOdd(rest); rest = half(rest)) subtree = hashNode(subtrees.pop() as Uint8Array, subtree);
      subtrees.push(subtree);
      count += 1;
    },
    root: (): Uint8Array =>
      subtrees.reduceRight<Uint8Array | undefined>(
        (right, left) => (right === undefined ? left : hashNode(left, right)),
        undefined,
      ) ?? emptyRoot,
  };
}

/** The largest power of two below `size`, which is at least 2: where RFC 6962 splits a tree. */
function splitPoint(size: number): number {
  let power = 1;
  while (power * 2 < size) power *= 2;
  return power;
}

/** Returns the root over the leaves from `start` to before `end`. */
type RangeRoot = (start: number, end: number) => Promise<Buffer>;

/** The hash of this range of leaves in a tree. `perfectRoot`: of a range that is a complete subtree. */
export async function rangeRoot(perfectRoot: RangeRoot, start: number, end: number): Promise<Buffer> {
  const size = end - start;
  if (size === 1) return await perfectRoot(start, end);
  const split = splitPoint(size);
  if (split * 2 === size) return await perfectRoot(start, end);
  const [left, right] = await Promise.all([
    perfectRoot(start, start + split),
    rangeRoot(perfectRoot, start + split, end),
  ]);
  return hashNode(left, right);
}

/** The proof that the leaf `index` is in a tree of `size` leaves (section 2.1.1), from the leaf's sibling upwards. */
export async function inclusionProof(root: RangeRoot, index: number, size: number): Promise<Buffer[]> {
  const siblings: Promise<Buffer>[] = [];
  for (let start = 0, end = size; end - start > 1;) {
    const middle = start + splitPoint(end - start);
    siblings.unshift(index < middle ? root(middle, end) : root(start, middle));
    if (index < middle) end = middle;
    else start = middle;
  }
  return await Promise.all(siblings);
}

/**
 * Computes the proof that the leaf `index` is in a tree of `size` leaves from the hashes of all leaves, one after the other.
 * Keeps some hashes for each level in memory.
 */
export function createRunningProof(index: number, size: number) {
  const siblings: { start: number; end: number; root: ReturnType<typeof createRunningRoot> }[] = [];
  for (let start = 0, end = size; end - start > 1;) {
    const middle = start + splitPoint(end - start);
    const isLeft = index < middle;
    siblings.unshift({ ...(isLeft ? { start: middle, end } : { start, end: middle }), root: createRunningRoot() });
    if (isLeft) end = middle;
    else start = middle;
  }
  let count = 0;
  return {
    add(leafHash: Uint8Array): void {
      siblings.find(({ start, end }) => count >= start && count < end)?.root.add(leafHash);
      count += 1;
    },
    proof: (): Buffer[] => siblings.map(({ root }) => Buffer.from(root.root())),
  };
}

/** The proof that a tree of `size` leaves continues its first `oldSize` leaves (section 2.1.2); 0 < oldSize <= size. */
export async function consistencyProof(root: RangeRoot, oldSize: number, size: number): Promise<Buffer[]> {
  const hashes: Promise<Buffer>[] = [];
  let start = 0;
  let end = size;
  while (end !== oldSize) {
    const middle = start + splitPoint(end - start);
    hashes.unshift(oldSize <= middle ? root(middle, end) : root(start, middle));
    if (oldSize <= middle) end = middle;
    else start = middle;
  }
  // The reader of the proof knows the root of the whole old tree, but not that of a part.
  if (start > 0) hashes.unshift(root(start, end));
  return await Promise.all(hashes);
}

/** Whether a proof shows that a leaf with this hash is at `index` (RFC 9162, section 2.1.3.2). */
export function isIncluded(
  leafHash: Buffer,
  index: number,
  proof: readonly Buffer[],
  { size, root }: { size: number; root: Buffer },
): boolean {
  if (index >= size) return false;
  let [first, last, found] = [index, size - 1, leafHash];
  for (const sibling of proof) {
    if (last === 0) return false;
    const isRight = isOdd(first) || first === last;
    found = isRight ? hashNode(sibling, found) : hashNode(found, sibling);
    if (isRight) [first, last] = skipSingles(first, last);
    [first, last] = [half(first), half(last)];
  }
  return last === 0 && found.equals(root);
}

/** Moves up as long as the last node has no sibling, and so stays unchanged. */
function skipSingles(first: number, last: number): [number, number] {
  return isOdd(first) || first === 0 ? [first, last] : skipSingles(half(first), half(last));
}

export type TreeHead = { size: number; root: Buffer };

/** Whether a proof shows that the newer tree continues the older one (RFC 9162, section 2.1.4.2). */
export function isConsistent(older: TreeHead, newer: TreeHead, proof: readonly Buffer[]): boolean {
  if (older.size > newer.size) return false;
  if (older.size === newer.size) return proof.length === 0 && older.root.equals(newer.root);
  if (older.size === 0) return proof.length === 0 && older.root.equals(emptyRoot);
  let [first, last] = [older.size - 1, newer.size - 1];
  while (isOdd(first)) [first, last] = [half(first), half(last)];
  // The older tree is a complete subtree of the newer one.
  const hashes = first === 0 ? [older.root, ...proof] : [...proof];
  const start = hashes.shift();
  if (start === undefined) return false;
  let [oldRoot, newRoot] = [start, start];
  for (const sibling of hashes) {
    if (last === 0) return false;
    if (isOdd(first) || first === last) {
      oldRoot = hashNode(sibling, oldRoot);
      newRoot = hashNode(sibling, newRoot);
      [first, last] = skipSingles(first, last);
    } else {
      newRoot = hashNode(newRoot, sibling);
    }
    [first, last] = [half(first), half(last)];
  }
  return last === 0 && oldRoot.equals(older.root) && newRoot.equals(newer.root);
}

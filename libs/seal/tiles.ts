import { LRUCache } from 'lru-cache';
import {
  consistencyProof,
  emptyRoot,
  hashLeaf,
  hashNode,
  inclusionProof,
  rangeRoot,
  rootOfHashes,
} from './merkle-tree.ts';

// The files of a log in the format of https://c2sp.org/tlog-tiles: tiles of 256 hashes, and bundles of 256 entries.

const tileWidth = 256;
const hashBytes = 32;

/** The maximum size of an entry, whose length has 16 bits. */
const entryBytesMax = 65_535;

/** Where a tree can continue to grow: its size, and what its last, partial tiles and bundle contain. */
export type Edge = {
  size: number;
  /** The hashes of the partial tile of each level, from the leaves upwards. */
  levels: readonly Buffer[];
  /** The content of the partial bundle of entries. */
  bundle: Buffer;
};

export const emptyEdge: Edge = { size: 0, levels: [], bundle: Buffer.alloc(0) };

export type TreeFile = { path: string; bytes: Buffer };

/**
 * Appends entries to a tree. Returns its new edge and the files to write. They depend only on the entries: writing the same
 * entries again, in other portions, gives the same files.
 */
export function growTree(edge: Edge, entries: readonly Buffer[]): { edge: Edge; files: TreeFile[] } {
  const files: TreeFile[] = [];
  const levels = edge.levels.map((hashes) => [hashes]);
  let bundle = [edge.bundle];
  let size = edge.size;
  const changed = new Set<number>();

  const push = (level: number, digest: Buffer, index: number): void => {
    (levels[level] ??= []).push(digest);
    changed.add(level);
    if ((index + 1) % tileWidth !== 0) return;
    const bytes = Buffer.concat(levels[level]);
    levels[level] = [];
    const tile = Math.floor(index / tileWidth);
    files.push({ path: tilePath(level, tile, tileWidth), bytes });
    push(level + 1, rootOfHashes(bytes), tile);
  };

  for (const entry of entries) {
    if (entry.length > entryBytesMax) throw new RangeError(`an entry of ${entry.length} bytes is too long`);
    const length = Buffer.alloc(2);
    length.writeUInt16BE(entry.length);
    bundle.push(length, entry);
    push(0, hashLeaf(entry), size);
    size += 1;
    if (size % tileWidth !== 0) continue;
    files.push({ path: tilePath('entries', size / tileWidth - 1, tileWidth), bytes: Buffer.concat(bundle) });
    bundle = [];
  }
  const next: Edge = { size, levels: levels.map((hashes) => Buffer.concat(hashes)), bundle: Buffer.concat(bundle) };
  for (const level of changed) {
    const bytes = next.levels[level];
    if (bytes !== undefined && bytes.length > 0) files.push({ path: pathAt(level, size, Infinity).path, bytes });
  }
  if (next.bundle.length > 0 && entries.length > 0) {
    files.push({ path: tilePath('entries', Math.floor(size / tileWidth), size % tileWidth), bytes: next.bundle });
  }
  return { edge: next, files };
}

/** The root of the tree with this edge. */
export function rootOfEdge({ levels }: Edge): Buffer {
  let root: Buffer | undefined;
  for (const hashes of levels) {
    // The complete subtrees of a partial tile, from the smallest on the right to the largest on the left.
    for (let count = hashes.length / hashBytes, width = 1; count > 0; width *= 2) {
      if (Math.floor(count / width) % 2 === 0) continue;
      const subtree = rootOfHashes(hashes.subarray((count - width) * hashBytes, count * hashBytes));
      root = root === undefined ? subtree : hashNode(subtree, root);
      count -= width;
    }
  }
  return root ?? emptyRoot;
}

/** The path of a tile, or of a bundle of entries, with this many hashes or entries. */
export function tilePath(level: number | 'entries', index: number, width: number): string {
  const digits = String(index);
  const groups = digits.padStart(Math.ceil(digits.length / 3) * 3, '0').match(/.{3}/g) ?? [];
  const place = groups.map((group, at) => (at === groups.length - 1 ? group : `x${group}`)).join('/');
  return `tile/${level}/${place}${width === tileWidth ? '' : `.p/${width}`}`;
}

/** Whether a text is the path of a tile or bundle. */
export const isTilePath = (path: string): boolean =>
  /^tile\/(?:\d|[1-5]\d|6[0-3]|entries)\/(?:x\d{3}\/){0,5}\d{3}(?:\.p\/(?:[1-9]|[1-9]\d|1\d\d|2[0-4]\d|25[0-5]))?$/.test(
    path,
  );

/** The folder of the partial tiles that a full tile replaces; null for the path of a partial one. */
export const partialFolder = (path: string): string | null => (path.includes('.p/') ? null : `${path}.p`);

/** The path of the full tile that replaces a partial one. */
export const fullPath = (path: string): string => path.replace(/\.p\/\d+$/, '');

/** The last tile of a level in a tree of `size` leaves, or the earlier one with the hash number `index`. */
function pathAt(level: number, size: number, index: number): { path: string; width: number; offset: number } {
  const hashes = Math.floor(size / tileWidth ** level);
  const tile = Math.floor(Math.min(index, hashes) / tileWidth);
  const width = Math.min(tileWidth, hashes - tile * tileWidth);
  return { path: tilePath(level, tile, width), width, offset: index - tile * tileWidth };
}

/** Reads a file of a tree; null if there is none. */
export type ReadFile = (path: string) => Promise<Buffer | null>;

/** Proofs about a tree of `size` leaves, made from its tiles. They throw if a tile is missing or has another size. */
export type TreeProofs = {
  root: () => Promise<Buffer>;
  inclusion: (index: number) => Promise<Buffer[]>;
  consistency: (oldSize: number) => Promise<Buffer[]>;
};

/** Tiles that are kept in memory, of 8 KiB each. */
const tilesKept = 2_048;

export function createTreeProofs(read: ReadFile, size: number): TreeProofs {
  const tiles = new LRUCache<string, Promise<Buffer>>({ max: tilesKept });
  const readTile = (path: string, width: number): Promise<Buffer> => {
    const known = tiles.get(path) ?? readWhole(read, path, width);
    tiles.set(path, known);
    return known;
  };
  const perfectRoot = async (start: number, end: number): Promise<Buffer> => {
    let [level, first, count] = [0, start, end - start];
    // Each level of tiles is eight levels of the tree.
    for (; count >= tileWidth; level += 1) [first, count] = [first / tileWidth, count / tileWidth];
    const { path, width, offset } = pathAt(level, size, first);
    const tile = await readTile(path, width);
    return rootOfHashes(tile.subarray(offset * hashBytes, (offset + count) * hashBytes));
  };
  const root = (start: number, end: number): Promise<Buffer> => rangeRoot(perfectRoot, start, end);
  return {
    root: async () => (size === 0 ? emptyRoot : await root(0, size)),
    inclusion: async (index) => await inclusionProof(root, index, size),
    consistency: async (oldSize) => (oldSize === 0 ? [] : await consistencyProof(root, oldSize, size)),
  };
}

/** The first hashes of a tile. A partial tile can have been replaced by the full one. */
async function readWhole(read: ReadFile, path: string, width: number): Promise<Buffer> {
  const bytes = (await read(path)) ?? (await read(fullPath(path)));
  if (bytes === null) throw new Error(`The log has no ${path}.`);
  const isWhole = bytes.length === width * hashBytes || bytes.length === tileWidth * hashBytes;
  if (!isWhole) throw new Error(`${path} has ${bytes.length} bytes instead of ${width * hashBytes}.`);
  return bytes.subarray(0, width * hashBytes);
}

/** The entries of a bundle. Throws if its last entry is cut off. */
export function parseBundle(bytes: Buffer): Buffer[] {
  const entries: Buffer[] = [];
  for (let at = 0; at < bytes.length;) {
    const start = at + 2;
    const end = start <= bytes.length ? start + bytes.readUInt16BE(at) : Infinity;
    if (end > bytes.length) throw new Error(`the bundle ends within its entry ${entries.length}`);
    entries.push(bytes.subarray(start, end));
    at = end;
  }
  return entries;
}

/** The edge of a tree from its hashes of all levels, in one piece. */
export function edgeAt({ size, hashes, bundle }: { size: number; hashes: Buffer; bundle: Buffer }): Edge {
  const levels: Buffer[] = [];
  let at = 0;
  for (let count = size; count > 0; count = Math.floor(count / tileWidth)) {
    const end = at + (count % tileWidth) * hashBytes;
    levels.push(hashes.subarray(at, end));
    at = end;
  }
  return { size, levels, bundle };
}

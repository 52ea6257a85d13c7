import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import { createTreeProofs, parseBundle, tilePath, type TreeProofs } from '#libs/seal/tiles.ts';
import type { OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { CliError } from '../server/cli-error.ts';

/** Reads the first hashes or entries of a tile. A partial tile can have been replaced by the full one. */
export async function readTile(folder: BlobFolder, tree: number, at: Tile): Promise<Buffer> {
  const exact = await folder.read(`${tree}/${tilePath(at.level, at.index, at.width)}`);
  const bytes = exact ?? (await folder.read(`${tree}/${tilePath(at.level, at.index, 256)}`));
  if (bytes === null)
    throw new CliError(`The blob store lacks a part of tree ${tree}.`, { hint: 'Run: sluice check seal' });
  if (at.level !== 'entries') return bytes.subarray(0, at.width * 32);
  const length = parseBundle(bytes)
    .slice(0, at.width)
    .reduce((sum, entry) => sum + 2 + entry.length, 0);
  return bytes.subarray(0, length);
}

export type Tile = { level: number | 'entries'; index: number; width: number };

/** The entries of a tree from an index on, 256 at a time. */
export async function* readEntries(
  folder: BlobFolder,
  { tree, size }: OpenCheckpoint,
  from = 0,
): AsyncGenerator<{ index: number; entry: Buffer }[]> {
  for (const tile of tilesAt('entries', size, Math.floor(from / 256))) {
    const entries = parseBundle(await readTile(folder, tree, tile));
    yield entries
      .map((entry, at) => ({ index: tile.index * 256 + at, entry }))
      .slice(Math.max(0, from - tile.index * 256));
  }
}

/** The entry at an index of a tree; undefined if the tree ends before it. */
export async function readEntry(folder: BlobFolder, checkpoint: OpenCheckpoint, index: number) {
  for await (const [first] of readEntries(folder, checkpoint, index)) return first?.entry;
  return undefined;
}

function* tilesAt(level: Tile['level'], count: number, from = 0): Generator<Tile> {
  for (let index = from; index * 256 < count; index += 1)
    yield { level, index, width: Math.min(256, count - index * 256) };
}

export function* allTiles(size: number): Generator<Tile> {
  yield* tilesAt('entries', size);
  for (let level = 0, count = size; count > 0; level += 1, count = Math.floor(count / 256))
    yield* tilesAt(level, count);
}

export const treeProofs = (folder: BlobFolder, { tree, size }: OpenCheckpoint): TreeProofs =>
  createTreeProofs(async (file) => await folder.read(`${tree}/${file}`), size);

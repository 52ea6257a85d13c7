import { hash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createRunningProof, createRunningRoot, hashLeaf, isConsistent, isIncluded } from './merkle-tree.ts';
import {
  createTreeProofs,
  edgeAt,
  emptyEdge,
  growTree,
  isTilePath,
  parseBundle,
  rootOfEdge,
  tilePath,
  type Edge,
} from './tiles.ts';

const sha256 = (...parts: Buffer[]): Buffer => hash('sha256', Buffer.concat(parts), 'buffer');

/** MTH as RFC 6962, section 2.1, defines it. */
function naiveRoot(entries: readonly Buffer[]): Buffer {
  if (entries.length === 0) return sha256();
  if (entries.length === 1) return sha256(Buffer.of(0), entries[0] as Buffer);
  let split = 1;
  while (split * 2 < entries.length) split *= 2;
  return sha256(Buffer.of(1), naiveRoot(entries.slice(0, split)), naiveRoot(entries.slice(split)));
}

const entriesUpTo = (count: number): Buffer[] =>
  Array.from({ length: count }, (_entry, index) => Buffer.from(`entry ${index}`));
const all = entriesUpTo(70_000);

/** A log in memory that grew in portions of these sizes. */
function grow(portions: readonly number[]): { edge: Edge; files: Map<string, Buffer>; size: number } {
  const files = new Map<string, Buffer>();
  let edge = emptyEdge;
  for (const portion of portions) {
    const grown = growTree(edge, all.slice(edge.size, edge.size + portion));
    const { size, levels, bundle } = grown.edge;
    // As it is stored between two portions.
    edge = edgeAt({ size, hashes: Buffer.concat(levels), bundle });
    for (const { path, bytes } of grown.files) files.set(path, bytes);
  }
  return { edge, files, size: edge.size };
}

const proofsOf = ({ files, size }: { files: Map<string, Buffer>; size: number }) =>
  createTreeProofs((path) => Promise.resolve(files.get(path) ?? null), size);

const portions = fc.array(fc.oneof(fc.integer({ min: 0, max: 5 }), fc.integer({ min: 0, max: 700 })), {
  minLength: 1,
  maxLength: 6,
});

test('a tree that grows in portions has the root of RFC 6962, in memory and in its tiles', async () => {
  await fc.assert(
    fc.asyncProperty(portions, async (sizes) => {
      const log = grow(sizes);
      const root = naiveRoot(all.slice(0, log.size));
      expect(rootOfEdge(log.edge)).toEqual(root);
      expect(await proofsOf(log).root()).toEqual(root);
    }),
    { numRuns: 60 },
  );
});

test('a root can be computed leaf by leaf', () => {
  const running = createRunningRoot();
  for (const [index, entry] of all.slice(0, 300).entries()) {
    expect(Buffer.from(running.root())).toEqual(naiveRoot(all.slice(0, index)));
    running.add(hashLeaf(entry));
  }
});

test('the files of a tree do not depend on the portions', () => {
  const atOnce = grow([1_500]);
  const inParts = grow([1, 254, 1, 0, 700, 544]);
  for (const [path, bytes] of atOnce.files) expect([path, inParts.files.get(path)]).toEqual([path, bytes]);
  expect(inParts.edge).toEqual(atOnce.edge);
});

test('every leaf has a proof, which proves no other leaf, index or tree', async () => {
  const property = async (sizes: readonly number[], place: number): Promise<void> => {
    const log = grow(sizes);
    fc.pre(log.size > 1);
    const index = place % log.size;
    const head = { size: log.size, root: rootOfEdge(log.edge) };
    const leaf = hashLeaf(all[index] as Buffer);
    const proof = await proofsOf(log).inclusion(index);
    expect(isIncluded(leaf, index, proof, head)).toBe(true);
    expect(isIncluded(hashLeaf(Buffer.from('other')), index, proof, head)).toBe(false);
    expect(isIncluded(leaf, (index + 1) % log.size, proof, head)).toBe(false);
    expect(isIncluded(leaf, index, proof.slice(1), head)).toBe(false);
    expect(isIncluded(leaf, index, [...proof, leaf], head)).toBe(false);
    for (const at of proof.keys()) expect(isIncluded(leaf, index, withFlippedBit(proof, at), head)).toBe(false);
  };
  await fc.assert(fc.asyncProperty(portions, fc.nat(), property), { numRuns: 60 });
});

test('every earlier tree has a proof that the tree continues it, which proves no other tree', async () => {
  const property = async (sizes: readonly number[], place: number): Promise<void> => {
    const log = grow(sizes);
    fc.pre(log.size > 1);
    const size = 1 + (place % (log.size - 1));
    const older = { size, root: naiveRoot(all.slice(0, size)) };
    const newer = { size: log.size, root: rootOfEdge(log.edge) };
    const proof = await proofsOf(log).consistency(size);
    expect(isConsistent(older, newer, proof)).toBe(true);
    expect(isConsistent({ ...older, root: hashLeaf(older.root) }, newer, proof)).toBe(false);
    expect(isConsistent(older, { ...newer, root: hashLeaf(newer.root) }, proof)).toBe(false);
    expect(isConsistent({ ...older, size: size + 1 }, newer, proof)).toBe(false);
    expect(isConsistent(newer, older, proof)).toBe(false);
    for (const at of proof.keys()) expect(isConsistent(older, newer, withFlippedBit(proof, at))).toBe(false);
  };
  await fc.assert(fc.asyncProperty(portions, fc.nat(), property), { numRuns: 60 });
});

const withFlippedBit = (proof: readonly Buffer[], at: number): Buffer[] =>
  proof.map((each, index) => (index === at ? Buffer.concat([Buffer.of((each[0] ?? 0) ^ 1), each.subarray(1)]) : each));

describe('the files of a tree of 70,000 entries', () => {
  const log = grow([69_999, 1]);

  test('are the tiles of tlog-tiles', () => {
    const tiles = [...log.files].filter(([path]) => !path.startsWith('tile/entries'));
    const full = tiles.filter(([, bytes]) => bytes.length === 8_192).map(([path]) => path);
    expect(full.filter((path) => path.startsWith('tile/0/'))).toHaveLength(273);
    expect(full.filter((path) => path.startsWith('tile/1/'))).toEqual(['tile/1/000']);
    for (const [path, width] of [
      ['tile/0/273.p/112', 112],
      ['tile/1/001.p/17', 17],
      ['tile/2/000.p/1', 1],
    ] as const) {
      expect(log.files.get(path)?.length).toBe(width * 32);
    }
    expect([...log.files.keys()].filter((path) => !isTilePath(path))).toEqual([]);
  });

  test('contain the entries', () => {
    const bundle = (path: string): Buffer[] => parseBundle(log.files.get(path) ?? Buffer.alloc(0));
    expect(bundle('tile/entries/272')).toEqual(all.slice(272 * 256, 273 * 256));
    expect(bundle('tile/entries/273.p/112')).toEqual(all.slice(273 * 256));
    expect(() => parseBundle(Buffer.of(0, 3, 1))).toThrow('the bundle ends within its entry 0');
  });

  test('prove entries even after a partial tile was replaced by the full one', async () => {
    const smaller = grow([300]);
    const files = new Map([...log.files].filter(([path]) => !path.includes('.p/')));
    const head = { size: 300, root: rootOfEdge(smaller.edge) };
    const tile = log.files.get('tile/1/000') as Buffer;
    files.set('tile/1/000.p/1', tile.subarray(0, 32));
    const proof = await proofsOf({ files, size: 300 }).inclusion(299);
    expect(isIncluded(hashLeaf(all[299] as Buffer), 299, proof, head)).toBe(true);
  });

  test('are missed if they are not there', async () => {
    await expect(proofsOf({ files: new Map(), size: 3 }).root()).rejects.toThrow('The log has no tile/0/000.p/3');
    const short = new Map([['tile/0/000.p/3', Buffer.alloc(64)]]);
    await expect(proofsOf({ files: short, size: 3 }).root()).rejects.toThrow('has 64 bytes instead of 96');
  });
});

test('paths are those of the specification', () => {
  expect(tilePath(0, 1_234_067, 256)).toBe('tile/0/x001/x234/067');
  expect(tilePath('entries', 0, 17)).toBe('tile/entries/000.p/17');
  expect(tilePath(1, 1_000, 1)).toBe('tile/1/x001/000.p/1');
  for (const path of [
    'tile/64/000',
    'tile/00/000',
    'tile/0/00',
    'tile/0/000.p/256',
    'tile/0/000.p/0',
    'tile/0/../x',
    'x/0/000',
  ]) {
    expect([path, isTilePath(path)]).toEqual([path, false]);
  }
});

test('a proof that is computed from leaves one after the other is that of the tiles', async () => {
  const sizes = fc.integer({ min: 1, max: 700 }).chain((size) => fc.tuple(fc.nat(size - 1), fc.constant(size)));
  await fc.assert(
    fc.asyncProperty(sizes, async ([index, size]) => {
      const running = createRunningProof(index, size);
      for (const entry of all.slice(0, size)) running.add(hashLeaf(entry));
      expect(running.proof()).toEqual(await proofsOf(grow([size])).inclusion(index));
    }),
    { numRuns: 50 },
  );
});

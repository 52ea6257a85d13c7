import { generateKeyPairSync } from 'node:crypto';
import { beforeEach, expect, test } from 'vitest';
import { formatCheckpoint } from './checkpoint.ts';
import { successionEntry } from './entries.ts';
import { followLog, type LogSource } from './follow-log.ts';
import { createSigner, signNote } from './signed-note.ts';
import { emptyEdge, growTree, rootOfEdge, type Edge } from './tiles.ts';
import { treeOrigin } from './tree-names.ts';

const signer = createSigner('log', generateKeyPairSync('ed25519').privateKey);

/** A log in memory. Its trees have the numbers 1, 2, … */
let trees: Map<string, Buffer>[];
let edge: Edge;
beforeEach(() => {
  trees = [new Map()];
  edge = emptyEdge;
});

function append(...entries: Buffer[]): void {
  const grown = growTree(edge, entries);
  const files = trees.at(-1) as Map<string, Buffer>;
  for (const { path, bytes } of grown.files) files.set(path, bytes);
  edge = grown.edge;
  const origin = treeOrigin('log', trees.length);
  const note = signNote(formatCheckpoint({ origin, size: edge.size, root: rootOfEdge(edge) }), [signer]);
  files.set('checkpoint', Buffer.from(note));
}

function beginTree(...first: Buffer[]): void {
  trees.push(new Map());
  edge = emptyEdge;
  append(...first);
}

const source: LogSource = (path, tree = trees.length) => Promise.resolve(trees[tree - 1]?.get(path) ?? null);
const entries = (name: string, count: number): Buffer[] =>
  Array.from({ length: count }, (_entry, at) => Buffer.from(`${name} ${at}`));
const follow = async (held: Awaited<ReturnType<typeof followLog>> | null = null) =>
  await followLog(source, [signer], held?.newest ?? null);
const checkpoint = (): string => String(trees.at(-1)?.get('checkpoint'));

test('a log that grows is followed', async () => {
  append(...entries('a', 3));
  let held = await follow();
  for (const count of [0, 1, 300, 0, 700]) {
    append(...entries('b', count));
    held = await follow(held);
    expect(held).toMatchObject({ gaps: [], newest: { tree: 1, size: edge.size } });
  }
});

test('a log that was changed, shortened or shown differently is refused', async () => {
  append(...entries('a', 300));
  const held = await follow();
  edge = emptyEdge;
  append(...entries('b', 400));
  await expect(follow(held)).rejects.toThrow(
    'The log at size 400 of tree 1 does not continue the checkpoint of size 300 of tree 1.',
  );
  edge = emptyEdge;
  append(...entries('a', 299));
  await expect(follow(held)).rejects.toThrow('does not continue');
});

test('a checkpoint by another key is refused', async () => {
  append(...entries('a', 1));
  const other = createSigner('log', generateKeyPairSync('ed25519').privateKey);
  await expect(followLog(source, [other], null)).rejects.toThrow('has no signature by log+');
});

test('a log that went back and says so is followed into its next trees', async () => {
  append(...entries('a', 10));
  const held = await follow();
  append(...entries('a', 2));
  beginTree(successionEntry({ previous_checkpoint: checkpoint(), kept: 11 }), ...entries('b', 4));
  beginTree(successionEntry({ previous_checkpoint: checkpoint(), kept: 5 }));
  expect(await follow(held)).toMatchObject({
    newest: { tree: 3, size: 1 },
    gaps: [
      { tree: 1, size: 12, lost: 1 },
      { tree: 2, size: 5, lost: 0 },
    ],
  });
});

test('a next tree that hides the end of the previous one is refused', async () => {
  append(...entries('a', 10));
  const early = checkpoint();
  append(...entries('a', 2));
  const held = await follow();
  beginTree(successionEntry({ previous_checkpoint: early, kept: 10 }));
  await expect(follow(held)).rejects.toThrow('does not continue the checkpoint of size 12 of tree 1');
  trees.pop();
  beginTree(...entries('b', 1).map(() => Buffer.from('{}')));
  await expect(follow(held)).rejects.toThrow('Tree 2 does not name the last checkpoint of the tree before.');
});

import { hashLeaf, isConsistent, isIncluded } from './merkle-tree.ts';
import { parseSuccession } from './entries.ts';
import type { NoteVerifier } from './signed-note.ts';
import { createTreeProofs, parseBundle, tilePath, type ReadFile } from './tiles.ts';
import { openCheckpoint, type OpenCheckpoint } from './tree-names.ts';

/** The files of a log that somebody else serves. `tree`: the number of a tree; undefined for the one that grows. */
export type LogSource = (path: string, tree: number | undefined) => Promise<Buffer | null>;

/** A log that went back and continued in another tree. `lost`: how many sealed entries of the old tree it no longer has. */
export type Gap = { tree: number; size: number; lost: number };

/**
 * Checks that a log continues the checkpoint `held`, which the caller has kept since it was last called; null the first time.
 * Returns the newest checkpoint, and the gaps since `held`, which the log itself admits. Throws if the log
 * cannot prove this, because it is another one or incomplete.
 */
export async function followLog(
  source: LogSource,
  verifiers: readonly NoteVerifier[],
  held: OpenCheckpoint | null,
): Promise<{ newest: OpenCheckpoint; gaps: Gap[] }> {
  const newest = await readCheckpoint(source, verifiers, undefined);
  const gaps: Gap[] = [];
  let last = held ?? newest;
  while (last.tree < newest.tree) {
    const tree = last.tree + 1;
    const next = tree === newest.tree ? newest : await readCheckpoint(source, verifiers, tree);
    const { end, kept } = await readPredecessor(source, verifiers, next);
    await requireContinuation(source, last, end);
    gaps.push({ tree: end.tree, size: end.size, lost: end.size - kept });
    last = next;
  }
  await requireContinuation(source, last, newest);
  return { newest, gaps };
}

async function readCheckpoint(
  source: LogSource,
  verifiers: readonly NoteVerifier[],
  tree: number | undefined,
): Promise<OpenCheckpoint> {
  const note = await source('checkpoint', tree);
  if (note === null) throw new Error('The log has no checkpoint yet.');
  return openCheckpoint(note.toString(), () => verifiers);
}

async function requireContinuation(source: LogSource, older: OpenCheckpoint, newer: OpenCheckpoint): Promise<void> {
  const describe = ({ tree, size }: OpenCheckpoint): string => `size ${size} of tree ${tree}`;
  const refuse = (): never => {
    throw new Error(`The log at ${describe(newer)} does not continue the checkpoint of ${describe(older)}.`);
  };
  if (older.origin !== newer.origin || older.size > newer.size) refuse();
  const { consistency } = createTreeProofs(ofTree(source, newer.tree), newer.size);
  const proof = older.size === newer.size ? [] : await consistency(older.size);
  if (!isConsistent(older, newer, proof)) refuse();
}

/** Reads the checkpoint that the first entry of a tree names as the last one of the tree before. */
async function readPredecessor(source: LogSource, verifiers: readonly NoteVerifier[], checkpoint: OpenCheckpoint) {
  const { tree, size } = checkpoint;
  const read = ofTree(source, tree);
  const bundle = (await read(tilePath('entries', 0, Math.min(size, 256)))) ?? (await read(tilePath('entries', 0, 256)));
  const entry = bundle === null ? undefined : parseBundle(bundle)[0];
  const proof = await createTreeProofs(read, size).inclusion(0);
  if (entry === undefined || !isIncluded(hashLeaf(entry), 0, proof, checkpoint)) {
    throw new Error(`The first entry of tree ${tree} is not in the tree.`);
  }
  const succession = parseSuccession(entry);
  if (succession === null) throw new Error(`Tree ${tree} does not name the last checkpoint of the tree before.`);
  return { end: openCheckpoint(succession.previous_checkpoint, () => verifiers), kept: succession.kept };
}

const ofTree =
  (source: LogSource, tree: number): ReadFile =>
  (path) =>
    source(path, tree);

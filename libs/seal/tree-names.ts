import { parseCheckpoint, type Checkpoint } from './checkpoint.ts';
import { openNote, type NoteVerifier } from './signed-note.ts';

// The trees of a log have the numbers 1, 2, …; a new one begins after the log went back. The first has the name of the log.

export const treeOrigin = (name: string, tree: number): string => (tree === 1 ? name : `${name}/tree/${tree}`);

export function parseOrigin(origin: string): { name: string; tree: number } {
  const [, name = origin, tree = '1'] = /^(.+)\/tree\/(\d{1,9})$/.exec(origin) ?? [];
  return { name, tree: Number(tree) };
}

/** A checkpoint that was opened. `note`: as it is signed. */
export type OpenCheckpoint = Checkpoint & { name: string; tree: number; note: string };

/** Checks and reads a signed checkpoint. Throws if it is none, or none by one of the verifiers. */
export function openCheckpoint(note: string, verifiersOf: (name: string) => readonly NoteVerifier[]): OpenCheckpoint {
  const { name } = parseOrigin(note.slice(0, note.indexOf('\n')));
  const checkpoint = parseCheckpoint(openNote(note, verifiersOf(name)));
  return { ...checkpoint, ...parseOrigin(checkpoint.origin), note };
}

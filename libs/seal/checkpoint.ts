import type { TreeHead } from './merkle-tree.ts';

// Checkpoints (https://c2sp.org/tlog-checkpoint) and proofs (https://c2sp.org/tlog-proof). A checkpoint is the text of a
// signed note.

export type Checkpoint = TreeHead & { origin: string };

export const formatCheckpoint = ({ origin, size, root }: Checkpoint): string =>
  `${origin}\n${size}\n${root.toString('base64')}\n`;

/** Reads the text of a note. Throws if it is not a checkpoint. */
export function parseCheckpoint(text: string): Checkpoint {
  const [origin = '', size = '', encoded = '', ...rest] = text.split('\n');
  const root = Buffer.from(encoded, 'base64');
  const isComplete = origin !== '' && /^(?:0|[1-9]\d{0,15})$/.test(size) && /^[A-Za-z0-9+/]{43}=$/.test(encoded);
  if (!isComplete || rest.at(-1) !== '' || rest.slice(0, -1).includes('')) {
    throw new Error('This is not a checkpoint: an origin, a size and a root, each on its own line.');
  }
  return { origin, size: Number(size), root };
}

/** A proof that an entry is in a log. `checkpoint`: the signed note. `extra`: bytes that no signature covers. */
export type LogProof = { index: number; hashes: readonly Buffer[]; checkpoint: string; extra?: Buffer | undefined };

const proofHeader = 'c2sp.org/tlog-proof@v1';

/** A proof as a file. */
export function formatProof({ index, hashes, checkpoint, extra }: LogProof): string {
  const lines = [
    proofHeader,
    ...(extra === undefined ? [] : [`extra ${extra.toString('base64')}`]),
    `index ${index}`,
    ...hashes.map((each) => each.toString('base64')),
  ];
  return `${lines.join('\n')}\n\n${checkpoint}`;
}

/**
 * Throws if a text is not a proof.
 * @testOnly
 */
export function parseProof(text: string): LogProof {
  const end = text.indexOf('\n\n');
  const [header, ...lines] = text.slice(0, Math.max(0, end)).split('\n');
  const extra = lines[0]?.startsWith('extra ') ? Buffer.from((lines.shift() ?? '').slice(6), 'base64') : undefined;
  const [, index] = /^index (0|[1-9]\d{0,15})$/.exec(lines.shift() ?? '') ?? [];
  if (header !== proofHeader || index === undefined || !lines.every((line) => /^[A-Za-z0-9+/]{43}=$/.test(line))) {
    throw new Error(`This is not a proof in the format ${proofHeader}.`);
  }
  const hashes = lines.map((line) => Buffer.from(line, 'base64'));
  return { index: Number(index), hashes, checkpoint: text.slice(end + 2), extra };
}

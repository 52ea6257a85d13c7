import { once } from 'node:events';
import { createWriteStream, type WriteStream } from 'node:fs';
import { copyFile, mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { Kysely } from 'kysely';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { openCheckpoint, type OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { verifierText, type NoteVerifier } from '#libs/seal/signed-note.ts';
import { createTreeProofs, tilePath, type TreeProofs } from '#libs/seal/tiles.ts';
import { CliError } from '../server/cli-error.ts';
import { describeExport } from './describe-export.ts';
import { readCallLines } from './export-calls.ts';
import { readSealedEvents, type ShownEvent } from './sealed-events.ts';
import { allTiles, readTile } from './tree-files.ts';

export type ExportDeps = {
  db: Kysely<Database>;
  /** The trees of the log. */
  folder: BlobFolder;
  /** The keys of the log with this name. */
  keys: (name: string) => readonly NoteVerifier[];
};

type ExportOptions = {
  out: string;
  from: Date | null;
  to: Date | null;
  /** Null: the events and entries of all workspaces. */
  workspaceId: string | null;
  onProgress: (events: number) => void;
};

const verifier = new URL('../../audit-verify/audit-verify.mjs', import.meta.url);

/**
 * Writes the sealed events of a time range, and what proves them, to a folder. A folder that an earlier run left keeps its
 * checkpoints, so a repeated run writes the same bytes. Throws CliError if the log differs from its seal.
 */
export async function exportLog(
  deps: ExportDeps,
  options: ExportOptions,
): Promise<{ events: number; calls: number; trees: number }> {
  const { out, from, to, workspaceId, onProgress } = options;
  await mkdir(out, { recursive: true });
  const checkpoints = await chooseCheckpoints(deps, out);
  if (workspaceId === null) for (const checkpoint of checkpoints) await copyTree(deps.folder, out, checkpoint);

  const proofs = new Map(checkpoints.map((each) => [each.tree, treeProofs(deps.folder, each)]));
  const file = createWriteStream(path.join(out, 'events.ndjson'));
  const callFile = createWriteStream(path.join(out, 'calls.ndjson'));
  let [events, calls] = [0, 0];
  for await (const event of readSealedEvents(deps, checkpoints, { from, to, workspaceId })) {
    const proof = workspaceId === null ? undefined : await inclusion(proofs, event);
    await writeLine(file, `${JSON.stringify({ ...event, proof })}\n`);
    for await (const { text, isRecord } of readCallLines(deps.db, event)) {
      await writeLine(callFile, `${text}\n`);
      if (isRecord) calls += 1;
    }
    events += 1;
    if (events % 1_000 === 0) onProgress(events);
  }
  for (const each of [file, callFile]) {
    each.end();
    await once(each, 'finish');
  }

  const trees = checkpoints.map(({ tree, size }) => ({ tree, size }));
  const range = { from: from?.toISOString() ?? null, to: to?.toISOString() ?? null };
  const manifest = { ...range, workspace_id: workspaceId, events, calls, trees };
  const names = new Set(checkpoints.map(({ name }) => name));
  const keys = [...names].flatMap((name) => deps.keys(name).map(verifierText));
  await writeFile(path.join(out, 'key.txt'), `${keys.join('\n')}\n`);
  await copyFile(verifier, path.join(out, 'audit-verify.mjs'));
  await writeFile(path.join(out, 'README.txt'), describeExport(manifest));
  await writeFile(path.join(out, 'manifest.json'), `${JSON.stringify(manifest, null, 2)}\n`);
  return { events, calls, trees: trees.length };
}

async function writeLine(file: WriteStream, line: string): Promise<void> {
  if (!file.write(line)) await once(file, 'drain');
}

/** Returns the checkpoints of all trees: those that the folder already has, otherwise the newest. Stores them there. */
async function chooseCheckpoints({ folder, keys }: ExportDeps, out: string): Promise<OpenCheckpoint[]> {
  const file = path.join(out, 'checkpoints.json');
  const notes = (await readNotes(file)) ?? (await newestNotes(folder, keys));
  await writeFile(`${file}.new`, JSON.stringify(notes));
  await rename(`${file}.new`, file);
  const checkpoints = notes.map((note) => openCheckpoint(note, keys));
  for (const { tree, note } of checkpoints) await writeInside(out, `trees/${tree}/checkpoint`, note);
  return checkpoints;
}

/** The newest checkpoints of all trees. */
export const newestCheckpoints = async ({ folder, keys }: ExportDeps): Promise<OpenCheckpoint[]> =>
  (await newestNotes(folder, keys)).map((note) => openCheckpoint(note, keys));

async function readNotes(file: string): Promise<string[] | null> {
  const text = await readFile(file, 'utf8').catch(() => null);
  return text === null ? null : (JSON.parse(text) as string[]);
}

async function newestNotes(folder: BlobFolder, keys: ExportDeps['keys']): Promise<string[]> {
  const newest = await folder.read('checkpoint');
  if (newest === null) {
    throw new CliError('The log is not sealed yet.', {
      hint: 'Start a worker, and check SLUICE_BLOBS and SLUICE_DATA_DIR.',
    });
  }
  const { tree: last } = openCheckpoint(newest.toString(), keys);
  const notes: string[] = [];
  for (let tree = 1; tree < last; tree += 1) {
    const note = await folder.read(`${tree}/checkpoint`);
    if (note === null)
      throw new CliError(`The blob store has no checkpoint of tree ${tree}.`, { hint: 'Run: sluice check seal' });
    notes.push(note.toString());
  }
  return [...notes, newest.toString()];
}

async function copyTree(folder: BlobFolder, out: string, { tree, size }: OpenCheckpoint): Promise<void> {
  for (const tile of allTiles(size)) {
    const file = `trees/${tree}/${tilePath(tile.level, tile.index, tile.width)}`;
    await writeInside(out, file, await readTile(folder, tree, tile));
  }
}

async function writeInside(out: string, file: string, content: string | Buffer): Promise<void> {
  await mkdir(path.join(out, path.dirname(file)), { recursive: true });
  await writeFile(path.join(out, file), content);
}

export const treeProofs = (folder: BlobFolder, { tree, size }: OpenCheckpoint): TreeProofs =>
  createTreeProofs(async (file) => await folder.read(`${tree}/${file}`), size);

async function inclusion(proofs: ReadonlyMap<number, TreeProofs>, { tree, index }: ShownEvent): Promise<string[]> {
  const hashes = (await proofs.get(tree)?.inclusion(index)) ?? [];
  return hashes.map((each) => Buffer.from(each).toString('base64'));
}

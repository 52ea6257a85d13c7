import { copyFile, mkdir, open, rename, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { sql, type RawBuilder } from 'kysely';
import { isErasureOf } from '#libs/event-log/erase-events.ts';
import { isAfter, isUpTo } from '#libs/event-log/read-events.ts';
import { findPositions } from '#libs/event-log/read-log.ts';
import { createGarbageCollector } from '#libs/kernel/heap-growth.ts';
import { sealType } from '#libs/request-log/seal/sealed-calls.ts';
import { verifierText } from '#libs/seal/signed-note.ts';
import { openCheckpoint, type OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { tilePath, type TreeProofs } from '#libs/seal/tiles.ts';
import { CliError } from '../server/cli-error.ts';
import type { AuditDeps } from './checkpoints.ts';
import { readCallLines } from './export-calls.ts';
import { describeExport, type Manifest } from './describe-export.ts';
import { beginExport, readJson, writeJson, type ExportSelection, type Progress } from './export-progress.ts';
import { proveEvents, showErasure } from './proven-event.ts';
import { readSealedEvents, type ShownEvent } from './sealed-events.ts';
import { allTiles, readTile, treeProofs, type Tile } from './tree-files.ts';

type ExportOptions = ExportSelection & {
  out: string;
  onProgress: (events: number) => void;
  /** After so many bytes, the events are on the disk and an interrupted run continues there. */
  savedBytes?: number;
  /** How long it waits for the seal of the newest event. */
  sealMsMax?: number;
};

const savedBytesDefault = 1_048_576;

const verifier = new URL('../../audit-verify/audit-verify.mjs', import.meta.url);

/**
 * Writes the sealed events of a time range, and what proves them, to a folder. Continues an interrupted run where it stopped,
 * with its checkpoints, so the folder gets the same bytes. Leaves a complete one unchanged. Throws CliError if the log differs
 * from its seal, and for a folder with another export.
 */
export async function exportLog(
  deps: AuditDeps,
  options: ExportOptions,
): Promise<{ events: number; calls: number; trees: number }> {
  const { out, onProgress, savedBytes = savedBytesDefault, sealMsMax = 10_000, ...selection } = options;
  await mkdir(out, { recursive: true });
  const progressFile = path.join(out, 'progress.json');
  const manifestFile = path.join(out, 'manifest.json');
  const complete = await readJson<Manifest>(manifestFile);
  const started = complete === null ? await readJson<Progress>(progressFile) : null;
  if (complete !== null || started !== null) requireSame(selection, (complete ?? started) as Manifest | Progress, out);
  if (complete !== null) {
    await rm(progressFile, { force: true });
    return { events: complete.events, calls: complete.calls, trees: complete.trees.length };
  }
  const progress = started ?? (await beginExport(deps, selection, sealMsMax));
  const save = (): Promise<void> => writeJson(progressFile, progress);
  await save();
  const checkpoints = progress.checkpoints.map((note) => openCheckpoint(note, deps.keys));
  for (const checkpoint of checkpoints) await copyTree(deps, out, checkpoint, selection);
  await writeEvents(deps, { out, checkpoints, progress, save, onProgress, savedBytes });
  const erasures = await writeErasures(deps, { out, checkpoints, progress });
  const calls = await writeCalls(deps, { out, checkpoints, progress });

  const { from, to, workspace_id, before, after, events } = progress;
  const trees = checkpoints.map(({ tree, size }) => ({ tree, size }));
  const manifest: Manifest = { from, to, workspace_id, events, erasures, calls, trees, before, after };
  const names = new Set(checkpoints.map(({ name }) => name));
  const keys = [...names].flatMap((name) => deps.keys(name).map(verifierText));
  await writeFile(path.join(out, 'key.txt'), `${keys.join('\n')}\n`);
  await copyFile(verifier, path.join(out, 'audit-verify.mjs'));
  await writeFile(path.join(out, 'README.txt'), describeExport(manifest));
  await writeJson(manifestFile, manifest);
  await rm(progressFile);
  return { events, calls, trees: trees.length };
}

function requireSame({ from, to, workspaceId }: ExportSelection, found: Manifest | Progress, out: string): void {
  const wanted = [from?.toISOString() ?? null, to?.toISOString() ?? null, workspaceId];
  if (JSON.stringify(wanted) === JSON.stringify([found.from, found.to, found.workspace_id])) return;
  throw new CliError(`${out} has an export of another time range or workspace.`, { hint: 'Use an empty folder.' });
}

const copiesAtOnce = 16;
/** The size of most files: a tile of hashes, or a bundle of entries. */
const tileBytes = 32_768;

const collectAfter = createGarbageCollector(16 * 1_048_576);

/** Copies the checkpoint of a tree and, in an export of all workspaces, the tiles that the folder does not have yet. */
async function copyTree(
  { folder }: AuditDeps,
  out: string,
  checkpoint: OpenCheckpoint,
  { workspaceId }: ExportSelection,
) {
  const { tree, size, note } = checkpoint;
  await writeWhole(path.join(out, `trees/${tree}/checkpoint`), Buffer.from(note));
  if (workspaceId !== null) return;
  const copy = async (tile: Tile): Promise<void> => {
    const file = path.join(out, `trees/${tree}/${tilePath(tile.level, tile.index, tile.width)}`);
    const isThere = await stat(file).then(
      ({ size: bytes }) => bytes > 0,
      () => false,
    );
    if (!isThere) await writeWhole(file, await readTile(folder, tree, tile));
  };
  let copies: Promise<void>[] = [];
  for (const tile of allTiles(size)) {
    copies.push(copy(tile));
    if (copies.length < copiesAtOnce) continue;
    await Promise.all(copies);
    collectAfter(copiesAtOnce * tileBytes);
    copies = [];
  }
  await Promise.all(copies);
}

/** A file that exists is complete, also after the process was killed. */
async function writeWhole(file: string, content: Buffer): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true });
  await writeFile(`${file}.new`, content);
  await rename(`${file}.new`, file);
}

type Writing = { out: string; checkpoints: readonly OpenCheckpoint[]; progress: Progress };
type WritingEvents = Writing & { save: () => Promise<void>; onProgress: (events: number) => void; savedBytes: number };

/** Writes the events that the folder does not have yet. */
async function writeEvents(
  deps: AuditDeps,
  { out, checkpoints, progress, save, onProgress, savedBytes }: WritingEvents,
): Promise<void> {
  const { workspace_id: workspaceId, end } = progress;
  const proofs = new Map(checkpoints.map((each) => [each.tree, treeProofs(deps.folder, each)]));
  const name = path.join(out, 'events.ndjson');
  const file = await open(name, 'a');
  try {
    if ((await file.stat()).size < progress.bytes)
      throw new CliError(`${name} lost events that were written.`, { hint: 'Export into an empty folder.' });
    await file.truncate(progress.bytes);
    let lines: string[] = [];
    let bytes = 0;
    const write = async (): Promise<void> => {
      await file.appendFile(lines.join(''));
      collectAfter(bytes);
      await file.datasync();
      progress.bytes += bytes;
      [lines, bytes] = [[], 0];
      await save();
      onProgress(progress.events);
    };
    for await (const { shown, next } of readSealedEvents(deps, checkpoints, progress.next, { end, workspaceId })) {
      const proof = workspaceId === null ? undefined : await inclusion(proofs, shown);
      const line = `${JSON.stringify({ ...shown, proof })}\n`;
      lines.push(line);
      bytes += Buffer.byteLength(line);
      progress.events += 1;
      progress.next = next;
      if (bytes >= savedBytes) await write();
    }
    if (lines.length > 0) await write();
  } finally {
    await file.close();
  }
}

async function inclusion(proofs: ReadonlyMap<number, TreeProofs>, { tree, index }: ShownEvent): Promise<string[]> {
  const hashes = (await proofs.get(tree)?.inclusion(index)) ?? [];
  return hashes.map((each) => each.toString('base64'));
}

const isExported = ({ workspace_id: workspaceId, start, end }: Progress): RawBuilder<unknown> => {
  const inWorkspace = workspaceId === null ? sql`true` : sql`workspace_id = ${workspaceId}`;
  return sql`${isAfter(start)} and ${end === null ? sql`true` : isUpTo(end)} and ${inWorkspace}`;
};

/** Writes the records of calls that events of the export seal. Returns their number. */
async function writeCalls(deps: AuditDeps, { out, checkpoints, progress }: Writing): Promise<number> {
  const isSeal = sql`type = ${sealType} and ${isExported(progress)}`;
  const file = await open(path.join(out, 'calls.ndjson'), 'w');
  let calls = 0;
  try {
    for (const position of await findPositions(deps.db, isSeal)) {
      const [sealed] = await proveEvents(deps, checkpoints, sql`position = ${position}`);
      if (!sealed) continue;
      for await (const lines of readCallLines(deps.db, sealed)) {
        await file.write(lines.map(({ text }) => `${text}\n`).join(''));
        calls += lines.filter(({ isRecord }) => isRecord).length;
      }
    }
  } finally {
    await file.close();
  }
  return calls;
}

/** Writes the events that record erasures from events of the export, with their proofs. Returns their number. */
async function writeErasures(deps: AuditDeps, { out, checkpoints, progress }: Writing): Promise<number> {
  const positions = await findPositions(deps.db, isErasureOf(isExported(progress)));
  const file = await open(path.join(out, 'erasures.ndjson'), 'w');
  try {
    for (const position of positions) {
      const [proven] = await proveEvents(deps, checkpoints, sql`position = ${position}`);
      if (!proven) {
        throw new CliError('Events of this export were erased after its checkpoints were signed.', {
          hint: 'Export into an empty folder.',
        });
      }
      const { checkpoint: _checkpoint, ...line } = showErasure(proven);
      await file.write(`${JSON.stringify(line)}\n`);
    }
  } finally {
    await file.close();
  }
  return positions.length;
}

import { randomUUID } from 'node:crypto';
import type { Kysely } from 'kysely';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { startEpoch } from '#libs/event-log/epoch.ts';
import { readHashes, type HashedEvent } from '#libs/event-log/read-hashes.ts';
import { hasNextEvent, readCheckpoint } from '#libs/event-log/subscriber.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { AuditKeys } from './audit-keys.ts';
import { formatCheckpoint } from './checkpoint.ts';
import { makeEntries, successionEntry } from './entries.ts';
import { choosePlaces } from './find-place.ts';
import { endLease, readHeads, saveState, sealName, takeLease, type SealState } from './seal-state.ts';
import { signNote } from './signed-note.ts';
import { emptyEdge, growTree, partialFolder, rootOfEdge, tilePath, type TreeFile } from './tiles.ts';
import { openCheckpoint, treeOrigin, type OpenCheckpoint } from './tree-names.ts';

/** The folder of the trees in the blob store. */
export const auditFolder = 'audit';
/** The copy of the newest checkpoint, and the name of the checkpoint in the folder of each tree. */
export const checkpointFile = 'checkpoint';

/** Events that are sealed together. They make 32 files at most that are not replaced again. */
const pageEventsMax = 4_096;
const writesAtOnce = 16;

export type SealDeps = {
  db: Kysely<Database>;
  /** Where the trees are written, each in a folder with its number. */
  folder: BlobFolder;
  keys: AuditKeys;
  /** The name of the log for a new tree. */
  name: () => Promise<string>;
  /** Whether checkpoints are published, so that the state shows how long the newest one waits. */
  publishes: boolean;
  logger: Logger;
  /** The maximum number of events that are sealed together. */
  limit?: number;
};

/**
 * Seals the log in every worker: at a time, only the one with the lease does. Files are written before the transaction that
 * stores the state, and the checkpoint after it, so a checkpoint never names an entry that the database could lose in a
 * crash, and a repeated step writes the same files (decision 62).
 */
export function createSealer(deps: SealDeps & { pollMs?: number }): BackgroundLoop {
  const { db, logger, pollMs = 1_000 } = deps;
  const holder = randomUUID();
  let isCompared = false;
  const loop = createBackgroundLoop({
    name: 'seal of the event log',
    periodMs: pollMs,
    async run(signal) {
      for (let hasMore = true; hasMore && !signal.aborted;) {
        // The first step also compares the log with the checkpoint if there is no new event.
        if (isCompared && !(await hasNextEvent(db, sealName))) return 'idle';
        const step = await sealNext(deps, holder);
        isCompared ||= step !== 'busy';
        hasMore = step === 'full';
      }
      return undefined;
    },
    logger,
  });
  return {
    ...loop,
    async stop() {
      await loop.stop();
      await endLease(db, holder).catch(() => undefined); // It ends after some seconds.
    },
  };
}

/**
 * Seals the next page of events. `busy`: another process has the lease. `full`: there could be more events.
 * @testOnly
 */
export async function sealNext(deps: SealDeps, holder: string): Promise<'busy' | 'sealed' | 'full'> {
  const { db, folder, limit = pageEventsMax } = deps;
  const before = await takeLease(db, holder);
  if (before === null) return 'busy';
  const newest = await readNewest(deps);
  const events = await readHashes(db, await readCheckpoint(db, sealName), limit);
  // Another process that sealed in the meantime made the checkpoint newer than the state that was read.
  if (newest !== null && isBehind(before, newest) && !isSame(before, await takeLease(db, holder))) return 'busy';
  const { state, first } = await chooseTree(deps, { before, newest, events });
  if (state.tree === 0) return 'sealed';

  const otherTree = events.findIndex(({ epoch }) => epoch > state.epoch);
  const page = otherTree === -1 ? events : events.slice(0, otherTree);
  const heads = await readHeads(db, page);
  const { edge, files } = growTree(state.edge, [...first, ...makeEntries(page, heads)]);
  if (files.length > 0) {
    await writeFiles(folder, state.tree, files);
    const origin = treeOrigin(state.name, state.tree);
    const checkpoint = signNote(
      formatCheckpoint({ origin, size: edge.size, root: rootOfEdge(edge) }),
      deps.keys(state.name),
    );
    const after = { ...state, edge, checkpoint };
    const { publishes } = deps;
    const places = choosePlaces(page, state.edge.size + first.length);
    const last = page.at(-1);
    if (!(await saveState(db, { holder, before, after, heads, places, last, publishes }))) return 'busy';
    await writeCheckpoint(folder, after);
    await removePartials(folder, state.tree, files);
  } else if (state.checkpoint !== newest?.note) {
    // The process ended before it could write the file.
    await writeCheckpoint(folder, state);
  }
  return page.length === limit || otherTree !== -1 ? 'full' : 'sealed';
}

/** Returns the checkpoint that the folder has; null if there is none. */
async function readNewest({ folder, keys, logger }: SealDeps): Promise<OpenCheckpoint | null> {
  const note = await folder.read(checkpointFile);
  if (note === null) return null;
  try {
    return openCheckpoint(note.toString(), keys);
  } catch (error) {
    logger.warn(
      { err: error },
      'the newest checkpoint in the blob store is not by a key of this installation; it is replaced',
    );
    return null;
  }
}

/**
 * Returns the tree that the next events belong to, and the entry with which it begins. A log that went back (a restored
 * backup, or a failover that lost the last commits) starts an epoch and a tree, because the old one has entries that the log
 * does not have. A tree also starts with an epoch, and after the blob store lost the old one.
 */
async function chooseTree(
  { db, folder, logger, name }: SealDeps,
  { before, newest, events }: { before: SealState; newest: OpenCheckpoint | null; events: readonly HashedEvent[] },
): Promise<{ state: SealState; first: Buffer[] }> {
  const wentBack = newest !== null && isBehind(before, newest);
  const isLost = newest === null && before.tree > 0 && !(await hasTiles(folder, before));
  const nextEpoch = events[0]?.epoch ?? before.epoch;
  const continues = before.tree === 0 ? events.length === 0 : nextEpoch <= before.epoch;
  if (continues && !wentBack && !isLost) return { state: before, first: [] };
  const previous = wentBack ? { tree: newest.tree, checkpoint: newest.note } : before;
  const epoch = wentBack ? (await startEpoch(db)).epoch : nextEpoch;
  const state = { ...before, tree: previous.tree + 1, name: await name(), epoch, edge: emptyEdge };
  if (previous.tree === 0) return { state, first: [] };
  const isPart = before.tree === previous.tree && (!wentBack || before.edge.size < newest.size);
  const kept = isPart ? before.edge.size : 0;
  const fields = { tree: state.tree, epoch, kept, previous: previous.checkpoint };
  if (wentBack)
    logger.error(fields, 'the event log has lost events that were sealed; it continues in a new epoch and tree');
  else
    logger.warn(
      fields,
      'the seal continues in a new tree, because an epoch was started or the blob store lost the old one',
    );
  return { state, first: [successionEntry({ previous_checkpoint: previous.checkpoint, kept })] };
}

/** Whether the folder has the tree. Its checkpoint can be missing after a crash. */
const hasTiles = async (folder: BlobFolder, { tree, edge }: SealState): Promise<boolean> =>
  (await folder.read(`${tree}/${tilePath(0, 0, Math.min(edge.size, 256))}`)) !== null;

/** Whether a checkpoint covers entries that the state does not have. It is written after the state was stored. */
function isBehind({ tree, edge }: SealState, newest: OpenCheckpoint): boolean {
  if (newest.tree !== tree) return newest.tree > tree;
  return newest.size > edge.size || (newest.size === edge.size && !newest.root.equals(rootOfEdge(edge)));
}

const isSame = (one: SealState, other: SealState | null): boolean =>
  one.tree === other?.tree && one.edge.size === other.edge.size;

async function writeFiles(folder: BlobFolder, tree: number, files: readonly TreeFile[]): Promise<void> {
  for (let at = 0; at < files.length; at += writesAtOnce) {
    const group = files.slice(at, at + writesAtOnce);
    await Promise.all(group.map(({ path, bytes }) => folder.write(`${tree}/${path}`, bytes)));
  }
}

async function writeCheckpoint(folder: BlobFolder, { tree, checkpoint }: SealState): Promise<void> {
  await folder.write(`${tree}/${checkpointFile}`, Buffer.from(checkpoint));
  await folder.write(checkpointFile, Buffer.from(checkpoint));
}

/** Removes the partial tiles of the tiles that became full. */
async function removePartials(folder: BlobFolder, tree: number, files: readonly TreeFile[]): Promise<void> {
  for (const { path } of files) {
    const partials = partialFolder(path);
    if (partials !== null) await folder.removeAll(`${tree}/${partials}`);
  }
}

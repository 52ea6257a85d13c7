import type { Kysely } from 'kysely';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { newestClosed } from '#libs/event-log/read-events.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { findPlace } from '#libs/seal/find-place.ts';
import type { NoteVerifier } from '#libs/seal/signed-note.ts';
import { openCheckpoint, type OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { CliError } from '../server/cli-error.ts';

/** A log and its seal. */
export type AuditDeps = {
  db: Kysely<Database>;
  /** The trees of the log. */
  folder: BlobFolder;
  /** The keys of the log with this name. */
  keys: (name: string) => readonly NoteVerifier[];
};

/** Waits until the checkpoints cover what the log has now, but not longer than `msMax`: maybe no worker is running. */
export async function untilSealed(deps: AuditDeps, msMax: number): Promise<void> {
  const newest = await newestClosed(deps.db);
  for (const endMs = performance.now() + msMax; performance.now() < endMs; await sleep(100)) {
    const place = await findPlace(deps.db, newest);
    const checkpoint = (await keptCheckpoints(deps)).find(({ tree }) => tree === place?.tree);
    if (place !== null && checkpoint !== undefined && checkpoint.size > place.index) return;
  }
}

/** Returns the newest checkpoint of each tree that the blob store has. Throws CliError if there is none. */
export async function keptCheckpoints({ folder, keys }: Omit<AuditDeps, 'db'>): Promise<OpenCheckpoint[]> {
  const newest = await folder.read('checkpoint');
  if (newest === null) {
    throw new CliError('The log is not sealed yet.', {
      hint: 'Start a worker, and check SLUICE_BLOBS and SLUICE_DATA_DIR.',
    });
  }
  const last = openCheckpoint(newest.toString(), keys);
  const checkpoints: OpenCheckpoint[] = [];
  for (let tree = 1; tree < last.tree; tree += 1) {
    const note = await folder.read(`${tree}/checkpoint`);
    if (note !== null) checkpoints.push(openCheckpoint(note.toString(), keys));
  }
  return [...checkpoints, last];
}

/** Like `keptCheckpoints`, of all trees. Throws CliError if one is missing. */
export async function allCheckpoints(deps: Omit<AuditDeps, 'db'>): Promise<OpenCheckpoint[]> {
  const checkpoints = await keptCheckpoints(deps);
  const missing = checkpoints.findIndex(({ tree }, at) => tree !== at + 1);
  if (missing === -1) return checkpoints;
  throw new CliError(`The blob store has no checkpoint of tree ${missing + 1}.`, { hint: 'Run: sluice check seal' });
}

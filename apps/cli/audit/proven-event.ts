import { sql, type RawBuilder } from 'kysely';
import { isErasureOf } from '#libs/event-log/erase-events.ts';
import { readContents, type EventContent } from '#libs/event-log/read-log.ts';
import { findPlace } from '#libs/seal/find-place.ts';
import type { OpenCheckpoint } from '#libs/seal/tree-names.ts';
import type { AuditDeps } from './checkpoints.ts';
import { showSealed, type ShownEvent } from './sealed-events.ts';
import { readEntry, treeProofs } from './tree-files.ts';

/** A sealed event with the proof that its entry is in the tree of a checkpoint. Hashes are in base64. */
export type ProvenEvent = ShownEvent & { proof: string[]; checkpoint: string };

/**
 * Returns the events for which a condition is true, which are few, with their proofs; null for one that these checkpoints
 * do not cover. Reads a few tiles for each. Throws CliError if an event is not the sealed one.
 */
export async function proveEvents(
  deps: AuditDeps,
  checkpoints: readonly OpenCheckpoint[],
  condition: RawBuilder<unknown>,
): Promise<(ProvenEvent | null)[]> {
  const proven: (ProvenEvent | null)[] = [];
  for (const content of await readContents(deps.db, condition)) proven.push(await prove(deps, checkpoints, content));
  return proven;
}

async function prove(
  { db, folder }: AuditDeps,
  checkpoints: readonly OpenCheckpoint[],
  content: EventContent,
): Promise<ProvenEvent | null> {
  const place = await findPlace(db, content);
  const checkpoint = checkpoints.find(({ tree }) => tree === place?.tree);
  if (place === null || checkpoint === undefined || place.index >= checkpoint.size) return null;
  const entry = await readEntry(folder, checkpoint, place.index);
  if (entry === undefined) return null;
  const shown = showSealed(content, entry, place);
  const hashes = await treeProofs(folder, checkpoint).inclusion(place.index);
  return { ...shown, proof: hashes.map((each) => each.toString('base64')), checkpoint: checkpoint.note };
}

/** The record of an erasure. Its metadata, which is about the person who erased, is not shown. */
export const showErasure = ({ metadata: _metadata, metadata_salt: _salt, ...shown }: ProvenEvent) => shown;

/** The records of the erasures that name an event, if a part of it was erased. */
export async function proveErasures(
  deps: AuditDeps,
  checkpoints: readonly OpenCheckpoint[],
  { event, data_salt: dataSalt, metadata_salt: metadataSalt, withheld }: ShownEvent,
) {
  const isErased = metadataSalt === null || (dataSalt === null && withheld !== true);
  if (!isErased) return [];
  const named = sql`erased_event.event_id = ${event['event_id']}::uuid`;
  const proven = await proveEvents(deps, checkpoints, isErasureOf(named));
  return proven.filter((each) => each !== null).map(showErasure);
}

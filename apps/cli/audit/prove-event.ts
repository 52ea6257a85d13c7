import { writeFile } from 'node:fs/promises';
import { sql } from 'kysely';
import { uuidOrNull } from '#libs/kernel/ids.ts';
import { formatProof } from '#libs/seal/checkpoint.ts';
import { CliError } from '../server/cli-error.ts';
import { keptCheckpoints, type AuditDeps } from './checkpoints.ts';
import { proveErasures, proveEvents, type ProvenEvent } from './proven-event.ts';

/**
 * Writes a proof that an event is in the log, in the format c2sp.org/tlog-proof@v1. `call`: what its data proves. Throws
 * CliError if it is not sealed.
 */
export async function proveEvent(
  deps: AuditDeps,
  { eventId, out, call }: { eventId: string; out: string; call?: object },
) {
  const checkpoints = await keptCheckpoints(deps);
  const [proven] = await proveEvents(deps, checkpoints, sql`event_id = ${uuidOrNull(eventId)}::uuid`);
  if (!proven)
    throw new CliError(`No sealed event has the ID ${eventId}.`, {
      hint: 'A new event is sealed within a few seconds.',
    });
  const erasures = await proveErasures(deps, checkpoints, proven);
  const { proof: _proof, checkpoint: _checkpoint, tree: _tree, index: _index, ...shown } = proven;
  await writeProof(out, proven, { ...shown, ...(erasures.length === 0 ? {} : { erasures }), call });
  return { tree: proven.tree, index: proven.index };
}

/** Writes the proof of an event. `extra`: what it shows. */
export async function writeProof(out: string, { index, proof, checkpoint }: ProvenEvent, extra: object): Promise<void> {
  const hashes = proof.map((each) => Buffer.from(each, 'base64'));
  await writeFile(out, formatProof({ index, hashes, checkpoint, extra: Buffer.from(JSON.stringify(extra)) }));
}

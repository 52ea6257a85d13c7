import { writeFile } from 'node:fs/promises';
import { formatProof } from '#libs/seal/checkpoint.ts';
import { CliError } from '../server/cli-error.ts';
import { newestCheckpoints, treeProofs, type ExportDeps } from './export-log.ts';
import { readSealedEvents } from './sealed-events.ts';

/**
 * Writes a proof that an event is in the log, in the format c2sp.org/tlog-proof@v1. `call`: what its data proves. Throws
 * CliError if it is not sealed.
 */
export async function proveEvent(
  deps: ExportDeps,
  { eventId, out, call }: { eventId: string; out: string; call?: object },
) {
  const checkpoints = await newestCheckpoints(deps);
  const selection = { from: null, to: null, workspaceId: null, eventId };
  for await (const { tree, index, ...shown } of readSealedEvents(deps, checkpoints, selection)) {
    const checkpoint = checkpoints.find((each) => each.tree === tree);
    if (checkpoint === undefined) break;
    const hashes = (await treeProofs(deps.folder, checkpoint).inclusion(index)).map((each) => Buffer.from(each));
    const extra = Buffer.from(JSON.stringify({ ...shown, call }));
    await writeFile(out, formatProof({ index, hashes, checkpoint: checkpoint.note, extra }));
    return { tree, index };
  }
  throw new CliError(`No sealed event has the ID ${eventId}.`, { hint: 'A new event is sealed within a few seconds.' });
}

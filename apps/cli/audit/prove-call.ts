import { proveCall } from '#libs/request-log/seal/prove-call.ts';
import { CliError } from '../server/cli-error.ts';
import type { AuditDeps } from './checkpoints.ts';
import { proveEvent } from './prove-event.ts';

/**
 * Writes a proof that the record of a call is in a seal, and the seal in the log: the proof of the event with the record and
 * its path to the root in the event. Throws CliError if the record is not sealed as it is.
 */
export async function writeCallProof(deps: AuditDeps, { callId, out }: { callId: string; out: string }) {
  const found = await proveCall(deps.db, callId).catch((error: unknown) => {
    throw error instanceof RangeError ? new CliError(error.message) : error;
  });
  if (found === null) {
    throw new CliError(`No seal has the record of ${callId} as it is now.`, {
      hint: 'A new record is sealed within about ten minutes. sluice check calls finds records that were changed.',
    });
  }
  const { eventId, record, index, hashes } = found;
  const call = { record, index, proof: hashes.map((hash) => hash.toString('base64')) };
  return await proveEvent(deps, { eventId, out, call });
}

import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { hashLeaf, inclusionProof, rootOfHashes } from '#libs/seal/merkle-tree.ts';
import { fromLogId, getLogUuidTime, utcDay } from '../row/log-id.ts';
import { listLogDays } from '../write/log-partitions.ts';
import { toLeaf, toSealedRecord } from './sealed-calls.ts';

/** A record, and its place and path in the tree of the seal that is the event `eventId`. */
export type CallProof = { eventId: string; record: Record<string, unknown>; index: number; hashes: Buffer[] };

/** Returns the proof that a record is in a seal; null if no seal has it as it is now. Throws RangeError for an unknown ID. */
export async function proveCall(db: Kysely<Database>, id: string): Promise<CallProof | null> {
  const row = await findCall(db, id);
  if (row === undefined) throw new RangeError(`The request log has no record of the call ${id}.`);
  const leaf = hashLeaf(toLeaf(row));
  const seals = await db
    .selectFrom('call_seal')
    .select(['event_id', 'hashes'])
    .where('workspace_id', '=', row.workspace_id)
    .where('first_id', '<=', row.id)
    .where('last_id', '>=', row.id)
    .execute();
  for (const { event_id: eventId, hashes } of seals) {
    const index = findHash(hashes, leaf);
    if (index === null) continue;
    const root = (start: number, end: number): Promise<Buffer> =>
      Promise.resolve(rootOfHashes(hashes.subarray(32 * start, 32 * end)));
    const path = await inclusionProof(root, index, hashes.length / 32);
    return { eventId, record: toSealedRecord(row), index, hashes: path };
  }
  return null;
}

function findHash(hashes: Buffer, leaf: Buffer): number | null {
  for (let at = hashes.indexOf(leaf); at !== -1; at = hashes.indexOf(leaf, at + 1)) if (at % 32 === 0) return at / 32;
  return null;
}

/** Finds the record of a call by its ID, or by its request ID, for which the days are searched from the newest one backwards. */
async function findCall(db: Kysely<Database>, id: string) {
  const uuid = fromLogId(id);
  const select = (day: string) =>
    db.selectFrom('request_log_row').selectAll().where('recorded_on', '=', day).where('kind', '<>', 'batch');
  if (uuid !== undefined)
    return await select(utcDay(getLogUuidTime(uuid)))
      .where('id', '=', uuid)
      .executeTakeFirst();
  for (const { day } of (await listLogDays(db)).toReversed()) {
    const row = await select(day).where('request_id', '=', id).executeTakeFirst();
    if (row !== undefined) return row;
  }
  return undefined;
}

import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { isAfter, isClosed, isUpTo, type Checkpoint } from './read-events.ts';

/** The hash of an event and its place in the log, without its content. */
export type HashedEvent = Checkpoint & { workspaceId: string; sha256: Buffer };

/** Returns the hashes of the next events after a checkpoint, in the order of `readClosed`. */
export async function readHashes(db: Kysely<Database>, after: Checkpoint, limit: number): Promise<HashedEvent[]> {
  const { rows } = await sql<HashedEvent>`
    select epoch, transaction_id as "transactionId", position, workspace_id as "workspaceId", sha256 from event
    where ${isClosed} and ${isAfter(after)}
    order by epoch, transaction_id, position limit ${limit}`.execute(db);
  return rows;
}

/** The number of events after one place in the log and up to another. */
export async function countEvents(db: Kysely<Database>, after: Checkpoint, end: Checkpoint): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::float8 as count from event where ${isAfter(after)} and ${isUpTo(end)}`.execute(db);
  return rows[0]?.count ?? 0;
}

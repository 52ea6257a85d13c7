import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { isUpTo, type Checkpoint } from '#libs/event-log/read-events.ts';
import { countEvents } from '#libs/event-log/read-hashes.ts';
import { readCheckpoint } from '#libs/event-log/subscriber.ts';
import { sealName } from './seal-state.ts';

/** A place in the trees of a log. */
export type Place = { tree: number; index: number };

/** A place is stored for each event whose index is a multiple of this, and for the first one of each tree. */
const placeDistance = 1_024;

/** The events of a page whose places are stored. `start`: the index of its first event. */
export const choosePlaces = (page: readonly Checkpoint[], start: number): (Checkpoint & { index: number })[] =>
  page
    .map((event, at) => ({ ...event, index: start + at }))
    // The first entry of a later tree is not that of an event.
    .filter(({ index }) => index % placeDistance === 0 || (index === start && start <= 1));

/**
 * Returns the place of a sealed event, counted from the previous event with a stored place; null for an event that is not
 * sealed yet. A checkpoint can be older than this place.
 */
export async function findPlace(db: Kysely<Database>, event: Checkpoint): Promise<Place | null> {
  const sealed = await readCheckpoint(db, sealName);
  const { rows } = await sql<Checkpoint & Place>`
    select epoch, transaction_id as "transactionId", position, tree, index from seal_place
    where ${isUpTo(event)} and (${event.epoch}::int, ${event.transactionId}::xid8, ${event.position}::bigint)
      <= (${sealed.epoch}::int, ${sealed.transactionId}::xid8, ${sealed.position}::bigint)
    order by epoch desc, transaction_id desc, position desc limit 1`.execute(db);
  const [stored] = rows;
  if (stored === undefined) return null;
  return { tree: stored.tree, index: stored.index + (await countEvents(db, stored, event)) };
}

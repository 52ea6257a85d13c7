import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { erasedText } from '#libs/event-log/erase-events.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';

/** Copies what was erased from the metadata of these events. */
export async function eraseFromActivity(
  db: Kysely<Database>,
  events: readonly Pick<PositionedEvent, 'eventId' | 'metadata'>[],
): Promise<void> {
  const erased = events.map(({ eventId, metadata: { address, path } }) => ({
    id: eventId,
    address: address === erasedText,
    uri: path === erasedText,
  }));
  await sql`
    update activity set address = case when erased.address then null else activity.address end,
      uri = case when erased.uri then ${erasedText} else activity.uri end
    from jsonb_to_recordset(${JSON.stringify(erased)}::jsonb) as erased (id uuid, address boolean, uri boolean)
    where activity.id = erased.id`.execute(db);
}

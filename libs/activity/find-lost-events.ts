import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';

/** The first streams with events that the audit log has and the event log does not, and the number of all such events. */
export async function findLostEvents(
  db: Kysely<Database>,
  limit: number,
): Promise<{ lost: number; streams: { streamId: string; lost: number; first: string }[] }> {
  const { rows } = await sql<{ streamId: string; lost: number; first: string; total: number }>`
    select resource_id as "streamId", count(*)::float8 as lost, min(id::text) as first,
      sum(count(*)) over ()::float8 as total
    from activity where not exists (select from event where event_id = activity.id)
    group by resource_id order by min(recorded_at) limit ${limit}`.execute(db);
  return { lost: rows[0]?.total ?? 0, streams: rows };
}

import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { nextEventTime } from '#libs/event-log/read-events.ts';
import { organisationId } from '#libs/http/caller.ts';

/** SQL for the time of the oldest event that was not sent yet to a destination; null if there is none. */
export const oldestUnsent = nextEventTime('siem_cursor', sql`siem_cursor.workspace_id = ${organisationId}`);

const lag = sql<number>`coalesce(greatest(0, extract(epoch from clock_timestamp() - ${oldestUnsent})::float8), 0)`;

type Progress = {
  destination_id: string;
  lag: number;
  sent_at: Date | null;
  failures: number;
  last_error: string | null;
  dropped: number;
  next_attempt_at: Date;
};

/** Returns a function for the members of a destination's answer that show its progress. */
export async function readProgress(
  db: Kysely<Database>,
  destinations: readonly { id: string }[],
): Promise<(destination: { id: string }) => object> {
  const { rows } = await sql<Progress>`
    select destination_id, ${lag} as lag, sent_at, failures, last_error,
      dropped::float8 as dropped, next_attempt_at
    from siem_cursor where destination_id = any(${destinations.map(({ id }) => id)}::text[])`.execute(db);
  const byId = new Map(rows.map((row) => [row.destination_id, row]));
  return ({ id }) => {
    const row = byId.get(id);
    if (row === undefined) return {};
    return {
      lag_seconds: row.lag,
      last_sent_at: row.sent_at?.toISOString() ?? null,
      failures: row.failures,
      last_error: row.last_error,
      dropped_records: row.dropped,
      next_attempt_at: row.failures > 0 ? row.next_attempt_at.toISOString() : null,
    };
  };
}

export type SiemState = { owner: string; lag: number; failing: number; dropped: number };

/**
 * The largest lag of the enabled destinations of workspaces and of the organisation, how many of them fail, and how many
 * records their collectors dropped.
 */
export async function readSiemState(db: Kysely<Database>): Promise<SiemState[]> {
  const { rows } = await sql<SiemState>`
    select case when siem_cursor.workspace_id = ${organisationId} then 'organisation' else 'workspace' end as owner,
      max(${lag}) as lag, count(*) filter (where failures > 0)::int as failing,
      sum(dropped)::float8 as dropped
    from siem_cursor join resource as destination on destination.id = destination_id
    left join resource as workspace on workspace.id = siem_cursor.workspace_id and workspace.kind = 'workspace'
    where (destination.data ->> 'enabled')::boolean and workspace.deleted_at is null group by 1`.execute(db);
  return rows;
}

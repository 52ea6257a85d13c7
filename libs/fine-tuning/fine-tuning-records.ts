import { createHash } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { currentEpoch } from '#libs/event-log/epoch.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { RecordedCheckpoint, RecordedFineTuningEvent } from './fine-tuning-job.ts';

// The events and checkpoints of a job are stored only in the event log, so no copy can differ from it. The type is a
// literal in the statements, because only then does Postgres use the partial index `event_fine_tuning_record`.
const eventType = sql.lit('fine_tuning_job.event_recorded');
const checkpointType = sql.lit('fine_tuning_job.checkpoint_recorded');

/** Our id for an event or checkpoint of the provider: always the same for the same one, and unique to this job. */
export function makeRecordId(prefix: 'ftevent-' | 'ftckpt_', jobId: string, providerId: string): string {
  return prefix + createHash('sha256').update(`${jobId}\n${providerId}`).digest('hex').slice(0, 32);
}

type Page = { after: string | null; limit: number };

/** Newest first, one more than `limit` if there are more. Throws invalid_request for an unknown cursor. */
export async function listRecordedEvents(
  db: Kysely<Database>,
  jobId: string,
  { after, limit }: Page,
): Promise<RecordedFineTuningEvent[]> {
  const cursor = after === null ? null : await findVersion(db, jobId, 'event', after);
  const { rows } = await sql<{ data: RecordedFineTuningEvent }>`
    select data from event
    where stream_id = ${jobId} and type = ${eventType}
      and stream_version < coalesce(${cursor}::int, 2147483647)
    order by stream_version desc limit ${limit + 1}`.execute(db);
  return rows.map((row) => row.data);
}

/** Highest step first, one more than `limit` if there are more. Throws invalid_request for an unknown cursor. */
export async function listRecordedCheckpoints(
  db: Kysely<Database>,
  jobId: string,
  { after, limit }: Page,
): Promise<RecordedCheckpoint[]> {
  // A job has about one checkpoint per epoch, so all of them are sorted for any page.
  const { rows } = await sql<{ data: RecordedCheckpoint }>`
    select data from event
    where stream_id = ${jobId} and type = ${checkpointType}
    order by (data ->> 'step_number')::bigint desc, stream_version desc`.execute(db);
  const checkpoints = rows.map((row) => row.data);
  if (after === null) return checkpoints.slice(0, limit + 1);
  const index = checkpoints.findIndex(({ id }) => id === after);
  if (index === -1) throw unknownCursor('checkpoint', after);
  return checkpoints.slice(index + 1, index + 2 + limit);
}

/**
 * Whether the log was restored from a backup after the job was created. Starts of the lost period may have sent the
 * job, although the log does not show it.
 */
export async function isFromOlderEpoch(db: Kysely<Database>, jobId: string): Promise<boolean> {
  const { rows } = await sql<{ older: boolean }>`
    select epoch < ${currentEpoch} as older from event where stream_id = ${jobId} and stream_version = 1`.execute(db);
  return rows[0]?.older === true;
}

/** Returns which of these IDs a job has recorded. */
export async function findRecorded(
  db: Kysely<Database>,
  jobId: string,
  kind: 'event' | 'checkpoint',
  ids: readonly string[],
): Promise<ReadonlySet<string>> {
  if (ids.length === 0) return new Set();
  const { rows } = await sql<{ id: string }>`
    select data ->> 'id' as id from event
    where stream_id = ${jobId} and type = ${kind === 'event' ? eventType : checkpointType}
      and data ->> 'id' = any(${ids}::text[])`.execute(db);
  return new Set(rows.map((row) => row.id));
}

async function findVersion(db: Kysely<Database>, jobId: string, kind: 'event', id: string): Promise<number> {
  const { rows } = await sql<{ stream_version: number }>`
    select stream_version from event
    where stream_id = ${jobId} and type = ${eventType} and data ->> 'id' = ${id}`.execute(db);
  const version = rows[0]?.stream_version;
  if (version === undefined) throw unknownCursor(kind, id);
  return version;
}

function unknownCursor(kind: 'event' | 'checkpoint', after: string): GatewayError {
  const message = `The job has no ${kind} '${after}'. Set 'after' to the ID of the last ${kind} on the previous page.`;
  return new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}

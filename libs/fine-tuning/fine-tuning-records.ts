import { createHash } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { RecordedCheckpoint, RecordedFineTuningEvent } from './fine-tuning-job.ts';

// Events and checkpoints of a job are read from the log, which is their only home: nothing can differ from it. The type
// is written into the statement, because only then does Postgres use the partial index `event_fine_tuning_record`.
const eventType = sql.lit('fine_tuning_job.event_recorded');
const checkpointType = sql.lit('fine_tuning_job.checkpoint_recorded');

/** Our id of something that the provider named: the same for the same, and nobody else's. */
export function recordIdOf(prefix: 'ftevent-' | 'ftckpt_', jobId: string, providerId: string): string {
  return prefix + createHash('sha256').update(`${jobId}\n${providerId}`).digest('hex').slice(0, 32);
}

type Page = { after: string | null; limit: number };

/** Newest first; one more than `limit` where there are more. Throws invalid_request for an unknown cursor. */
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

/** Highest step first; one more than `limit` where there are more. Throws invalid_request for an unknown cursor. */
export async function listRecordedCheckpoints(
  db: Kysely<Database>,
  jobId: string,
  { after, limit }: Page,
): Promise<RecordedCheckpoint[]> {
  // A job has about as many as epochs: all of them are sorted, whichever page is asked for.
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

/** Of these ids, the ones that a job has recorded. */
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
  const message = `The job has no ${kind} '${after}' to list after: give the id of the last ${kind} of the previous page.`;
  return new GatewayError('invalid_request', 'invalid_value', message, { param: 'after' });
}

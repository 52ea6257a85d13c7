import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { Database } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { QueueDefinition } from '#libs/queue/queue-definition.ts';
import type { WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { readReplayId } from './replay-batch.ts';

type ReplayJob = { replay_id: string; batch_id: string };

/** Compares the answers of a replay when its batch has ended, and counts verdicts when that of its judge has. */
export const trafficReplayQueue: QueueDefinition<ReplayJob> = {
  name: 'traffic-replay',
  payload: z.object({ replay_id: z.string(), batch_id: z.string() }),
  key: ({ batch_id }) => batch_id,
  options: {
    policy: 'exclusive',
    retryLimit: 10_000,
    retryDelay: 1,
    retryBackoff: true,
    retryDelayMax: 60,
    heartbeatSeconds: 10,
    expireInSeconds: 86_399, // pg-boss requires less than a day.
    retentionSeconds: 60 * 86_400,
    deleteAfterSeconds: 3_600,
    notify: true,
  },
};

/** Enqueues the next step of a replay in the transaction that ends its batch. */
export async function continueReplay(
  queue: Pick<JobQueue, 'enqueue'>,
  unit: UnitOfWork,
  batch: BatchRow,
): Promise<void> {
  const replayId = readReplayId(batch);
  if (replayId === null) return;
  await queue.enqueue(unit.tx, trafficReplayQueue, { replay_id: replayId, batch_id: batch.id });
}

/** Replays whose batch has ended, each of which has one job. */
export const replaysToContinue: WorkedOn<ReplayJob> = {
  what: 'a traffic replay',
  queue: trafficReplayQueue,
  findOpen: async (db, { changedBefore, after, max }) => await findEnded(db, changedBefore, after, max),
};

async function findEnded(db: Kysely<Database>, changedBefore: string, after: string, max: number) {
  const { rows } = await sql<{ id: string; batch_id: string }>`
    select replay.id, batch.id as batch_id from resource replay
    join batch on batch.id = case replay.data ->> 'status'
      when 'running' then replay.data ->> 'batch_id' when 'judging' then replay.data -> 'judge' ->> 'batch_id' end
    where replay.kind = 'traffic_replay' and replay.deleted_at is null and replay.id > ${after}
      and batch.status in ('completed', 'failed', 'expired', 'cancelled')
      and batch.updated_at < (select clock_timestamp()) - ${changedBefore}::interval
    order by replay.id limit ${max}`.execute(db);
  return rows.map(({ id, batch_id }) => ({ id, job: { replay_id: id, batch_id } }));
}

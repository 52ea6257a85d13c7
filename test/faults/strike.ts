import { sql } from 'kysely';
import { chunkQueue } from '#libs/batches/chunks/batch-queues.ts';
import { isTransient } from '#libs/database/database-error.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { Fault, RoundPlan } from './plan-round.ts';
import type { Rig } from './rig/start-rig.ts';

/** What a fault did that the checker must know about. */
export type Struck = { extraExecutions: number };

/** Longer than a heartbeat (10 s) and a monitor pass (5 s), so that another worker has the chunk by then. */
const zombieMs = 17_000;
const hurriedZombieMs = 7_000;
const sessionsIntervalMs = 200;

type Ids = { batchId: string; fileId: string };

/** Carries out one fault. `ids` names what exists by then. Resolves when the fault itself is over. */
export async function strike(
  rig: Rig,
  plan: RoundPlan,
  fault: Fault,
  ids: Partial<Ids>,
  say: (text: string) => void,
): Promise<Struck> {
  const struck: Struck = { extraExecutions: 0 };
  switch (fault.kind) {
    case 'kill_worker':
      await rig.workers[fault.worker].kill(fault.downMs);
      if (plan.hurry) await loseHeartbeats(rig);
      return struck;
    case 'stop_worker':
      await rig.workers[fault.worker].terminate(fault.downMs);
      return struck;
    case 'pause_worker': {
      const worker = rig.workers[fault.worker];
      worker.pause();
      if (plan.hurry) await loseHeartbeats(rig);
      await sleep(plan.hurry ? hurriedZombieMs : zombieMs);
      worker.resume();
      say(`worker ${fault.worker} goes on`);
      return struck;
    }
    case 'kill_api':
      await rig.api.kill(fault.downMs);
      return struck;
    case 'kill_postgres':
      await rig.postgres.kill(fault.downMs);
      say('postgres is back');
      if (plan.hurry) await loseHeartbeats(rig);
      return struck;
    case 'kill_everything':
      await Promise.all([
        rig.postgres.kill(fault.downMs),
        rig.api.kill(0),
        ...rig.workers.map((worker) => worker.kill(0)),
      ]);
      say('postgres is back');
      if (plan.hurry) await loseHeartbeats(rig);
      return struck;
    case 'hang_postgres':
      await rig.postgres.hang(fault.forMs);
      say('postgres goes on');
      return struck;
    case 'end_sessions': {
      const until = performance.now() + fault.forMs;
      while (performance.now() < until) {
        await rig.postgres.endSessions();
        await sleep(sessionsIntervalMs);
      }
      return struck;
    }
    case 'cancel':
      if (ids.batchId !== undefined) say(`cancel answered ${await rig.client.cancelBatch(ids.batchId)}`);
      return struck;
    case 'duplicate_job':
      struck.extraExecutions = ids.batchId === undefined ? 0 : await duplicateChunkJob(rig, ids.batchId);
      return struck;
    case 'delete_input':
      if (ids.fileId !== undefined) await rig.client.deleteFile(ids.fileId);
      return struck;
  }
}

/**
 * Makes every claim look as if its worker had missed its heartbeat, so that the next monitor pass redelivers the job. Claims of
 * running workers are lost as well, as in an outage. Has no effect while the database is unavailable, or on a claim that
 * a transaction has locked: waiting for a worker that was paused in the middle of one would never end.
 */
export async function loseHeartbeats(rig: Rig): Promise<void> {
  await sql`
    with claimed as (select name, id from pgboss.job where state = 'active' for update skip locked)
    update pgboss.job set heartbeat_on = heartbeat_on - interval '1 minute'
    from claimed where job.name = claimed.name and job.id = claimed.id`
    .execute(rig.db)
    .catch((error: unknown) => {
      if (!isTransient(error)) throw error;
    });
}

/** Enqueues a second job for a chunk that a worker has. Returns the lines that may be called again because of it. */
async function duplicateChunkJob(rig: Rig, batchId: string): Promise<number> {
  const { rows } = await sql<{ line_count: number }>`
    with source as (
      select job.data, batch_chunk.line_count from pgboss.job
      join batch_chunk on batch_chunk.batch_id = job.data ->> 'batch_id'
        and batch_chunk.chunk = (job.data ->> 'chunk')::int
      where job.name = ${chunkQueue.name} and job.state = 'active' and job.data ->> 'batch_id' = ${batchId}
      limit 1
    ), inserted as (
      insert into pgboss.job (name, data, retry_limit, retry_delay, heartbeat_seconds, expire_seconds, policy)
      select ${chunkQueue.name}, data, 10000, 0, 10, 86399, 'standard' from source
    )
    select line_count from source`
    .execute(rig.db)
    .catch((error: unknown) => {
      if (isTransient(error)) return { rows: [] };
      throw error;
    });
  return rows[0]?.line_count ?? 0;
}

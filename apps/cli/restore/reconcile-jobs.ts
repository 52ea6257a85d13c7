import { sql, type Kysely } from 'kysely';
import { deleteSurplusJobs, resetLostChunks, workedOnBatches } from '#libs/batches/chunks/lost-jobs.ts';
import type { Database } from '#libs/database/schema.ts';
import { recheckPendingStarts, workedOnFineTuningJobs } from '#libs/fine-tuning/open-jobs.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createJobQueue } from '#libs/queue/job-queue.ts';
import { replaceLostJobs, type WorkedOn } from '#libs/queue/replace-lost-jobs.ts';
import { workedOnExports } from '#libs/request-log/read/run-log-export.ts';
import { allQueues } from '../../platform/queues.ts';

export type ReconciledJobs = {
  /** Jobs that a worker had claimed when the backup was made. Other workers take them over. */
  claimed: number;
  /** Jobs that were deleted because their batch has ended or does not exist. */
  surplus: number;
  chunks: number;
  batches: number;
  fineTuningJobs: number;
  logExports: number;
};

/**
 * Expires the claims of earlier workers now, instead of 10 s after the last heartbeat in the backup. The first worker that
 * starts treats them as lost, as after a crash.
 */
async function endClaims(db: Kysely<Database>): Promise<number> {
  const { numAffectedRows = 0n } = await sql`
    update pgboss.job set heartbeat_on = to_timestamp(0) where state = 'active'`.execute(db);
  return Number(numAffectedRows);
}

/**
 * Makes the queue match the open work: deletes surplus jobs, enqueues missing ones or resets their chunks, and ends claims.
 * Creates the queue if the backup has none. No worker must be running.
 */
export async function reconcileJobs(deps: {
  db: Kysely<Database>;
  connectionString: string;
  logger: Logger;
}): Promise<ReconciledJobs> {
  const { db, connectionString, logger } = deps;
  // Otherwise each reset chunk and replaced job would log a line. The report contains their number.
  const quiet = logger.child({}, { level: 'error' });
  const queue = createJobQueue({ connectionString, role: 'sender', queues: allQueues, logger, poolSizeMax: 1 });
  await queue.start?.();
  try {
    const surplus = await deleteSurplusJobs(db);
    const chunks = await resetLostChunks(db, queue, quiet);
    const replaceIn = (kinds: readonly WorkedOn[]) => replaceLostJobs({ db, queue, logger: quiet }, kinds, '0 s');
    const batches = await replaceIn(workedOnBatches);
    await recheckPendingStarts(db);
    const fineTuningJobs = await replaceIn([workedOnFineTuningJobs]);
    const logExports = await replaceIn([workedOnExports]);
    return { claimed: await endClaims(db), surplus, chunks, batches, fineTuningJobs, logExports };
  } finally {
    await queue.stop?.();
  }
}

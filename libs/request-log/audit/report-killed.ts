import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { listProcesses } from '../write/process-record.ts';

/** How long after its last report a silent process is logged, and counted by /metrics. */
export const killedWithinMs = 600_000;

/**
 * Returns a function that logs each process that was killed, or has lost the database, once, because the process cannot
 * log that itself. Several workers can log the same process.
 */
export function createKilledReport({ db, logger }: { db: Kysely<Database>; logger: Logger }): () => Promise<void> {
  let reported: ReadonlySet<string> = new Set();
  return async () => {
    const silent = (await listProcesses(db, { ms: killedWithinMs })).filter(({ isSilent }) => isSilent);
    for (const { id, app, host, version, heardAt, lastSequence, writtenSequence } of silent) {
      if (reported.has(id)) continue;
      const unwritten = lastSequence - writtenSequence;
      logger.warn(
        { process_id: id, app, host, version, heard_at: heardAt.toISOString(), unwritten_log_records: unwritten },
        'a process was killed or lost its database connection',
      );
    }
    reported = new Set(silent.map(({ id }) => id));
  };
}

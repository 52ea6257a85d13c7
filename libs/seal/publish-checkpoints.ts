import { sql, type Kysely } from 'kysely';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { AuditKeys } from './audit-keys.ts';
import { isConsistent } from './merkle-tree.ts';
import { checkpointFile } from './seal-log.ts';
import { createTreeProofs } from './tiles.ts';
import { openCheckpoint, type OpenCheckpoint } from './tree-names.ts';

/** Where checkpoints are kept outside of Sluice. Throws if it cannot keep this one. */
export type CheckpointTarget = (checkpoint: OpenCheckpoint, signal: AbortSignal) => Promise<void>;

/** For how long a process is the only one that publishes, and after which time a failure is retried. */
const claimFor = sql.raw(`interval '30 seconds'`);
const retryAfter = sql.raw(`interval '5 seconds'`);

/**
 * Publishes the newest checkpoint soon after it was made, in one of the workers. While the target fails, sealing continues,
 * and only the newest checkpoint is published when it works again.
 */
export function createCheckpointPublisher(deps: {
  db: Kysely<Database>;
  keys: AuditKeys;
  target: CheckpointTarget;
  logger: Logger;
  pollMs?: number;
}): BackgroundLoop {
  const { db, keys, target, logger, pollMs = 1_000 } = deps;
  return createBackgroundLoop({
    name: 'publishing of checkpoints',
    periodMs: pollMs,
    async run(signal) {
      const { rows } = await sql<{ tree: number; size: number; checkpoint: string }>`
        update seal set publish_after = clock_timestamp() + ${claimFor}
        where unpublished_since is not null and publish_after < clock_timestamp()
        returning tree, size, checkpoint`.execute(db);
      const [newest] = rows;
      if (newest === undefined) return 'idle';
      try {
        await target(openCheckpoint(newest.checkpoint, keys), signal);
      } catch (error) {
        await sql`update seal set publish_after = clock_timestamp() + ${retryAfter}`.execute(db);
        throw error;
      }
      await sql`
        update seal set publish_after = '-infinity',
          unpublished_since = case when tree > ${newest.tree} or size > ${newest.size} then clock_timestamp() end`.execute(
        db,
      );
      return undefined;
    },
    logger,
  });
}

/**
 * Keeps the newest checkpoint of each tree in a folder. It refuses to replace one that the new one does not continue.
 * `tiles`: the folder of the trees.
 */
export const keepInFolder =
  (kept: BlobFolder, tiles: BlobFolder, keys: AuditKeys): CheckpointTarget =>
  async (checkpoint) => {
    const { tree, size, note } = checkpoint;
    const file = tree === 1 ? checkpointFile : `${checkpointFile}-${tree}`;
    const stored = await kept.read(file);
    if (stored !== null) {
      const older = openCheckpoint(stored.toString(), keys);
      const read = (path: string): Promise<Buffer | null> => tiles.read(`${tree}/${path}`);
      const proof = older.size < size ? await createTreeProofs(read, size).consistency(older.size) : [];
      if (!isConsistent(older, checkpoint, proof)) {
        throw new Error(
          `The published checkpoint of size ${older.size} is not part of the log, whose newest checkpoint has size ${size}. ` +
            'The published one is kept. The log was changed or lost events that were sealed.',
        );
      }
    }
    await kept.write(file, Buffer.from(note));
  };

/** For how many seconds the newest checkpoint has waited to be published; 0 if it is published. */
export async function publishLagSeconds(db: Kysely<Database>): Promise<number> {
  const { rows } = await sql<{ lag: number | null }>`
    select extract(epoch from clock_timestamp() - unpublished_since)::float8 as lag from seal`.execute(db);
  return Math.max(0, rows[0]?.lag ?? 0);
}

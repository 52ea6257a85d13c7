import { sql, type Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop, type BackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { ProcessLease } from '#libs/queue/process-lease.ts';
import { takeOverWork } from './chunk.ts';

const everyMs = 5_000;
/** More claims than a process holds. */
export const rememberedMax = 10_000;

/** The key of a claimed chunk among all that a process holds. */
export const chunkKey = ({ batch_id, chunk, claim }: { batch_id: string; chunk: number; claim: number }): string =>
  `${batch_id}/${chunk}/${claim}`;

type StrayWork = BackgroundLoop & {
  /** Whether this claim was released before it ran. A late answer to it must not start the chunk. */
  wasReleased: (key: string) => boolean;
};

/**
 * Makes work ready again that this process holds but does not run: the answer to its claim was lost, or it failed and
 * could not be released. Only what was found twice in a row counts, so that a claim that is being made is left alone.
 */
export function createStrayWork(deps: {
  db: Kysely<Database>;
  lease: Pick<ProcessLease, 'holder'>;
  /** The keys of all work that this process runs: of chunks, and the IDs of batches whose files it reads or writes. */
  running: () => Iterable<string>;
  /** Whether the chunk of this claim ran here. Its lines could have been called then. */
  hasRun: (key: string) => boolean;
  onReleased: () => void;
  logger: Logger;
}): StrayWork {
  const { db, lease, logger } = deps;
  let suspected = new Set<string>();
  const released = new LRUCache<string, true>({ max: rememberedMax });

  async function run(): Promise<void> {
    const { id } = lease.holder();
    const { rows } = await sql<{ key: string }>`
      select batch_id || '/' || chunk || '/' || claim as key from batch_chunk where holder = ${id}
      union all
      select batch_id from batch_turn where holder = ${id}`.execute(db);
    const running = new Set(deps.running());
    const strays = rows.map(({ key }) => key).filter((key) => !running.has(key));
    const found = strays.filter((key) => suspected.has(key));
    suspected = new Set(strays);
    if (found.length === 0) return;
    const unstarted = found.filter((key) => !deps.hasRun(key));
    for (const key of unstarted) released.set(key, true);
    await db.transaction().execute((tx) => takeOverWork(tx, id, found, unstarted));
    logger.warn({ keys: found }, 'work that this process held but did not run was released');
    deps.onReleased();
  }

  const loop = createBackgroundLoop({ name: 'stray work', periodMs: everyMs, run, logger });
  return { ...loop, wasReleased: (key) => released.has(key) };
}

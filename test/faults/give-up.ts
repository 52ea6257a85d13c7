import { takeOverWork } from '#libs/batches/chunks/chunk.ts';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { Rig } from './rig/start-rig.ts';

/** Longer than the pause between two beats of a process that lives (libs/queue/process-lease.ts). */
const silentMs = 5_500;
const pollMs = 100;

export type Beats = ReadonlyMap<string, number>;

/** The processes that hold work, and their beats. Empty while the database is unavailable. */
export async function readBeats(rig: Rig): Promise<Beats> {
  const rows = await rig.db
    .selectFrom('worker_process')
    .select(['id', 'beat'])
    .execute()
    .catch((error: unknown) => {
      if (isDatabaseTrouble(error)) return [];
      throw error;
    });
  return new Map(rows.map(({ id, beat }) => [id, beat]));
}

/**
 * Gives up those of `processes` that do not beat any more, as another worker would after a longer silence. `alive`: how
 * many of them still beat. Has no effect while the database is unavailable.
 */
export async function giveUpSilent(rig: Rig, processes: Beats, alive: number): Promise<void> {
  const deadline = performance.now() + silentMs;
  for (;;) {
    const now = await readBeats(rig);
    if (now.size === 0) return;
    const silent = [...processes].filter(([id, beat]) => now.get(id) === beat).map(([id]) => id);
    if (processes.size - silent.length >= alive || performance.now() > deadline) return await giveUp(rig, silent);
    await sleep(pollMs);
  }
}

/** Gives processes up, whether they live or not. */
export async function giveUp(rig: Rig, ids: readonly string[]): Promise<void> {
  for (const id of ids) {
    const taking = rig.db.transaction().execute(async (tx) => {
      const { numDeletedRows } = await tx.deleteFrom('worker_process').where('id', '=', id).executeTakeFirst();
      if (numDeletedRows > 0n) await takeOverWork(tx, id);
    });
    await taking.catch((error: unknown) => {
      // A worker that was paused in the middle of a transaction can hold a lock. It is given up later.
      if (!isDatabaseTrouble(error)) throw error;
    });
  }
}

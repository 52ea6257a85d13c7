import { sql, type Kysely, type Transaction } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { hasEnded, nameOsProcess } from '#libs/kernel/os-process.ts';

// Long work is held by a process, and has no lease itself. A process shows that it is alive by a number
// in its row of `worker_process`, and another one takes its work over when that number stands still. No clock is
// compared: the observer measures with its own monotonic clock, and only while the database answers, so that an outage,
// a failover or a change of any clock takes nothing away from anybody.

/** The identity under which a process holds work. */
export type Holder = {
  id: string;
  /** Aborts when another process has taken the work over. What was begun under this identity has to stop. */
  lost: AbortSignal;
};

export type ProcessLease = Part & {
  /** The current identity. It changes when it was lost. */
  holder(): Holder;
};

/** Selects the ID of a process that has not been given up, and keeps it from being given up until the transaction ends. */
export const selectAlive = (processId: string) => sql<{ id: string }>`
  select id from worker_process where id = ${processId} for key share`;

/** Forgets all processes. For a restored database, in which none of them runs. */
export async function forgetProcesses(tx: Transaction<Database>): Promise<void> {
  await tx.deleteFrom('worker_process').execute();
}

const beatEveryMs = 3_000;
const observeEveryMs = 1_000;
/** A process whose number stands still this long is given up, so that a worker in a new container resumes within 15 s. */
const silentMsMax = 11_000;
/** The same for a process of this host that does not exist any more. A worker that restarts knows that of the one it replaces. */
const endedMsMax = 6_000;
/** After a longer gap between two observations, the database, or the observer, was away and the silence counts anew. */
const gapMsMax = 4_000;

type ProcessRow = { id: string; beat: number; os_process: string | null };
type Seen = { beat: number; sinceMs: number };

/** The numbers of the processes, and since when an observer has seen each of them. */
class Observation {
  #seen = new Map<string, Seen>();
  #observedMs = Number.NEGATIVE_INFINITY;

  /** Takes what the database has answered. Returns the processes whose number has stood still for too long. */
  note(rows: readonly ProcessRow[], nowMs: number): ProcessRow[] {
    const hasGap = nowMs - this.#observedMs > gapMsMax;
    this.#observedMs = nowMs;
    const before = this.#seen;
    this.#seen = new Map();
    return rows.filter(({ id, beat, os_process: osProcess }) => {
      const last = before.get(id);
      const now = !hasGap && last?.beat === beat ? last : { beat, sinceMs: nowMs };
      this.#seen.set(id, now);
      const silentMs = nowMs - now.sinceMs;
      return silentMs >= silentMsMax || (silentMs >= endedMsMax && osProcess !== null && hasEnded(osProcess));
    });
  }
}

/**
 * Holds a row for this process, and gives up processes that have died. `takeOver` makes the work that a process held
 * available to others; it runs in the transaction that deletes its row.
 */
export function createProcessLease(deps: {
  db: Kysely<Database>;
  takeOver: (tx: Transaction<Database>, processId: string) => Promise<void>;
  /** Called after the work of a process was taken over. */
  onTakenOver: () => void;
  logger: Logger;
  /** Milliseconds of a monotonic clock. */
  monotonicMs?: () => number;
}): ProcessLease {
  const { db, logger, monotonicMs = () => performance.now() } = deps;
  let lost = new AbortController();
  let holder: Holder = { id: newId('process_'), lost: lost.signal };
  let isRegistered = false;
  const observation = new Observation();

  async function register(): Promise<void> {
    await db
      .insertInto('worker_process')
      .values({ id: holder.id, os_process: nameOsProcess() })
      .onConflict((of) => of.doNothing())
      .execute();
    isRegistered = true;
  }

  async function beat(): Promise<void> {
    const found = await db
      .updateTable('worker_process')
      .set((of) => ({ beat: of('beat', '+', 1) }))
      .where('id', '=', holder.id)
      .executeTakeFirst();
    if (found.numUpdatedRows > 0n) return;
    logger.error({ process_id: holder.id }, 'another process has taken over the work of this one, which did not beat');
    lost.abort(new Error('another process has taken over this work'));
    lost = new AbortController();
    holder = { id: newId('process_'), lost: lost.signal };
    await register();
  }

  async function giveUp(process: ProcessRow): Promise<void> {
    const isGivenUp = await db.transaction().execute(async (tx) => {
      const { numDeletedRows } = await tx
        .deleteFrom('worker_process')
        .where('id', '=', process.id)
        .where('beat', '=', process.beat)
        .executeTakeFirst();
      if (numDeletedRows > 0n) await deps.takeOver(tx, process.id);
      return numDeletedRows > 0n;
    });
    if (!isGivenUp) return;
    logger.warn({ process_id: process.id }, 'took over the work of a process that has died or hangs');
    deps.onTakenOver();
  }

  async function watch(): Promise<void> {
    const rows = await db.selectFrom('worker_process').select(['id', 'beat', 'os_process']).execute();
    for (const process of observation.note(rows, monotonicMs())) if (process.id !== holder.id) await giveUp(process);
  }

  // Two loops, so that a process that takes over the work of others does not miss its own beat.
  const loops = [
    createBackgroundLoop({
      name: 'beat of this process',
      periodMs: beatEveryMs,
      run: () => (isRegistered ? beat() : register()),
      logger,
    }),
    createBackgroundLoop({ name: 'watch over other processes', periodMs: observeEveryMs, run: watch, logger }),
  ];
  return {
    name: 'process lease',
    start() {
      for (const loop of loops) loop.start();
    },
    holder: () => holder,
    /** What this process still holds is available to others at once; if the database is unavailable, when it is given up. */
    async stop() {
      for (const loop of loops) await loop.stop();
      if (!isRegistered) return;
      try {
        await db.transaction().execute(async (tx) => {
          await tx.deleteFrom('worker_process').where('id', '=', holder.id).execute();
          await deps.takeOver(tx, holder.id);
        });
      } catch (error) {
        logger.warn({ err: error }, 'others take over the work of this process when they have given it up');
      }
    },
  };
}

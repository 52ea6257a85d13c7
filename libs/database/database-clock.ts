import { sql, type Kysely } from 'kysely';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Database } from './schema.ts';

/**
 * The clock of the database, as estimated by this process. All deadlines use it, so that a process with a wrong clock
 * neither ends anything early nor keeps it alive.
 */
export type DatabaseClock = Clock & {
  /**
   * Sets the clock to a time that the database has returned. The query's start and end are given by
   * `performance.now()`. The result of a query that took more than a second is inaccurate, and is ignored if there is
   * an earlier one.
   */
  set(databaseMs: number, askedAtMs: number, answeredAtMs: number): void;
  /** Converts a time of the database to this process's own clock, so that the two can be compared. */
  toOwnTime(databaseMs: number): number;
  /**
   * Whether the clock jumped ahead less than two minutes ago. It could be wrong and be corrected again, so nothing is
   * deleted or expired in the meantime.
   */
  jumpedAhead(): boolean;
};

const slowAnswerMs = 1_000;
/** Smaller differences come from the round trip, and do not adjust the clock. */
const toleranceMs = 50;
/** A jump by less than this has no noticeable effect on deadlines. */
const jumpMs = 5_000;
const believedAfterMs = 120_000;

/**
 * Between two results, and during outages, the clock advances with the monotonic clock. Before the first result it is
 * the process's own clock.
 */
export function createDatabaseClock(
  deps: {
    ownTime: () => number;
    monotonicMs: () => number;
    /** How long a jump ahead is not trusted. */
    believedAfterMs?: number | undefined;
  } = {
    ownTime: Date.now,
    monotonicMs: () => performance.now(),
  },
): DatabaseClock {
  /** The database's time at zero of the monotonic clock. */
  let zeroMs: number | undefined;
  /** The clock before the last jump ahead, and the time from which the jump is trusted. */
  let doubted: { zeroMs: number; untilMs: number } | null = null;

  const jumpedAhead = (): boolean => doubted !== null && deps.monotonicMs() < doubted.untilMs;

  const noteJump = (beforeMs: number, measuredMs: number): void => {
    if (doubted !== null && measuredMs - doubted.zeroMs <= jumpMs) doubted = null;
    if (measuredMs - beforeMs > jumpMs) {
      const untilMs = deps.monotonicMs() + (deps.believedAfterMs ?? believedAfterMs);
      doubted = { zeroMs: jumpedAhead() && doubted ? doubted.zeroMs : beforeMs, untilMs };
    }
  };

  const now = (): number => (zeroMs === undefined ? deps.ownTime() : Math.floor(zeroMs + deps.monotonicMs()));
  return {
    now,
    set(databaseMs, askedAtMs, answeredAtMs) {
      const tookMs = answeredAtMs - askedAtMs;
      const measuredMs = databaseMs - askedAtMs - tookMs / 2;
      if (zeroMs !== undefined && (tookMs > slowAnswerMs || Math.abs(measuredMs - zeroMs) <= toleranceMs + tookMs / 2))
        return;
      // The first time can only be compared with the process's own clock.
      noteJump(zeroMs ?? deps.ownTime() - answeredAtMs, measuredMs);
      zeroMs = measuredMs;
    },
    // Uses the clock before a jump that is not trusted yet, so that lines are still retried after a jump past the
    // deadline of their batch.
    toOwnTime: (databaseMs) =>
      databaseMs - (jumpedAhead() ? (doubted?.zeroMs ?? 0) + deps.monotonicMs() : now()) + deps.ownTime(),
    jumpedAhead,
  };
}

/** Reads the clock, for code that is about to expire or delete something by it. */
export async function readClock(db: Kysely<Database>, clock: Pick<DatabaseClock, 'set'>): Promise<void> {
  const askedMs = performance.now();
  const { rows } = await sql<{ now: Date }>`select clock_timestamp() as now`.execute(db);
  clock.set((rows[0] as { now: Date }).now.getTime(), askedMs, performance.now());
}

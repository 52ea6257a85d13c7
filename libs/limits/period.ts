import type { RateUnit } from '#libs/contracts/people/limits.ts';

/**
 * When a counter restarts at 0: on the first of a month, on Mondays, every given number of days from a given day, at
 * each window of a rate, or never. All of it in UTC. `pace`: it does not restart, but falls by `perMs` each millisecond.
 */
export type Reset = (
  | { every: 'month' | 'week' | RateUnit | 'never' }
  | { every: 'pace'; perMs: number }
  | { every: 'days'; days: number; fromMs: number }
) & {
  /** In addition, it restarted at this moment. */
  sinceMs?: number;
};

/**
 * Includes `startMs` and excludes `endMs`, both in epoch milliseconds; `endMs` is Infinity for a counter that never
 * restarts.
 */
export type Period = { startMs: number; endMs: number };

const dayMs = 86_400_000;
const weekMs = 7 * dayMs;
/** 1970-01-05, the first Monday of the epoch. */
const firstMondayMs = 4 * dayMs;

const windowMs: Record<RateUnit, number> = { rps: 1_000, rpm: 60_000, rph: 3_600_000, rpd: dayMs, rpw: weekMs };

/** How long a pace without calls is stored: by then it has fallen to 0. */
const paceStoredMs = 60_000;

/** Whether these are the windows or the pace of a rate. */
export const isRate = ({ every }: Reset): boolean => every in windowMs || every === 'pace';

/** The period that contains `nowMs`. */
export function periodAt(reset: Reset, nowMs: number): Period {
  const period = periodOf(reset, nowMs);
  const { sinceMs = 0 } = reset;
  return sinceMs > period.startMs && sinceMs <= nowMs ? { ...period, startMs: sinceMs } : period;
}

function periodOf(reset: Reset, nowMs: number): Period {
  switch (reset.every) {
    case 'never':
      return { startMs: 0, endMs: Number.POSITIVE_INFINITY };
    case 'pace':
      return { startMs: 0, endMs: nowMs + paceStoredMs };
    case 'month': {
      const now = new Date(nowMs);
      const [year, month] = [now.getUTCFullYear(), now.getUTCMonth()];
      return { startMs: Date.UTC(year, month), endMs: Date.UTC(year, month + 1) };
    }
    case 'days':
      return windowAt(nowMs, reset.days * dayMs, reset.fromMs - (reset.fromMs % dayMs));
    case 'week':
    case 'rpw':
      return windowAt(nowMs, weekMs, firstMondayMs);
    case 'rps':
    case 'rpm':
    case 'rph':
    case 'rpd':
      return windowAt(nowMs, windowMs[reset.every], 0);
  }
}

function windowAt(nowMs: number, lengthMs: number, fromMs: number): Period {
  const startMs = fromMs + Math.floor((nowMs - fromMs) / lengthMs) * lengthMs;
  return { startMs, endMs: startMs + lengthMs };
}

/** The reset of a budget with these members, from the day on which its record was created. */
export function toReset(
  limit: { periodic_reset?: 'monthly' | 'weekly' | null | undefined; periodic_reset_days?: number | null | undefined },
  createdAtMs: number,
): Reset {
  const { periodic_reset: named, periodic_reset_days: days } = limit;
  if (typeof days === 'number') return { every: 'days', days, fromMs: createdAtMs };
  if (named === 'monthly') return { every: 'month' };
  return { every: named === 'weekly' ? 'week' : 'never' };
}

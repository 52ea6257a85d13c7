import { memoryLimitBytes } from './rig/memory-group.ts';
import type { VictimFigures } from './rig/victim.ts';
import type { AttackFigures } from './run-attack.ts';

/**
 * How much worse the victim may fare beside an attack than alone: twice as long, or as long as this, where twice is less.
 * Two cores that run clients, providers and database as well differ by about that from one minute to the next.
 */
export const allowed = {
  ratio: 2,
  liveP50Ms: 8,
  liveP99Ms: 25,
  batchP50Ms: 500,
  /** Of some twenty batches: a queue that stands still for a while is seen by one of them only, as they come one by one. */
  batchWorstMs: 5_000,
} as const;

/**
 * What of the measure is broken, in words; nothing when it holds. `withTimes: false` leaves out what only a quiet machine
 * can tell.
 */
export function judge(
  { alone, beside, after, crashes, peaks }: Omit<AttackFigures, 'load' | 'outcome'>,
  { withTimes }: { withTimes: boolean },
): string[] {
  const broken: string[] = [...crashes];
  for (const app of ['api', 'worker'] as const) {
    if (peaks[app] >= memoryLimitBytes) broken.push(`${app} took ${Math.round(peaks[app] / 1_048_576)} MB`);
  }
  for (const [when, figures] of [
    ['beside it', beside],
    ['after it', after],
  ] as const) {
    broken.push(...failuresOf(figures, when));
    if (withTimes) broken.push(...delaysOf(alone, figures, when));
  }
  return broken;
}

function failuresOf(victim: VictimFigures, when: string): string[] {
  return Object.entries(victim).flatMap(([what, { failed, sent, reasons }]) => {
    if (failed === 0) return [];
    const told = Object.entries(reasons).map(([reason, count]) => `${reason} (${count})`);
    return [`${failed} of ${sent} of the victim's ${what} failed ${when}: ${told.slice(0, 3).join(', ')}`];
  });
}

function delaysOf(alone: VictimFigures, victim: VictimFigures, when: string): string[] {
  const told = (ms: number | null): string => (ms === null ? 'nothing' : `${ms.toFixed(1)} ms`);
  const compare = (what: string, aloneMs: number | null, ms: number | null, floorMs: number): string[] => {
    const isWithin = aloneMs !== null && ms !== null && ms <= Math.max(allowed.ratio * aloneMs, floorMs);
    return isWithin ? [] : [`${what}: ${told(ms)} ${when}, ${told(aloneMs)} alone`];
  };
  return [
    ...compare('live p50', alone.live.p50Ms, victim.live.p50Ms, allowed.liveP50Ms),
    ...compare('live p99', alone.live.p99Ms, victim.live.p99Ms, allowed.liveP99Ms),
    ...compare('batch p50', alone.batches.p50Ms, victim.batches.p50Ms, allowed.batchP50Ms),
    ...compare('longest batch', alone.batches.worstMs, victim.batches.worstMs, allowed.batchWorstMs),
  ];
}

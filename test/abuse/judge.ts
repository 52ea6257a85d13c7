import { memoryLimitBytes } from './rig/memory-group.ts';
import type { VictimFigures } from './rig/victim.ts';
import type { AttackFigures } from './run-attack.ts';

/**
 * How much worse the victim's figures may be during an attack than alone: twice as high, or higher by this, whichever
 * is more. On two cores that also run clients, providers and the database, figures differ by about that from one minute
 * to the next.
 */
export const allowed = {
  ratio: 2,
  liveP50Ms: 8,
  liveP99Ms: 25,
  batchP50Ms: 500,
  /**
   * Of about twenty batches. They run one after the other, so only one of them notices a queue that stops for a while.
   */
  batchWorstMs: 5_000,
} as const;

/**
 * Returns descriptions of the limits that are broken; none when all hold. `withTimes: false` leaves out the limits that
 * only a quiet machine can meet.
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
    const counted = Object.entries(reasons).map(([reason, count]) => `${reason} (${count})`);
    return [`${failed} of ${sent} of the victim's ${what} failed ${when}: ${counted.slice(0, 3).join(', ')}`];
  });
}

function delaysOf(alone: VictimFigures, victim: VictimFigures, when: string): string[] {
  const inMs = (ms: number | null): string => (ms === null ? 'nothing' : `${ms.toFixed(1)} ms`);
  const compare = (what: string, aloneMs: number | null, ms: number | null, floorMs: number): string[] => {
    const isWithin = aloneMs !== null && ms !== null && ms <= Math.max(allowed.ratio * aloneMs, floorMs);
    return isWithin ? [] : [`${what}: ${inMs(ms)} ${when}, ${inMs(aloneMs)} alone`];
  };
  return [
    ...compare('live p50', alone.live.p50Ms, victim.live.p50Ms, allowed.liveP50Ms),
    ...compare('live p99', alone.live.p99Ms, victim.live.p99Ms, allowed.liveP99Ms),
    ...compare('batch p50', alone.batches.p50Ms, victim.batches.p50Ms, allowed.batchP50Ms),
    ...compare('longest batch', alone.batches.worstMs, victim.batches.worstMs, allowed.batchWorstMs),
  ];
}

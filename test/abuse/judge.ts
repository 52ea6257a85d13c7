import { memoryLimitBytes } from './rig/memory-group.ts';
import type { AttackFigures } from './run-attack.ts';

/** How much worse the victim may fare beside an attack than alone. */
export const allowed = {
  ratio: 2,
  /** Beyond it, because two cores that run clients, provider and database as well are noisy; the product has its share. */
  liveP50Ms: 5,
  liveP99Ms: 20,
  /** The same; ten lines take about a tenth of a second alone. */
  batchP50Ms: 250,
  /** The longest of all: a queue that stands still for a while is seen by one batch only, if they come one by one. */
  batchWorstMs: 4_000,
} as const;

/**
 * What of the measure is broken, in words; nothing when it holds. `withTimes: false` leaves out what only a quiet machine
 * can tell.
 */
export function judge(
  { alone, beside, crashes, peaks }: Pick<AttackFigures, 'alone' | 'beside' | 'crashes' | 'peaks'>,
  { withTimes }: { withTimes: boolean },
): string[] {
  const broken: string[] = [...crashes];
  for (const app of ['api', 'worker'] as const) {
    if (peaks[app] >= memoryLimitBytes) broken.push(`${app} took ${Math.round(peaks[app] / 1_048_576)} MB`);
  }
  for (const [what, figures] of Object.entries(beside)) {
    if (figures.failed === 0) continue;
    const reasons = Object.entries(figures.reasons).map(([reason, count]) => `${reason} (${count})`);
    broken.push(
      `${figures.failed} of ${figures.sent} of the victim's ${what} failed: ${reasons.slice(0, 3).join(', ')}`,
    );
  }
  if (!withTimes) return broken;
  const compare = (what: string, aloneMs: number | null, besideMs: number | null, allowanceMs: number): void => {
    if (aloneMs !== null && besideMs !== null && besideMs <= allowed.ratio * aloneMs + allowanceMs) return;
    const told = (ms: number | null): string => (ms === null ? 'nothing' : `${ms.toFixed(1)} ms`);
    broken.push(`${what}: ${told(besideMs)} beside it, ${told(aloneMs)} alone`);
  };
  compare('live p50', alone.live.p50Ms, beside.live.p50Ms, allowed.liveP50Ms);
  compare('live p99', alone.live.p99Ms, beside.live.p99Ms, allowed.liveP99Ms);
  compare('batch p50', alone.batches.p50Ms, beside.batches.p50Ms, allowed.batchP50Ms);
  compare('longest batch', alone.batches.worstMs, beside.batches.worstMs, allowed.batchWorstMs);
  return broken;
}

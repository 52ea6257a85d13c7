import { sql, type RawBuilder } from 'kysely';

// Durations are counted in bins whose bounds grow by 4 %. Histograms of any calls can be added up, and a quantile read
// from the sum has an error of at most 2 %: the value of a bin has the same relative distance to both of its bounds.

const growth = 1.04;
/** From 0.1 ms to 19 hours. Values outside are counted in the first or last bin. */
export const binMin = -59;
export const binMax = 460;

const shortestMs = 0.01;

/** The bin of a duration in milliseconds. */
export function toLatencyBin(durationMs: number): number {
  const bin = Math.ceil(Math.log(Math.max(durationMs, shortestMs)) / Math.log(growth));
  // Not -0, which would be another text.
  return Math.min(Math.max(bin, binMin), binMax) + 0;
}

/** The bin of `duration_ms`, in SQL. */
export const latencyBin: RawBuilder<unknown> = sql`
  least(greatest(ceil(ln(greatest(duration_ms, ${sql.lit(shortestMs)})) / ln(${sql.lit(growth)}::float8)), ${sql.lit(binMin)}),
    ${sql.lit(binMax)})::int`;

/** In milliseconds. Every duration of the bin is within 2 % of it. */
export const valueOfBin = (bin: number): number => (2 * growth ** bin) / (growth + 1);

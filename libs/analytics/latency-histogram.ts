import { binMax, binMin, valueOfBin } from '#libs/request-log/row/latency-bin.ts';

export type LatencyHistogram = {
  /** Adds the bins of some calls, `bin:calls,bin:calls,…`; several such texts can be joined by commas. */
  add(bins: string): void;
  merge(other: LatencyHistogram): void;
  /** The duration in milliseconds that the share `share` of the calls did not exceed (nearest rank); 0 without calls. */
  quantile(share: number): number;
  counts: Float64Array;
};

const colon = 58;
const comma = 44;
const minus = 45;
const zero = 48;

export function createLatencyHistogram(): LatencyHistogram {
  const counts = new Float64Array(binMax - binMin + 1);
  return {
    counts,
    add(bins) {
      // Parsed without `split`: a month of a busy workspace is megabytes of text, which would become millions of
      // strings.
      let bin = 0;
      let number = 0;
      let sign = 1;
      for (let at = 0; at <= bins.length; at += 1) {
        const code = at === bins.length ? comma : bins.charCodeAt(at);
        if (code === minus) sign = -1;
        else if (code === colon) {
          bin = sign * number;
          number = 0;
          sign = 1;
        } else if (code === comma) {
          counts[bin - binMin] = (counts[bin - binMin] ?? 0) + number;
          number = 0;
        } else number = number * 10 + code - zero;
      }
    },
    merge(other) {
      for (const [index, count] of other.counts.entries()) counts[index] = (counts[index] ?? 0) + count;
    },
    quantile(share) {
      const total = counts.reduce((sum, count) => sum + count, 0);
      const rank = Math.max(1, Math.ceil(share * total));
      let seen = 0;
      for (const [index, count] of counts.entries()) {
        seen += count;
        if (count > 0 && seen >= rank) return valueOfBin(index + binMin);
      }
      return 0;
    },
  };
}

/** How long the simulator waits before it answers, in milliseconds. */
export type Latency =
  | { type: 'fixed'; ms: number }
  | { type: 'uniform'; fromMs: number; toMs: number }
  | { type: 'lognormal'; p50Ms: number; p99Ms: number };

// Longer than any timeout under test, but short enough that a typing error does not block a request for days.
const latencyMaxMs = 3_600_000;
export const latencyForm = '50ms, 2s, uniform:20ms:80ms or lognormal:P50:P99 such as lognormal:300ms:2s';

/** Reads `50ms`, `uniform:FROM:TO` or `lognormal:P50:P99`; returns undefined for any other text. */
export function parseLatency(text: string): Latency | undefined {
  const [kind = '', first, second, ...rest] = text.trim().split(':');
  const direct = parseMs(kind);
  if (direct !== undefined) return first === undefined ? { type: 'fixed', ms: direct } : undefined;
  const low = parseMs(first ?? '');
  const high = parseMs(second ?? '');
  if (low === undefined || high === undefined || high < low || rest.length > 0) return undefined;
  if (kind === 'uniform') return { type: 'uniform', fromMs: low, toMs: high };
  return kind === 'lognormal' && low > 0 ? { type: 'lognormal', p50Ms: low, p99Ms: high } : undefined;
}

/** Draws from the distribution. The tail of a lognormal is cut off at ten times its p99. */
export function drawLatencyMs(latency: Latency, random: () => number): number {
  switch (latency.type) {
    case 'fixed':
      return latency.ms;
    case 'uniform':
      return latency.fromMs + random() * (latency.toMs - latency.fromMs);
    case 'lognormal': {
      const sigma = Math.log(latency.p99Ms / latency.p50Ms) / z99;
      const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
      return Math.min(latency.p50Ms * Math.exp(sigma * normal), latency.p99Ms * 10, latencyMaxMs);
    }
  }
}

const z99 = 2.326_347_9; // The 99th percentile of the standard normal distribution.

function parseMs(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?)(ms|s)$/.exec(text);
  if (match === null) return undefined;
  const ms = Number(match[1]) * (match[2] === 's' ? 1_000 : 1);
  return ms <= latencyMaxMs ? ms : undefined;
}

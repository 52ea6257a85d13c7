import type { Clock } from '#libs/kernel/clock.ts';
import { hashText } from '../model/hash.ts';

/** The values of the x-ratelimit-* headers; `retryAfterMs` is 0 if the call is admitted. */
export type Allowance = { limit: number; remaining: number; resetMs: number; retryAfterMs: number };

// More keys than any test uses. Beyond this number, the oldest key is removed, which resets its limit.
const keysMax = 10_000;

/** A token bucket for each key: `requestsPerMinute` in one burst, refilled evenly over a minute. */
export function createRateLimit({ requestsPerMinute, clock }: { requestsPerMinute: number; clock: Clock }) {
  const buckets = new Map<number, { tokens: number; at: number }>();
  const msPerToken = 60_000 / requestsPerMinute;
  return {
    take(credential: string): Allowance {
      const key = hashText(credential); // Neither the secret nor its length is stored.
      const now = clock.now();
      const last = buckets.get(key);
      const tokens = last === undefined ? requestsPerMinute : last.tokens + Math.max(0, now - last.at) / msPerToken;
      const available = Math.min(requestsPerMinute, tokens);
      const left = available >= 1 ? available - 1 : available;
      buckets.delete(key);
      if (buckets.size >= keysMax) {
        const oldest = buckets.keys().next();
        if (oldest.done !== true) buckets.delete(oldest.value);
      }
      buckets.set(key, { tokens: left, at: now });
      return {
        limit: requestsPerMinute,
        remaining: Math.floor(left),
        resetMs: Math.ceil((requestsPerMinute - left) * msPerToken),
        retryAfterMs: available >= 1 ? 0 : Math.ceil((1 - available) * msPerToken),
      };
    },
  };
}

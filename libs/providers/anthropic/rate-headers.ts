import type { IncomingHttpHeaders } from 'node:http';

const kinds = ['requests', 'tokens', 'input-tokens', 'output-tokens'] as const;

const date = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)$/;
const count = /^\d{1,12}$/;

/**
 * Returns Anthropic's rate limits (platform.claude.com/docs, "Rate limits") as OpenAI's headers: the times at which the
 * limits are full again become durations, from the answer's own date, so that the clock of this machine is not used.
 * Headers that are incomplete or make no sense are left out.
 */
export function readRateHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const found: Record<string, string> = {};
  const nowMs = Date.parse(headers.date ?? '');
  for (const kind of kinds) {
    const [limit, remaining, reset] = (['limit', 'remaining', 'reset'] as const).map((what) => {
      const value = headers[`anthropic-ratelimit-${kind}-${what}`];
      return typeof value === 'string' ? value : '';
    }) as [string, string, string];
    const resetMs = date.test(reset) ? Date.parse(reset) - nowMs : Number.NaN;
    if (!count.test(limit) || !count.test(remaining) || Number.isNaN(resetMs)) continue;
    found[`x-ratelimit-limit-${kind}`] = limit;
    found[`x-ratelimit-remaining-${kind}`] = remaining;
    found[`x-ratelimit-reset-${kind}`] = `${Math.max(0, resetMs)}ms`;
  }
  return found;
}

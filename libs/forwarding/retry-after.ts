/**
 * How long a provider told us to wait, in milliseconds: `retry-after-ms`, its Azure form, or `retry-after` in seconds or
 * as an HTTP date. null when absent, negative, in the past or not understood: the caller then waits by its own rule.
 */
export function readRetryAfter(headers: Readonly<Record<string, string>>, now: number): number | null {
  return (
    milliseconds(headers['retry-after-ms'], 1) ??
    milliseconds(headers['x-ms-retry-after-ms'], 1) ??
    milliseconds(headers['retry-after'], 1_000) ??
    untilDate(headers['retry-after'], now)
  );
}

function milliseconds(text: string | undefined, unitMs: number): number | null {
  if (text === undefined || !/^\s*\d{1,12}(\.\d+)?\s*$/.test(text)) return null;
  return Math.ceil(Number(text) * unitMs);
}

/** The three date forms of RFC 9110 5.6.7 all start with a weekday; nothing else is given to Date's lenient parser. */
function untilDate(text: string | undefined, now: number): number | null {
  if (text === undefined || !/^\s*(Mon|Tue|Wed|Thu|Fri|Sat|Sun)/.test(text)) return null;
  const at = Date.parse(text);
  return at > now ? at - now : null;
}

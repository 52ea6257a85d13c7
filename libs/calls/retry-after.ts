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

/** However many digits: a number that is absurdly large says not to come back, which is not the same as saying nothing. */
function milliseconds(text: string | undefined, unitMs: number): number | null {
  if (text === undefined || !/^\s*\d+(\.\d+)?\s*$/.test(text)) return null;
  return Math.min(Math.ceil(Number(text) * unitMs), Number.MAX_SAFE_INTEGER);
}

/** The three date forms of RFC 9110 5.6.7 all start with a weekday; nothing else is given to Date's lenient parser. */
function untilDate(text: string | undefined, now: number): number | null {
  if (text === undefined || !/^\s*(Mon|Tue|Wed|Thu|Fri|Sat|Sun)/.test(text)) return null;
  // That of asctime names no zone, and would be taken for the time of this machine's.
  const at = Date.parse(/GMT\s*$/.test(text) ? text : `${text} GMT`);
  return at > now ? at - now : null;
}

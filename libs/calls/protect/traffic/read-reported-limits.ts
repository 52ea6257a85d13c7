/** What a provider said of one of its limits. `resetsAtMs`: when all of it is free again, in epoch milliseconds. */
export type ReportedLimit = { of: string; limit: number | null; remaining: number | null; resetsAtMs: number | null };

// More kinds of limits than any provider reports in one answer.
const limitsMax = 8;
// A limit for longer than a month is a contract, and what looks like one is a number of another unit.
const resetMsMax = 31 * 86_400_000;

const named = /ratelimit-(?:(limit|remaining|reset)(?:-([a-z-]{1,40}))?|([a-z-]{1,40})-(limit|remaining|reset))$/;

/**
 * Returns the limits that the headers of an answer report, by what is limited (`requests`, `input-tokens`), at most
 * eight. Providers name them in two ways, `x-ratelimit-limit-requests` and `…-ratelimit-requests-limit`, and say when
 * all is free again as a duration (`6m0s`), as seconds or as a time. What cannot be read is null, and a limit without
 * any number is left out.
 */
export function readReportedLimits(headers: Readonly<Record<string, string>>, now: number): ReportedLimit[] {
  const found = new Map<string, ReportedLimit>();
  for (const name of Object.keys(headers)) {
    const match = named.exec(name);
    if (match === null) continue;
    const [, member = match[4], of = match[3] ?? 'requests'] = match;
    let report = found.get(of);
    if (report === undefined) {
      if (found.size === limitsMax) continue;
      report = { of, limit: null, remaining: null, resetsAtMs: null };
      found.set(of, report);
    }
    const value = headers[name] ?? '';
    if (member === 'limit') report.limit = numberOf(value);
    else if (member === 'remaining') report.remaining = numberOf(value);
    else report.resetsAtMs = resetOf(value, now);
  }
  return [...found.values()].filter(({ limit, remaining }) => limit !== null || remaining !== null);
}

function numberOf(text: string): number | null {
  if (!/^\d{1,15}(\.\d{1,9})?$/.test(text)) return null;
  return Math.floor(Number(text));
}

const unitsMs: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

function resetOf(text: string, now: number): number | null {
  const at = timeOf(text, now);
  return at === null || Number.isNaN(at) || Math.abs(at - now) > resetMsMax ? null : Math.ceil(at);
}

function timeOf(text: string, now: number): number | null {
  if (text.length > 40) return null;
  if (/^\d+(\.\d+)?$/.test(text)) {
    const value = Number(text);
    // Seconds from now, or a time in seconds or milliseconds: nobody waits for thirty years.
    if (value < 1e9) return now + value * 1_000;
    return value < 1e12 ? value * 1_000 : value;
  }
  if (/^(\d+(\.\d+)?(ms|s|m|h|d))+$/.test(text)) {
    let ms = 0;
    for (const [, value, , unit = ''] of text.matchAll(/(\d+(\.\d+)?)(ms|s|m|h|d)/g))
      ms += Number(value) * (unitsMs[unit] ?? 0);
    return now + ms;
  }
  return /^\d{4}-\d\d-\d\dT/.test(text) ? Date.parse(text) : null;
}

import type { IncomingHttpHeaders } from 'node:http';

// What SDKs act on or users look at (HDR-1); everything else of a provider stays here.
const admitted: ReadonlySet<string> = new Set([
  'retry-after',
  'retry-after-ms',
  'x-ms-retry-after-ms',
  'x-should-retry',
  'openai-processing-ms',
  'openai-version',
]);

/** The headers of a provider's answer that go on to the client; none that repeats a secret. */
export function admittedHeaders(headers: IncomingHttpHeaders, secrets: readonly string[]): Record<string, string> {
  const result: Record<string, string> = {};
  for (const name of Object.keys(headers)) {
    const value = headers[name];
    if (typeof value !== 'string' || !(admitted.has(name) || name.startsWith('x-ratelimit-'))) continue;
    if (!repeats(value, secrets) && !repeats(name, secrets)) result[name] = value;
  }
  return result;
}

// A shorter secret is a placeholder, and stands in texts by chance.
const secretLengthMin = 8;

/** Names of headers are told in lower case. */
function repeats(text: string, secrets: readonly string[]): boolean {
  for (const secret of secrets) {
    if (secret.length < secretLengthMin || text.length < secret.length) continue;
    if (text.toLowerCase().includes(secret.toLowerCase())) return true;
  }
  return false;
}

/** The client's headers that this provider may see. */
export function pickHeaders(
  headers: Readonly<Record<string, string>> | undefined,
  names: readonly string[],
): Record<string, string> {
  const result: Record<string, string> = {};
  if (headers === undefined) return result;
  for (const name of names) {
    const value = headers[name];
    if (value !== undefined) result[name] = value;
  }
  return result;
}

/** The first of these headers that is there and repeats no secret, as the provider's own id of the call. */
export function requestIdOf(
  headers: IncomingHttpHeaders,
  names: readonly string[],
  secrets: readonly string[],
): string | null {
  for (const name of names) {
    const value = headers[name];
    if (typeof value === 'string' && value !== '' && !repeats(value, secrets)) return value.slice(0, 200);
  }
  return null;
}

const namesLengthMax = 1_000;

/**
 * Parameter names as one header value. They are the client's own text: what no header can carry is percent-encoded, and
 * past 1,000 characters the rest is only counted.
 */
export function namesForHeader(names: readonly string[]): string {
  let text = '';
  for (const [index, name] of names.entries()) {
    const shown = name.toWellFormed().replaceAll(/[^\x21-\x7e]|[,%]/gu, encodeURIComponent);
    if (text.length + shown.length > namesLengthMax) return `${text}${text && ', '}and ${names.length - index} more`;
    text += `${text && ', '}${shown}`;
  }
  return text;
}

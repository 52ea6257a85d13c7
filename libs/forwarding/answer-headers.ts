import type { IncomingHttpHeaders } from 'node:http';

// What SDKs act on or users look at (openai-semantics.md 4.2); everything else of a provider stays here.
const admitted: ReadonlySet<string> = new Set([
  'retry-after',
  'retry-after-ms',
  'x-ms-retry-after-ms',
  'x-should-retry',
  'openai-processing-ms',
  'openai-version',
]);

/** The headers of a provider's answer that go on to the client. */
export function admittedHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const result: Record<string, string> = {};
  for (const name of Object.keys(headers)) {
    const value = headers[name];
    if (typeof value === 'string' && (admitted.has(name) || name.startsWith('x-ratelimit-'))) result[name] = value;
  }
  return result;
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

/** The first of these headers that is there, as the provider's own id of the call. */
export function requestIdOf(headers: IncomingHttpHeaders, names: readonly string[]): string | null {
  for (const name of names) {
    const value = headers[name];
    if (typeof value === 'string' && value !== '') return value.slice(0, 200);
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

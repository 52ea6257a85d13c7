import type { IncomingHttpHeaders } from 'node:http';
import { readReset } from './rate-reset.ts';
import { hasMessageForm } from '#libs/providers/messages/error-type.ts';
import type { Operation } from '#libs/providers/provider.ts';

// Headers that SDKs use or users look at (HDR-1). All other headers of a provider are dropped.
const admitted: ReadonlySet<string> = new Set([
  'retry-after',
  'retry-after-ms',
  'x-ms-retry-after-ms',
  'x-should-retry',
  'openai-processing-ms',
  'openai-version',
]);

/** Returns the headers of a provider's answer that are sent to the client, without any that contains a secret. */
export function admittedHeaders(
  headers: IncomingHttpHeaders,
  secrets: readonly string[],
  operation?: Operation,
): Record<string, string> {
  const result: Record<string, string> = {};
  for (const name of Object.keys(headers)) {
    const value = headers[name];
    if (typeof value !== 'string' || !(admitted.has(name) || isRate(name, operation))) continue;
    if (!repeats(value, secrets) && !repeats(name, secrets)) result[name] = value;
  }
  return hasMessageForm(operation) ? withMessageRates(result) : result;
}

const ownRates = 'anthropic-ratelimit-';

/** `x-ratelimit-` also paces later calls (traffic/rate-pace.ts), whatever the operation. */
const isRate = (name: string, operation: Operation | undefined): boolean =>
  name.startsWith('x-ratelimit-') || (hasMessageForm(operation) && name.startsWith(ownRates));

const rateKinds = ['requests', 'tokens'] as const;

/**
 * Adds OpenAI's rate limits by the names that clients of Anthropic read (platform.claude.com/docs, "Rate limits"), with the
 * time at which a limit is full again, unless the provider has sent its own.
 */
function withMessageRates(headers: Record<string, string>): Record<string, string> {
  if (Object.keys(headers).some((name) => name.startsWith(ownRates))) return headers;
  for (const kind of rateKinds) {
    const [limit, remaining] = [headers[`x-ratelimit-limit-${kind}`], headers[`x-ratelimit-remaining-${kind}`]];
    const resetMs = readReset(headers[`x-ratelimit-reset-${kind}`]);
    if (limit === undefined || remaining === undefined || resetMs === null) continue;
    headers[`${ownRates}${kind}-limit`] = limit;
    headers[`${ownRates}${kind}-remaining`] = remaining;
    headers[`${ownRates}${kind}-reset`] = new Date(Date.now() + resetMs).toISOString();
  }
  return headers;
}

// A shorter secret is a placeholder, which texts contain by chance.
const secretLengthMin = 8;

/** Names of headers are in lower case. */
function repeats(text: string, secrets: readonly string[]): boolean {
  for (const secret of secrets) {
    if (secret.length < secretLengthMin || text.length < secret.length) continue;
    if (text.toLowerCase().includes(secret.toLowerCase())) return true;
  }
  return false;
}

/** Returns the client's headers that this provider is allowed to see. */
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

/** Returns the first of these headers that is present and contains no secret, as the provider's own id of the call. */
export function findRequestId(
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
 * Returns parameter names as one header value. They are the client's own text: characters that a header cannot contain
 * are percent-encoded, and names beyond 1,000 characters are only counted.
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

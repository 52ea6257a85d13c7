import { scrub } from '#libs/kernel/logging/scrub.ts';
import type { Operation, ProviderError } from '#libs/providers/provider.ts';
import { hasMessageForm, messageErrorType } from '#libs/providers/messages/error-type.ts';
import { toGoogleError } from '#libs/providers/generate-content/google-error.ts';
import { asRecord } from './answers/usage.ts';

/**
 * Returns the body that reports a provider's error to the client: the provider's own bytes if they already have
 * the format of the operation and contain no credential, otherwise a scrubbed one from the adapter's reading.
 */
export function errorBody(
  status: number,
  bytes: Buffer,
  decode: () => ProviderError,
  secrets: readonly string[],
  operation?: Operation,
): { body: Buffer; error: ProviderError } {
  const error = readError(status, bytes, decode, secrets);
  if (isClean(bytes, secrets, operation)) return { body: bytes, error };
  const { message, type, param, code } = error.error;
  const fallback = status < 500 ? 'invalid_request_error' : 'server_error';
  if (isGoogles(operation)) {
    const body = toGoogleError(status, { message, param, code });
    return { body: Buffer.from(JSON.stringify(body)), error };
  }
  if (hasMessageForm(operation)) {
    const body = { type: 'error', error: { type: messageErrorType(error.status ?? status), message } };
    return { body: Buffer.from(JSON.stringify(body)), error };
  }
  return { body: Buffer.from(JSON.stringify({ error: { message, type: type ?? fallback, param, code } })), error };
}

/**
 * Returns the adapter's reading of a provider's error, scrubbed. An HTML page (of a load balancer) is described as
 * such, with its beginning.
 */
export function readError(
  status: number,
  bytes: Buffer,
  decode: () => ProviderError,
  secrets: readonly string[],
): ProviderError {
  const body = scrubbed(decode(), secrets);
  if (!/^\s*</.test(bytes.toString('latin1', 0, 100))) return body;
  const message = `The provider returned status ${status} with a body that is not JSON.${sampleBody(bytes, secrets)}`;
  return { ...body, error: { ...body.error, message } };
}

const sampleLengthMax = 1_000;

/**
 * The beginning of an unreadable body, for the end of a message: scrubbed, quoted, at most 1,000 characters; '' when it
 * is empty.
 */
export function sampleBody(body: string | Buffer, secrets: readonly string[]): string {
  const text = scrub(body.toString('utf8').slice(0, 4 * sampleLengthMax), secrets).trim();
  return text === ''
    ? ''
    : ` It starts with: ${JSON.stringify(text.slice(0, sampleLengthMax)).slice(0, sampleLengthMax)}`;
}

/** Returns an error whose texts are all safe to show, including its code, which goes into records and logs. */
export function scrubbed({ error, ...rest }: ProviderError, secrets: readonly string[]): ProviderError {
  const clean = (text: string | null): string | null => (text === null ? null : scrub(text, secrets, 200));
  const { message, type, param, code } = error;
  return {
    ...rest,
    error: { message: scrub(message, secrets), type: clean(type), param: clean(param), code: clean(code) },
  };
}

const isGoogles = (operation: Operation | undefined): boolean =>
  operation === 'generate_content' || operation === 'count_content_tokens';

function isClean(bytes: Buffer, secrets: readonly string[], operation?: Operation): boolean {
  let parsed: unknown;
  try {
    parsed = JSON.parse(bytes.toString());
  } catch {
    return false;
  }
  const error = asRecord(asRecord(parsed)['error']);
  const hasForm =
    typeof error['message'] === 'string' &&
    (isGoogles(operation)
      ? typeof error['code'] === 'number' && typeof error['status'] === 'string'
      : typeof error['type'] === 'string' &&
        (hasMessageForm(operation)
          ? asRecord(parsed)['type'] === 'error'
          : ['param', 'code'].every((key) => error[key] === null || typeof error[key] === 'string')));
  // Compared after parsing and writing it again, so that no escape sequence can hide a key.
  const text = JSON.stringify(parsed);
  return hasForm && scrub(text, secrets, Number.POSITIVE_INFINITY) === text;
}

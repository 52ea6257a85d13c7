import type { ProviderError } from '../provider.ts';
import { asText, parseJson, toRecord, toRecords } from '../turns/json-value.ts';

/**
 * Reads Google's error bodies: `{error: {code, message, status, details}}`, inside a list if the stream would have been
 * a list, or any other body from a proxy. Never throws.
 */
export function decodeGoogleError(status: number, body: string): ProviderError {
  const parsed = parseJson(body);
  const outer = toRecord(Array.isArray(parsed) ? parsed[0] : parsed);
  const error = toRecord(outer['error']);
  const { code, message, status: name, details } = error;
  const ownStatus = typeof code === 'number' && Number.isInteger(code) && code >= 400 && code <= 599 ? code : undefined;
  const real = status >= 400 ? status : (ownStatus ?? 502);
  const retryAfterMs = retryDelayOf(details);
  const plain = asText(outer['error']) ?? (parsed === undefined ? body.trim() : '');
  return {
    error: {
      message: asText(message) || asText(name) || plain || `The provider returned status ${real}.`,
      type: typeOf(real),
      param: fieldOf(details),
      code: asText(name) ?? null,
    },
    ...(ownStatus === undefined ? {} : { status: ownStatus }),
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  };
}

/** OpenAI's error types, by which its SDKs distinguish errors. */
function typeOf(status: number): string {
  if (status === 401) return 'authentication_error';
  if (status === 403) return 'permission_error';
  if (status === 429) return 'rate_limit_error';
  return status < 500 ? 'invalid_request_error' : 'server_error';
}

/** google.rpc.RetryInfo: a protobuf duration, in seconds with a fraction (`34.4s`). */
function retryDelayOf(details: unknown): number | undefined {
  for (const detail of toRecords(details)) {
    if (!asText(detail['@type'])?.endsWith('google.rpc.RetryInfo')) continue;
    const seconds = /^(\d{1,9}(?:\.\d{1,9})?)s$/.exec(asText(detail['retryDelay']) ?? '')?.[1];
    if (seconds !== undefined) return Math.ceil(Number(seconds) * 1_000);
  }
  return undefined;
}

/** google.rpc.BadRequest: the first invalid field, by Google's name for it. */
function fieldOf(details: unknown): string | null {
  for (const detail of toRecords(details)) {
    const field = asText(toRecords(detail['fieldViolations'])[0]?.['field']);
    if (field) return field;
  }
  return null;
}

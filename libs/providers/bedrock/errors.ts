import type { ProviderError } from '../provider.ts';
import { asNumber, asText, parseJson, toRecord } from '../turns/json-value.ts';

// AWS API reference: Converse "Errors" and ConverseStreamOutput.
const statuses: Readonly<Record<string, number>> = {
  validationexception: 400,
  accessdeniedexception: 403,
  resourcenotfoundexception: 404,
  modeltimeoutexception: 408,
  modelerrorexception: 424,
  modelstreamerrorexception: 424,
  throttlingexception: 429,
  modelnotreadyexception: 429,
  servicequotaexceededexception: 400,
  internalserverexception: 500,
  serviceunavailableexception: 503,
};

const types: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  408: 'timeout_error',
  429: 'rate_limit_error',
};

const typeOf = (status: number): string =>
  types[status] ?? (status < 500 && status !== 424 ? 'invalid_request_error' : 'server_error');

/** `{message}`, sometimes with the exception's name in `__type`, or a proxy's error page. */
export function decodeBedrockError(status: number, body: string): ProviderError {
  const parsed = parseJson(body) ?? null;
  const raw = parsed === null ? body.trim() : '';
  const name = asText(toRecord(parsed)['__type'])?.split('#').at(-1) ?? null;
  return {
    error: {
      message: messageOf(parsed) ?? (raw === '' ? `The provider returned status ${status}.` : raw),
      type: typeOf(status),
      param: null,
      code: name,
    },
  };
}

/** An exception in a stream: its name is the code and determines the status. */
export function decodeException(name: string, data: string): ProviderError {
  const payload = parseJson(data);
  const { originalStatusCode, code } = toRecord(payload);
  const key = name.toLowerCase();
  const status = Object.hasOwn(statuses, key) ? (statuses[key] ?? 500) : (asNumber(originalStatusCode) ?? 500);
  return {
    error: {
      message: messageOf(payload) ?? `The provider ended the stream with ${name}.`,
      type: typeOf(status),
      param: null,
      code: name === 'error' ? (asText(code) ?? null) : name,
    },
    status,
  };
}

/** Whether a stream event with that name is an error. */
export const isException = (event: string): boolean => event === 'error' || event.endsWith('Exception');

function messageOf(payload: unknown): string | undefined {
  const { message, Message } = toRecord(payload);
  return asText(message) || asText(Message) || undefined;
}

import type { ProviderError } from '../provider.ts';
import { asNumber, asText, parseJson, toRecord } from '../turns/json-value.ts';

// AWS API reference: Converse "Errors" and ConverseStreamOutput.
const exceptions = {
  ValidationException: 400,
  AccessDeniedException: 403,
  ResourceNotFoundException: 404,
  ModelTimeoutException: 408,
  ModelErrorException: 424,
  ModelStreamErrorException: 424,
  ThrottlingException: 429,
  ModelNotReadyException: 429,
  ServiceQuotaExceededException: 400,
  InternalServerException: 500,
  ServiceUnavailableException: 503,
} as const;

/** Streams write the names with another first letter. */
const statuses: ReadonlyMap<string, number> = new Map(
  Object.entries(exceptions).map(([name, status]) => [name.toLowerCase(), status]),
);

/** An error as InvokeModel answers it, with our code as its reason. */
export function toInvokeError(status: number, { message, code }: InvokeErrorText): object {
  const name = Object.entries(exceptions).find(([, known]) => known === status)?.[0];
  const type = name ?? (status < 500 ? 'ValidationException' : 'InternalServerException');
  return { __type: type, message, ...(code ? { reason: code } : {}) };
}

type InvokeErrorText = { message: string; code?: string | null };

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
  const status = statuses.get(key) ?? asNumber(originalStatusCode) ?? 500;
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

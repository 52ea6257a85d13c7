import { decodeOpenAiError } from '../openai-error.ts';
import type { ProviderError } from '../provider.ts';

// platform.claude.com/docs "Errors". In a stream there is only the type, not the status.
const statuses: Readonly<Record<string, number>> = {
  invalid_request_error: 400,
  authentication_error: 401,
  billing_error: 402,
  permission_error: 403,
  not_found_error: 404,
  request_too_large: 413,
  rate_limit_error: 429,
  api_error: 500,
  timeout_error: 504,
  overloaded_error: 529,
};

/** `{type: 'error', error: {type, message}}`. The type is also the code and determines the status. */
export function decodeAnthropicError(status: number, body: string): ProviderError {
  const read = decodeOpenAiError(status, body);
  const { type, code } = read.error;
  const ownStatus = type !== null && Object.hasOwn(statuses, type) ? statuses[type] : undefined;
  return {
    ...read,
    error: { ...read.error, code: code ?? (ownStatus === undefined ? null : type) },
    ...(ownStatus === undefined ? {} : { status: ownStatus }),
  };
}

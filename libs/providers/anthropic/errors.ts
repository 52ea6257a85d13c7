import { decodeOpenAiError } from '../openai-compatible.ts';
import type { ProviderError } from '../provider.ts';

// platform.claude.com/docs "Errors". Inside a stream the type is all there is.
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

/** `{type: 'error', error: {type, message}}`; its type is the code as well, and names the status. */
export function decodeAnthropicError(status: number, body: string): ProviderError {
  const read = decodeOpenAiError(status, body);
  const { type, code } = read.error;
  const told = type !== null && Object.hasOwn(statuses, type) ? statuses[type] : undefined;
  return {
    ...read,
    error: { ...read.error, code: code ?? (told === undefined ? null : type) },
    ...(told === undefined ? {} : { status: told }),
  };
}

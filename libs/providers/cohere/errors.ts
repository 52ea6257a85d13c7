import { GatewayError } from '#libs/kernel/errors.ts';
import { decodeOpenAiError } from '../openai-error.ts';
import type { ProviderError } from '../provider.ts';

/** `{message, id}` (docs.cohere.com/reference/errors), without a code. */
export function decodeCohereError(status: number, body: string): ProviderError {
  return decodeOpenAiError(status, body);
}

/** The error for a finish reason that is a failure, although the status is 200; undefined for all others. */
export function toFailure(finishReason: unknown, detail: string | undefined): ProviderError | undefined {
  if (finishReason !== 'ERROR' && finishReason !== 'TIMEOUT') return undefined;
  const timedOut = finishReason === 'TIMEOUT';
  const message =
    detail ??
    (timedOut ? 'Cohere timed out while generating this answer.' : 'Cohere failed while generating this answer.');
  return {
    status: timedOut ? 504 : 502,
    error: { message, type: 'server_error', param: null, code: timedOut ? 'upstream_timeout' : 'upstream_error' },
  };
}

/** The same for a whole answer, where a decoder has to throw. */
export function throwFailure({ error, status }: ProviderError): never {
  throw new GatewayError(status === 504 ? 'provider_timeout' : 'provider_failed', error.code, error.message);
}

import { GatewayError } from '#libs/kernel/errors.ts';
import { decodeOpenAiError } from '../openai-compatible.ts';
import type { ProviderError } from '../provider.ts';

/** `{message, id}` (docs.cohere.com/reference/errors): flat, without a code. */
export function decodeCohereError(status: number, body: string): ProviderError {
  return decodeOpenAiError(status, body);
}

/** Ends that are failures, in an answer that says 200 all the same; undefined for every other finish reason. */
export function failureOf(finishReason: unknown, detail: string | undefined): ProviderError | undefined {
  if (finishReason !== 'ERROR' && finishReason !== 'TIMEOUT') return undefined;
  const timedOut = finishReason === 'TIMEOUT';
  const message = detail ?? (timedOut ? 'Cohere ran out of time for this answer.' : 'Cohere failed in this answer.');
  return {
    status: timedOut ? 504 : 502,
    error: { message, type: 'server_error', param: null, code: timedOut ? 'upstream_timeout' : 'upstream_error' },
  };
}

/** The same of a whole answer, which a decoder can only throw. */
export function throwFailure({ error, status }: ProviderError): never {
  throw new GatewayError(status === 504 ? 'provider_timeout' : 'provider_failed', error.code, error.message);
}

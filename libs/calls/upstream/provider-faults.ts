import { callAborted } from '#libs/calls/cancelled.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import type { ProviderError } from '#libs/providers/provider.ts';
import { sampleBody, scrubbed } from './error-body.ts';

/**
 * The errors of one target. Each message contains its label, and neither a credential nor foreign control characters.
 */
export type Faults = ReturnType<typeof faultsOf>;

/** Like `faultsOf`, but created when the first error is needed, because nearly every call ends without one. */
export function createLazyFaults(label: string, secrets: readonly string[]): () => Faults {
  let made: Faults | undefined;
  return () => (made ??= faultsOf(label, secrets));
}

/** Makes the errors of one call. `secrets`: texts that must not appear in anything from the provider. */
function faultsOf(label: string, secrets: readonly string[]) {
  const failed = (code: string, message: string, cause?: unknown): GatewayError =>
    new GatewayError('provider_failed', code, message, cause === undefined ? {} : { cause });
  const timedOut = (code: string, message: string): GatewayError => new GatewayError('provider_timeout', code, message);
  return {
    /**
     * A 200 with something other than what was requested. `sample` is shown scrubbed, quoted and cut to 1,000
     * characters.
     */
    invalid: (what: string, sample: string | Buffer = ''): GatewayError =>
      failed('upstream_invalid_response', `${label} ${what}.${sampleBody(sample, secrets)}`),
    unreadable: (cause: unknown): GatewayError =>
      failed('upstream_invalid_response', `${label} sent an answer that cannot be parsed${codeOf(cause)}.`, cause),
    tooLarge: (what: string, limit: number): GatewayError =>
      failed('upstream_response_too_large', `${label} sent ${what} larger than the limit of ${limit} bytes.`),
    tooComplex: (bytes: number, limit: number): GatewayError =>
      failed(
        'upstream_response_too_large',
        `${label} sent an answer that needs at least ${bytes} bytes of memory to parse. The limit is ${limit} bytes. Request a smaller answer.`,
      ),
    tooManyValues: (): GatewayError => tooManyValues(label),
    notRead: (ms: number): GatewayError =>
      failed(
        'upstream_response_too_large',
        `${label} sent an answer that could not be parsed within ${ms} ms or within the memory limit. Request a smaller answer.`,
      ),
    redirect: (status: number): GatewayError =>
      failed(
        'upstream_redirect',
        `${label} returned a redirect (${status}). Redirects are never followed. Set its host to the final address.`,
      ),
    truncated: (cause?: unknown): GatewayError =>
      failed('upstream_truncated', `${label} ended its answer before it was complete${codeOf(cause)}.`, cause),
    unreachable: (cause: unknown): GatewayError =>
      failed('upstream_unreachable', `${label} could not be reached${codeOf(cause)}.`, cause),
    connectionLost: (cause: unknown): GatewayError =>
      failed('upstream_connection_lost', `${label} closed the connection without an answer${codeOf(cause)}.`, cause),
    /** A finished answer to a request for a JSON object that is not one. `said` is shown like a sample. */
    jsonObjectNotMet: (said: string): GatewayError =>
      failed(
        'json_object_not_met',
        `${label} has no JSON mode for this model. The model was instructed to answer with a JSON object but did not. Send the request again, describe the object in a message, or use a model with a JSON mode.${sampleBody(said, secrets)}`,
      ),
    /** An error that the provider put into its stream. */
    streamError: (reported: ProviderError): GatewayError => {
      const { message, code, type, param } = scrubbed(reported, secrets).error;
      return new GatewayError('provider_failed', code ?? 'upstream_error', message, { type, param });
    },
    /** An error that a translation found in an answer. Its text can come from the provider. */
    inAnswer: ({
      kind,
      code,
      message,
      param,
    }: Pick<GatewayError, 'kind' | 'code' | 'message' | 'param'>): GatewayError =>
      new GatewayError(kind, code === null ? null : scrub(code, secrets, 200), scrub(message, secrets), { param }),
    connectTimeout: (ms: number): GatewayError =>
      timedOut('upstream_connect_timeout', `Could not connect to ${label} within ${ms} ms.`),
    headersTimeout: (ms: number): GatewayError =>
      timedOut('upstream_headers_timeout', `${label} did not answer within ${ms} ms.`),
    idleTimeout: (ms: number): GatewayError =>
      timedOut('upstream_idle_timeout', `${label} sent no data for ${ms} ms in the middle of its answer.`),
    answerTimeout: (ms: number): GatewayError =>
      timedOut('upstream_answer_timeout', `${label} did not answer within ${ms} ms, the request timeout of this call.`),
    totalTimeout: (ms: number): GatewayError =>
      timedOut('upstream_total_timeout', `The call to ${label} took longer than ${ms} ms.`),
    callerLeft: (): GatewayError => callAborted(label),
  };
}

/** The system's code of a failure (ECONNREFUSED). Never its text, which can contain a URL or a header. */
function codeOf(cause: unknown): string {
  const code = typeof cause === 'object' && cause !== null && 'code' in cause ? cause.code : undefined;
  return typeof code === 'string' && /^[A-Z0-9_]{1,40}$/.test(code) ? ` (${code})` : '';
}

/** An event, or an answer that becomes one, is never read in a thread, because events must stay in order. */
export function tooManyValues(label: string): GatewayError {
  const message = `${label} sent an event with too many values to parse while streaming. Send the request without "stream".`;
  return new GatewayError('provider_failed', 'upstream_response_too_large', message);
}

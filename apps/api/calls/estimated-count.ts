import type { Outcome } from '#libs/calls/call.ts';
import { sentTokens } from '#libs/calls/upstream/answers/estimate-usage.ts';

/** The header that marks a count as estimated. */
export const estimatedCount = 'x-gateway-token-count';

/**
 * Returns an estimate from the size of the request's body instead of the refusal by a provider that cannot count tokens, which
 * is not called. `answer` returns the body with the count. Other outcomes are returned unchanged.
 */
export function estimateIfUnsupported(outcome: Outcome, body: Buffer, answer: (tokens: number) => object): Outcome {
  if (outcome.kind !== 'failed' || outcome.error.code !== 'unsupported_operation') return outcome;
  return {
    kind: 'json',
    status: 200,
    headers: { [estimatedCount]: 'estimated' },
    body: Buffer.from(JSON.stringify(answer(sentTokens(body)))),
    contentType: 'application/json',
    providerRequestId: null,
    attempts: outcome.attempts,
    usage: null,
    model: null,
    finishReason: null,
  };
}

import type { Outcome } from '#libs/calls/call.ts';
import { sentTokens } from '#libs/calls/upstream/answers/estimate-usage.ts';

/** The header that marks a count as estimated. */
export const estimatedCount = 'x-gateway-token-count';

/**
 * The answer to a request to count tokens of which the provider cannot count any: an estimate from the size of the request's
 * body. null: the provider's own answer stands.
 */
export function estimateCount(outcome: Outcome, body: Buffer): Outcome | null {
  if (outcome.kind !== 'failed' || outcome.error.code !== 'unsupported_operation') return null;
  return {
    kind: 'json',
    status: 200,
    headers: { [estimatedCount]: 'estimated' },
    body: Buffer.from(JSON.stringify({ input_tokens: sentTokens(body) })),
    contentType: 'application/json',
    providerRequestId: null,
    attempts: outcome.attempts,
    usage: null,
    model: null,
    finishReason: null,
  };
}

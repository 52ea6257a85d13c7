import type { Outcome } from '#libs/forwarding/answer.ts';
import type { CallResult } from './circuit.ts';

/**
 * How an outcome counts for a breaker. No answer at all is a failure, and so are the listed statuses (null: 500 and
 * above). A rate limit is a wait and no failure; what was refused here, or left by its caller, says nothing.
 */
export function resultOf(outcome: Outcome | null, statuses: readonly number[] | null): CallResult {
  if (outcome === null) return 'none';
  if (outcome.kind === 'failed') {
    const { kind } = outcome.error;
    return kind === 'provider_failed' || kind === 'provider_timeout' ? 'failure' : 'none';
  }
  const { status } = outcome;
  if (status === 429) return 'none';
  return (statuses === null ? status >= 500 : statuses.includes(status)) ? 'failure' : 'success';
}

/** A failure in one word, for people: an error code, or `http_503`. */
export function reasonOf(outcome: Outcome | null): string {
  if (outcome === null) return '';
  return outcome.kind === 'failed' ? (outcome.error.code ?? outcome.error.kind) : `http_${outcome.status}`;
}

import type { Ended } from '#libs/calls/retry-waits.ts';
import type { CallResult } from './circuit.ts';

/**
 * How a call counts for a breaker. No answer at all is a failure, and so are the listed statuses (null: 500 and
 * above). A rate limit is a wait and no failure; what was refused here, or left by its caller, says nothing.
 */
export function resultOf(ended: Ended, statuses: readonly number[] | null): CallResult {
  if (ended === null) return 'none';
  if ('error' in ended) {
    const { kind } = ended.error;
    return kind === 'provider_failed' || kind === 'provider_timeout' ? 'failure' : 'none';
  }
  const { status } = ended;
  if (status === 429) return 'none';
  return (statuses === null ? status >= 500 : statuses.includes(status)) ? 'failure' : 'success';
}

/** A failure in one word, for people: an error code, or `http_503`. */
export function reasonOf(ended: Ended): string {
  if (ended === null) return '';
  return 'error' in ended ? (ended.error.code ?? ended.error.kind) : `http_${ended.status}`;
}

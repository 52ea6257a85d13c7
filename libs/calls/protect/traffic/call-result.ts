import type { Ended } from '#libs/calls/retry-waits.ts';
import type { CallResult } from './circuit.ts';

/**
 * Returns how a call counts for a breaker. A call without an answer is a failure, and so are the listed statuses (null:
 * 500 and above). A rate limit causes a wait and is not a failure. A call that was refused here or left by its caller
 * does not count.
 */
export function classifyCall(ended: Ended, statuses: readonly number[] | null): CallResult {
  if (ended === null) return 'none';
  if ('error' in ended) {
    const { kind } = ended.error;
    return kind === 'provider_failed' || kind === 'provider_timeout' ? 'failure' : 'none';
  }
  const { status } = ended;
  if (status === 429) return 'none';
  return (statuses === null ? status >= 500 : statuses.includes(status)) ? 'failure' : 'success';
}

/** Describes a failure in one word, for people: an error code, or `http_503`. */
export function reasonOf(ended: Ended): string {
  if (ended === null) return '';
  return 'error' in ended ? (ended.error.code ?? ended.error.kind) : `http_${ended.status}`;
}

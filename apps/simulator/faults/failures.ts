import type { Clock } from '#libs/kernel/clock.ts';
import type { RetryAfter } from './faults.ts';
import type { Failure } from '../wire/wire-format.ts';

const dateAheadMs = 2_000;

export const overloaded: Failure = {
  status: 503,
  message: 'The server had an error while processing your request. Sorry about that!',
  type: 'server_error',
  code: 'server_error',
};

/** The headers that announce when to retry, as flat names and values. */
export function retryHeaders(retryAfter: RetryAfter, clock: Clock): string[] {
  if (retryAfter === 'absent') return [];
  if (retryAfter === 'ms') return ['retry-after-ms', '50'];
  if (retryAfter === 'date') return ['retry-after', new Date(clock.now() + dateAheadMs).toUTCString()];
  return ['retry-after', String(retryAfter.seconds)];
}

/** The same time, for formats that have it in the body. */
export function retryMs(retryAfter: RetryAfter): number | undefined {
  if (retryAfter === 'absent') return undefined;
  if (retryAfter === 'ms') return 50;
  return retryAfter === 'date' ? dateAheadMs : retryAfter.seconds * 1_000;
}

/** The failure that belongs to a status, independent of any format. */
export function toFailure(status: number, code: string | undefined): Failure {
  if (code === 'insufficient_quota') {
    const message = 'You exceeded your current quota, please check your plan and billing details.';
    return { status, message, type: 'insufficient_quota', code };
  }
  switch (status) {
    case 429:
      return {
        status,
        message: 'Rate limit reached for requests. Please try again later.',
        code: 'rate_limit_exceeded',
      };
    case 401:
      return { status, message: 'Incorrect API key provided.', code: 'invalid_api_key' };
    case 404:
      return { status, message: 'The model does not exist or you do not have access to it.', code: 'model_not_found' };
    case 503:
      return {
        status,
        message: 'The engine is currently overloaded, please try again later.',
        code: 'server_is_overloaded',
      };
    default:
      return { status, message: `Simulated failure with status ${status}.` };
  }
}

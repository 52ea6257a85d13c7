import type { Target } from '#libs/calls/call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

type Refused = { target: Target; model: string };

const what = ({ model }: Refused): string => (model === '' ? 'this operation' : model.slice(0, 200));

/** The errors of calls that are rejected. Each names its target and when to try again. */
export const refusals = {
  rateLimited: (call: Refused, retryAfterMs: number): GatewayError =>
    new GatewayError(
      'rate_limited',
      'provider_rate_limited',
      `${call.target.label} is rate-limited for ${what(call)} and is not called until the limit has passed.`,
      { retryAfterMs },
    ),
  changed: ({ target }: Refused): GatewayError =>
    new GatewayError(
      'rate_limited',
      'credential_changed',
      `The credential of ${target.label} changed while this call was waiting. Send the request again.`,
      { retryAfterMs: 0 },
    ),
  open: (call: Refused, retryAfterMs: number): GatewayError =>
    new GatewayError(
      'unavailable',
      'circuit_open',
      `${call.target.label} is not called for ${what(call)} because its previous calls failed and its circuit breaker is open.`,
      { retryAfterMs },
    ),
  busy: ({ target }: Refused): GatewayError =>
    new GatewayError(
      'unavailable',
      'provider_busy',
      `Too many calls to ${target.label} are already in flight and waiting. Send the request again shortly.`,
      { retryAfterMs: 1_000 },
    ),
};

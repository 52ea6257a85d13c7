import type { Outcome } from '#libs/calls/call.ts';
import type { Call } from '#libs/calls/planned-call.ts';
import { countRetries } from './run-plan.ts';

/** Returns the headers of an answer that describe which targets the call went to (HDR-2). */
export function planHeaders(call: Pick<Call, 'leaf' | 'target'>, outcome: Outcome): Record<string, string> {
  const { leaf, target } = call;
  const headers: Record<string, string> = {
    'x-gateway-last-used-option-index': leaf.path,
    'x-gateway-retry-attempt-count': String(countRetries(call, outcome)),
  };
  if (target !== null) headers['x-gateway-provider'] = target.provider;
  return headers;
}

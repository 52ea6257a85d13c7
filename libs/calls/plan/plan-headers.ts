import type { PlanRun } from './run-plan.ts';

/** What an answer says about the way that it came (HDR-2). */
export function planHeaders({ leaf, target, retryAttempts }: PlanRun): Record<string, string> {
  const headers: Record<string, string> = {
    'x-gateway-last-used-option-index': leaf.path,
    'x-gateway-retry-attempt-count': String(retryAttempts),
  };
  if (target !== null) headers['x-gateway-provider'] = target.provider;
  return headers;
}

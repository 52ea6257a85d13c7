import type { ForwardRequest } from '#libs/calls/call.ts';
import { noAttempts, type Call } from '#libs/calls/planned-call.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';

/** Returns a call with a plan and the parameters of its own body. */
export function plannedCall(plan: Plan, request: ForwardRequest, over: Partial<Call> = {}): Call {
  return {
    plan,
    request,
    params: JSON.parse(request.body.toString()) as Record<string, unknown>,
    metadata: null,
    pathname: '/v1/chat/completions',
    workspaceId: 'ws_1',
    keyId: null,
    modelOverride: null,
    adjust: null,
    config: null,
    promptInput: null,
    prompt: null,
    waitsForBudget: false,
    leaf: plan.leaves[0],
    target: null,
    model: null,
    earlierAttempts: noAttempts,
    fallbacks: 0,
    retries: 0,
    ...over,
  };
}

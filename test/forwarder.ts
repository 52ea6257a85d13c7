import type { Answer, ForwardRequest, Outcome, RelayedAnswer, Target } from '#libs/calls/call.ts';
import { createCalls, type Calls } from '#libs/calls/calls.ts';
import { plainLeaf } from '#libs/calls/plan/plain-plan.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';
import type { RelayCall } from '#libs/providers/provider.ts';

type OwnAnswer = Exclude<Answer, RelayedAnswer>;

/** Makes calls to one target each, without a plan. */
export type Forwarder = Pick<Calls, 'request' | 'counters' | 'stop'> & {
  settle: (request: ForwardRequest, target: Target, policy?: RetryPolicy) => Promise<Outcome>;
  /** Like `settle`, but throws the GatewayError of a call without an answer. */
  forward: (request: ForwardRequest, target: Target, policy?: RetryPolicy) => Promise<OwnAnswer>;
  listModels: (target: Target, signal: AbortSignal) => Promise<OwnAnswer>;
  relay: (request: RelayCall & Pick<ForwardRequest, 'signal' | 'memory'>, target: Target) => Promise<RelayedAnswer>;
};

export function createForwarder(deps: Parameters<typeof createCalls>[0]): Forwarder {
  const calls = createCalls(deps);
  const settle: Forwarder['settle'] = (request, target, policy) => {
    const place = { metadata: null, workspaceId: '', keyId: null, config: null, prompt: null, waitsForBudget: false };
    const call = { ...place, leaf: plainLeaf, target, model: request.model };
    return calls.callTarget(call, request, policy);
  };
  const toCachedAnswer = (outcome: Outcome): Answer => {
    if (outcome.kind === 'failed') throw outcome.error;
    return outcome;
  };
  return {
    settle,
    forward: async (...call) => toCachedAnswer(await settle(...call)) as OwnAnswer,
    listModels: async (...call) => toCachedAnswer(await calls.listModels(...call)) as OwnAnswer,
    async relay({ area, method, path, accept, body, contentType, contentLength, ...request }, target) {
      const relayed = { method, path, accept, send: () => ({ body, contentType, contentLength }) };
      const whole = { operation: area, body: Buffer.alloc(0), stream: false, includeUsage: false };
      const answer = toCachedAnswer(await settle({ ...whole, ...request, relayed }, target));
      if (answer.kind !== 'relayed') throw new Error('not relayed');
      return answer;
    },
    request: calls.request,
    counters: calls.counters,
    stop: calls.stop,
  };
}

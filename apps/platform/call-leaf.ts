import type { ForwardRequest, Outcome, Timeouts } from '#libs/calls/call.ts';
import { askWhole, toStream } from '#libs/calls/upstream/answer-whole.ts';
import type { Forwarder } from '#libs/calls/forward.ts';
import { guardCall } from '#libs/calls/protect/guardrails/guard-call.ts';
import type { Guardrails } from '#libs/calls/protect/guardrails/guardrails.ts';
import { asGatewayError } from '#libs/kernel/errors.ts';
import { cacheOptionsOf } from '#libs/calls/protect/response-cache/cache-options.ts';
import type { ResponseCache } from '#libs/calls/protect/response-cache/response-cache.ts';
import type { LeafCall } from '#libs/calls/plan/run-plan.ts';

type Deps = {
  forwarder: Pick<Forwarder, 'settle'>;
  guardrails: Guardrails;
  responseCache: Pick<ResponseCache, 'through'>;
  timeouts: Timeouts;
};

/**
 * Calls one target of a config with all that the config puts around it: input guardrails, then the cache, then the call
 * under the target's circuit breaker, then output guardrails, which see kept answers as well. Never rejects but for bugs.
 */
export function createCallLeaf({ forwarder, guardrails, responseCache, timeouts }: Deps) {
  const settle = ({ leaf, target, policy }: LeafCall, request: ForwardRequest): Promise<Outcome> => {
    const timed: ForwardRequest = { ...request, timeouts: { ...timeouts, ...request.timeouts } };
    if (leaf.breaker !== null) timed.breaker = leaf.breaker;
    // A batch line is turned away as a live call is, so that another target may take it; who runs its plan waits.
    delete timed.backgroundUntil;
    return forwarder.settle(timed, target, policy);
  };

  const throughCache = async (call: LeafCall, isRepeat: boolean): Promise<Outcome> => {
    const { leaf, request, target } = call;
    // Without an id of its own a credential cannot be told from another, and neither can its answers.
    if (leaf.cache === null || target.credentialId === undefined || target.workspaceId === undefined) {
      return await settle(call, request);
    }
    let made: Outcome | null = null;
    const make = async (): Promise<Outcome> => (made = await settle(call, request));
    try {
      const options = cacheOptionsOf(leaf.cache, request.headers ?? {});
      return await responseCache.through(
        { workspaceId: target.workspaceId, credentialId: target.credentialId },
        isRepeat ? { ...options, refresh: true } : options,
        { request, target, make },
      );
    } catch (error) {
      // An answer that was paid for is not lost because it could not be kept.
      return made ?? { kind: 'failed', error: asGatewayError(error), attempts: [] };
    }
  };

  const judged = (call: LeafCall): Promise<Outcome> => {
    const { leaf, request, target, model, metadata, policy } = call;
    const { inputGuardrails: input, outputGuardrails: output } = leaf;
    if (input.length === 0 && output.length === 0) return throughCache(call, false);
    return guardCall(guardrails, {
      input,
      output,
      request,
      target,
      model,
      metadata,
      ...(policy?.statuses ? { repeat: { statuses: policy.statuses, attempts: policy.attemptsMax } } : {}),
      make: (isRepeat) => throughCache(call, isRepeat),
    });
  };

  return async (call: LeafCall): Promise<Outcome> => {
    const { leaf, request } = call;
    if (!leaf.answersWhole || !request.stream) return await judged(call);
    return toStream(await judged({ ...call, request: askWhole(request) }), request);
  };
}

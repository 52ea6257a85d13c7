import { asGatewayError } from '#libs/kernel/errors.ts';
import { estimateUsage, settleReservation, type Admit } from './admission.ts';
import type { Attempt, ForwardRequest, Outcome, Target } from './call.ts';
import type { Call } from './planned-call.ts';
import { cacheOptionsOf } from './protect/response-cache/cache-options.ts';
import type { ResponseCache } from './protect/response-cache/response-cache.ts';
import { guardCall } from './protect/guardrails/guard-call.ts';
import type { Guardrails } from './protect/guardrails/guardrails.ts';
import type { Permit, Traffic } from './protect/traffic/traffic.ts';
import type { Retries, RetryPolicy } from './retry.ts';
import { askWhole, toStream } from './upstream/answer-whole.ts';
import type { Sender } from './upstream/sender.ts';

export type CallTargetDeps = {
  sender: Pick<Sender, 'prepare' | 'attempt'>;
  retries: Pick<Retries, 'start'>;
  /** Absent: every call is admitted. */
  admit?: Admit | undefined;
  guardrails?: Guardrails | undefined;
  responseCache?: Pick<ResponseCache, 'through'> | undefined;
  /** Circuits, rate-limit waits and permits of targets with a `credentialId`. Absent: every call goes at once. */
  traffic?: Pick<Traffic, 'acquire'> | undefined;
};

/** A call whose target is known, with what its leaf wants. */
export type TargetCall = Pick<Call, 'leaf' | 'model' | 'metadata' | 'workspaceId' | 'keyId'> & {
  target: Target | null;
};

export type CallTarget = {
  /**
   * Calls the target of a call with all that its leaf puts around it. `request` has the leaf's edits and settings;
   * `policy`: its retries. Never rejects but for bugs: no answer is `kind: 'failed'`.
   */
  call: (call: TargetCall, request: ForwardRequest, policy?: RetryPolicy) => Promise<Outcome>;
  /** The inner half alone, for what is no call of a model (a list of models): retries, circuit, waits, permit. */
  send: (request: ForwardRequest, target: Target, policy?: RetryPolicy) => Promise<Outcome>;
  counters: () => { openCalls: number; openStreams: number };
};

/**
 * The order of everything that happens around a call to one target, of live calls, batch lines and permit-through calls
 * alike. From outside to inside:
 *
 * 1. admission by policies, who are also told what the call has used;
 * 2. input guardrails;
 * 3. the cache: an answer from it is judged by the output guardrails as any other;
 * 4. retries of this target;
 * 5. its circuit breaker, its rate-limit wait, and a permit among the calls of its credential;
 * 6. the attempt;
 * 7. on the way back, output guardrails.
 *
 * Which target it is was decided before (plan/run-plan.ts); the record is written after, by the caller that has the outcome.
 * Each step that a leaf does not want is one comparison: a plain call runs through to `send`.
 */
export function createCallTarget(deps: CallTargetDeps): CallTarget {
  const { sender, retries, admit, guardrails, responseCache, traffic } = deps;
  let openCalls = 0;
  let openStreams = 0;

  /** 1. */
  const admitted = async (
    call: TargetCall,
    target: Target,
    request: ForwardRequest,
    policy: RetryPolicy | undefined,
    decide: Admit,
  ): Promise<Outcome> => {
    const { workspaceId, keyId, model, metadata } = call;
    const estimate = () => estimateUsage(request);
    const asked = { workspaceId, keyId, target, model, operation: request.operation, metadata, estimate };
    let reservation: Awaited<ReturnType<Admit>>;
    try {
      const decided = decide(asked);
      reservation = decided instanceof Promise ? await decided : decided;
    } catch (error) {
      return { kind: 'failed', error: asGatewayError(error), attempts: [] };
    }
    if (reservation === null) return judged(call, target, request, policy);
    try {
      const outcome = await judged(call, target, request, policy);
      settleReservation(reservation, outcome);
      return outcome;
    } catch (error) {
      reservation.settle({ usage: null, attempts: 0, status: null });
      throw error;
    }
  };

  /** 2 and 7. */
  const judged = (
    call: TargetCall,
    target: Target,
    request: ForwardRequest,
    policy: RetryPolicy | undefined,
  ): Promise<Outcome> => {
    const { inputGuardrails: input, outputGuardrails: output, answersWhole } = call.leaf;
    if (answersWhole && request.stream) {
      const whole = judged({ ...call, leaf: { ...call.leaf, answersWhole: false } }, target, askWhole(request), policy);
      return whole.then((outcome) => toStream(outcome, request));
    }
    if (guardrails === undefined || (input.length === 0 && output.length === 0)) {
      return cached(call, target, request, policy, false);
    }
    const { model, metadata } = call;
    return guardCall(guardrails, {
      input,
      output,
      request,
      target,
      model,
      metadata,
      ...(policy?.statuses ? { repeat: { statuses: policy.statuses, attempts: policy.attemptsMax } } : {}),
      make: (isRepeat) => cached(call, target, request, policy, isRepeat),
    });
  };

  /** 3. */
  const cached = (
    { leaf }: TargetCall,
    target: Target,
    request: ForwardRequest,
    policy: RetryPolicy | undefined,
    isRepeat: boolean,
  ): Promise<Outcome> => {
    const { credentialId, workspaceId } = target;
    // Without an id of its own a credential cannot be told from another, and neither can its answers.
    if (leaf.cache === null || responseCache === undefined || credentialId === undefined || workspaceId === undefined) {
      return send(request, target, policy);
    }
    const { cache } = leaf;
    const throughCache = async (): Promise<Outcome> => {
      let made: Outcome | null = null;
      const make = async (): Promise<Outcome> => (made = await send(request, target, policy));
      try {
        const options = cacheOptionsOf(cache, request.headers ?? {});
        return await responseCache.through(
          { workspaceId, credentialId },
          isRepeat ? { ...options, refresh: true } : options,
          { request, target, make },
        );
      } catch (error) {
        // An answer that was paid for is not lost because it could not be kept.
        return made ?? { kind: 'failed', error: asGatewayError(error), attempts: [] };
      }
    };
    return throughCache();
  };

  /** 4, 5 and 6. */
  const send: CallTarget['send'] = async (request, target, policy) => {
    const attempts: Attempt[] = [];
    openCalls += 1;
    try {
      const prepared = sender.prepare(request, target, attempts);
      const { hold } = prepared;
      const retry = policy && retries.start(policy, { request, target, model: target.model ?? request.model });
      for (;;) {
        const acquired =
          target.credentialId === undefined ? undefined : traffic?.acquire(request, target, policy?.obeysRetryAfter);
        const permit = acquired instanceof Promise ? await acquired : acquired;
        let outcome: Outcome | null = null;
        try {
          outcome = await sender.attempt(prepared, attempts);
        } finally {
          if (permit !== undefined) release(permit, outcome);
        }
        // Behind the circuit breaker: the provider has answered, only not what was asked for.
        if (hold !== null) outcome = hold(outcome);
        const ended = retry === undefined ? outcome : await retry.after(outcome);
        if (ended !== null) return counted(hold !== null && request.stream ? toStream(ended, request) : ended);
      }
    } catch (error) {
      return { kind: 'failed', error: asGatewayError(error), attempts };
    } finally {
      openCalls -= 1;
    }
  };

  const counted = (outcome: Outcome): Outcome => {
    if (outcome.kind === 'stream') {
      openStreams += 1;
      void outcome.done.then(() => {
        openStreams -= 1;
      });
    }
    return outcome;
  };

  return {
    call(call, request, policy) {
      const { target } = call;
      if (target === null) throw new Error('a call was made to no target');
      return admit === undefined
        ? judged(call, target, request, policy)
        : admitted(call, target, request, policy, admit);
    },
    send,
    counters: () => ({ openCalls, openStreams }),
  };
}

/** Gives a permit back; that of an answer whose body is still to come when it has ended. */
function release(permit: Permit, outcome: Outcome | null): void {
  if (outcome === null || outcome.kind === 'failed' || outcome.kind === 'json') return permit.release(outcome);
  permit.begun?.();
  void outcome.done.then(({ error }) => permit.release(error ? { kind: 'failed', error } : outcome));
}

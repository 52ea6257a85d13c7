import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import { asGatewayError } from '#libs/kernel/errors.ts';
import type { UsageEstimate } from '#libs/prices/estimate-tokens.ts';
import {
  estimateUsage,
  settleReservation,
  unknownEnd,
  type Admission,
  type AdmissionRequest,
  type Admit,
} from './admission.ts';
import { assertRequestAllowed, otherModels } from './allowed-models.ts';
import type { Attempt, ForwardRequest, Outcome, Target, Wait } from './call.ts';
import type { Call } from './planned-call.ts';
import { readCacheOptions } from './protect/response-cache/cache-options.ts';
import type { ResponseCache } from './protect/response-cache/response-cache.ts';
import { guardCall } from './protect/guardrails/guard-call.ts';
import type { Guardrails } from './protect/guardrails/guardrails.ts';
import type { Permit } from './protect/traffic/lanes.ts';
import type { Traffic } from './protect/traffic/traffic.ts';
import type { StoredObjects } from './protect/stored-objects/stored-objects.ts';
import { createCredentialRenewal, rotatedCredential, type Retries, type RetryPolicy, type RetryRun } from './retry.ts';
import { toStream } from './upstream/answers/streams/answer-to-stream.ts';
import type { Sender } from './upstream/sender.ts';

export type CallTargetDeps = {
  sender: Pick<Sender, 'prepare' | 'attempt'>;
  retries: Pick<Retries, 'start'>;
  /** Absent: every call is admitted. */
  admission?: Admission | undefined;
  guardrails?: Guardrails | undefined;
  responseCache?: Pick<ResponseCache, 'through'> | undefined;
  /** Absent: workspaces that share an account share its stored objects too. */
  storedObjects?: StoredObjects | undefined;
  /** Circuits, rate-limit waits and permits of targets with a `credentialId`. Absent: no call waits or is rejected. */
  traffic?: Pick<Traffic, 'acquire'> | undefined;
};

/** A call whose target is known, with the settings of its leaf. */
export type TargetCall = Pick<
  Call,
  | 'leaf'
  | 'model'
  | 'metadata'
  | 'workspaceId'
  | 'keyId'
  | 'config'
  | 'prompt'
  | 'waitsForBudget'
  | 'bound'
  | 'guardrailRuns'
> & {
  target: Target | null;
};

export type CallTarget = {
  /**
   * Calls the target of a call with everything that its leaf configures around it. `request` contains the leaf's edits
   * and settings, `policy` its retries. Rejects only for bugs: a call without an answer has `kind: 'failed'`.
   */
  call: (call: TargetCall, request: ForwardRequest, policy?: RetryPolicy) => Promise<Outcome>;
  /**
   * Only the inner half (retries, circuit, waits, permit), for calls that no model answers, such as a list of models.
   */
  send: (request: ForwardRequest, target: Target, retry?: RetryRun) => Promise<Outcome>;
  counters: () => { openCalls: number; openStreams: number };
};

/**
 * Defines the order of the steps around a call to one target, for live calls, batch lines and pass-through calls alike.
 * From outside to inside:
 *
 * 0. whether the credential can be used for the model, and, in an account that workspaces share, whether the call names
 *    only objects of its workspace; the objects that it creates are recorded;
 * 1. admission by policies, to which the call's usage is reported afterwards;
 * 2. input guardrails;
 * 3. the cache: output guardrails check its answers like any others;
 * 4. retries of this target;
 * 5. its circuit breaker, its rate-limit wait, and a permit among the calls of its credential;
 * 6. the attempt;
 * 7. on the way back, output guardrails.
 *
 * The target was chosen before (plan/run-plan.ts). The record is written afterwards, by the caller that gets the
 * outcome. A step that a leaf does not use costs one comparison, so a plain call goes almost directly to `send`.
 */
export const createCallTarget = (deps: CallTargetDeps): CallTarget => new Steps(deps);

/** What the steps around a call pass on. */
type Made = { call: TargetCall; target: Target; request: ForwardRequest; retry: RetryRun | undefined };

class Steps implements CallTarget {
  readonly #deps: CallTargetDeps;
  #openCalls = 0;
  #openStreams = 0;

  constructor(deps: CallTargetDeps) {
    this.#deps = deps;
  }

  /** Step 0. */
  call(call: TargetCall, request: ForwardRequest, policy?: RetryPolicy): Promise<Outcome> {
    const { retries, storedObjects } = this.#deps;
    const { target } = call;
    if (target === null) throw new Error('a call without a target');
    if (target.models !== undefined) {
      try {
        assertRequestAllowed(target.models, target.label, call.model, request);
      } catch (error) {
        return Promise.resolve(failed(error));
      }
    }
    const { sharedAccount } = target;
    const retry = policy && retries.start(policy, { request, target, model: target.model ?? request.model });
    if (sharedAccount === undefined || storedObjects === undefined)
      return this.#limited({ call, target, request, retry });
    const holder = { accountId: sharedAccount, workspaceId: call.workspaceId };
    return storedObjects.through({ holder, target, model: call.model }, request, (made) =>
      this.#limited({ call, target, request: made, retry }),
    );
  }

  #limited(made: Made): Promise<Outcome> {
    const { admission } = this.#deps;
    const { workspaceId, keyId, bound } = made.call;
    return admission !== undefined && (bound || admission.isLimited(workspaceId, keyId, made.target.credentialId))
      ? this.#admitted(made, admission.admit)
      : this.#judged(made);
  }

  /** Step 1. */
  async #admitted(made: Made, admit: Admit): Promise<Outcome> {
    let reservation: Awaited<ReturnType<Admit>>;
    try {
      const admitted = admit(toAdmissionRequest(made));
      reservation = admitted instanceof Promise ? await admitted : admitted;
    } catch (error) {
      return failed(error);
    }
    if (reservation === null) return this.#judged(made);
    try {
      const outcome = await this.#judged(made);
      settleReservation(reservation, outcome);
      return outcome;
    } catch (error) {
      reservation.settle(unknownEnd);
      throw error;
    }
  }

  /** Steps 2 and 7. */
  #judged(made: Made): Promise<Outcome> {
    const { guardrails } = this.#deps;
    const { call, target, request, retry } = made;
    const { inputGuardrails: input, outputGuardrails: output } = call.leaf;
    if (guardrails === undefined || (input.length === 0 && output.length === 0)) return this.#cached(made, false);
    // Guardrails can take longer than the call, and other calls could use the place.
    request.place?.release();
    const { model, metadata } = call;
    return guardCall(guardrails, {
      input,
      output,
      request,
      target,
      model,
      publicModel: call.leaf.publicModel?.name,
      metadata,
      mayRepeat: (status) => retry?.repeatRejected(status) === true,
      ran: (run) => (call.guardrailRuns ??= []).push(run),
      make: (isRepeat) => this.#cached(made, isRepeat),
    });
  }

  /** Step 3. */
  #cached(made: Made, isRepeat: boolean): Promise<Outcome> {
    const { call, target, request, retry } = made;
    const { responseCache } = this.#deps;
    const { credentialId, workspaceId } = target;
    const { cache } = call.leaf;
    // A credential without an id cannot be distinguished from others, and neither can its answers.
    if (cache === null || responseCache === undefined || credentialId === undefined || workspaceId === undefined)
      return this.send(request, target, retry);
    const through = (make: () => Promise<Outcome>): Promise<Outcome> => {
      const options = readCacheOptions(cache, request.headers ?? {});
      const asked = isRepeat ? { ...options, refresh: true } : options;
      return responseCache.through({ workspaceId, credentialId }, asked, { request, target, make });
    };
    return this.#throughCache(made, through);
  }

  async #throughCache(
    { target, request, retry }: Made,
    through: (make: () => Promise<Outcome>) => Promise<Outcome>,
  ): Promise<Outcome> {
    let sent: Outcome | null = null;
    try {
      return await through(async () => (sent = await this.send(request, target, retry)));
    } catch (error) {
      // An answer that was paid for must not be lost because caching failed.
      return sent ?? failed(error);
    }
  }

  /** Steps 4, 5 and 6. */
  async send(request: ForwardRequest, target: Target, retry?: RetryRun): Promise<Outcome> {
    const { sender, traffic } = this.#deps;
    const attempts: Attempt[] = [];
    this.#openCalls += 1;
    try {
      let prepared = sender.prepare(request, target, attempts);
      const renew = createCredentialRenewal(target);
      for (;;) {
        const acquired =
          target.credentialId === undefined ? undefined : traffic?.acquire(request, target, retry?.obeysRetryAfter);
        const permit = acquired instanceof Promise ? await acquired : acquired;
        let outcome: Outcome | null = null;
        try {
          outcome = await sender.attempt(prepared, attempts);
        } finally {
          if (permit !== undefined) release(permit, outcome);
        }
        const renewing = outcome.kind === 'failed' ? null : renew(outcome.status);
        const renewed = renewing === null ? null : await renewing;
        if (renewed !== null) {
          // The body of a pass-through call can be a stream, which has already been read.
          if (outcome.kind === 'relayed') {
            outcome.body.destroy();
            throw rotatedCredential(target.label);
          }
          prepared = sender.prepare(request, renewed, attempts);
          continue;
        }
        // Outside the circuit breaker, because the provider has answered, although not with what was requested.
        const { hold } = prepared;
        if (hold !== null) outcome = hold(outcome);
        const ended = retry === undefined ? outcome : await retry.after(outcome);
        if (ended !== null) return this.#counted(hold !== null && request.stream ? toStream(ended, request) : ended);
      }
    } catch (error) {
      return failed(error, attempts);
    } finally {
      this.#openCalls -= 1;
    }
  }

  #counted(outcome: Outcome): Outcome {
    if (outcome.kind === 'stream') {
      this.#openStreams += 1;
      void outcome.done.then(() => {
        this.#openStreams -= 1;
      });
    }
    return outcome;
  }

  counters(): { openCalls: number; openStreams: number } {
    return { openCalls: this.#openCalls, openStreams: this.#openStreams };
  }
}

const failed = (error: unknown, attempts: Attempt[] = []): Outcome => ({
  kind: 'failed',
  error: asGatewayError(error),
  attempts,
});

/** The facts by which policies admit a call. Its use is estimated only if a policy needs that. */
function toAdmissionRequest({ call, target, request }: Made): AdmissionRequest {
  const { workspaceId, keyId, model, metadata, config, prompt, waitsForBudget, bound = null } = call;
  const { operation, isFree } = request;
  const { isBackground = false, waitWithoutPermit, signal } = request;
  const what: Wait = { reason: 'rate_limited', label: target.label, model, untilMs: null };
  let estimated: UsageEstimate | undefined;
  return {
    workspaceId,
    keyId,
    target,
    model,
    publicModel: call.leaf.publicModel?.name,
    operation,
    work: isFree === true ? 'none' : 'call',
    metadata,
    config,
    prompt,
    waitsForBudget,
    bound,
    waitForTurn: isBackground
      ? (wait) => (waitWithoutPermit === undefined ? wait(toAbortSignal(signal)) : waitWithoutPermit(what, wait))
      : undefined,
    estimate: () => (estimated ??= estimateUsage(request)),
    otherModels: () => otherModels(request),
  };
}

/** Releases a permit. If the body of the answer is still arriving, waits for its end. */
function release(permit: Permit, outcome: Outcome | null): void {
  if (outcome === null || outcome.kind === 'failed' || outcome.kind === 'json') return permit.release(outcome);
  permit.begun?.();
  void outcome.done.then(({ error }) => permit.release(error ? { kind: 'failed', error } : outcome));
}

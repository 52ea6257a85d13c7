import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Attempt, Outcome, Target } from './call.ts';
import { createCallTarget, type CallTarget, type CallTargetDeps } from './call-target.ts';
import { runPlan, type PlanDeps, type Resolve } from './plan/run-plan.ts';
import { listAttempts, type Call } from './planned-call.ts';
import type { Traffic } from './protect/traffic/traffic.ts';
import { createCredentialRenewal, createRetries, rotatedCredential, type Retries, type RetryPolicy } from './retry.ts';
import { quickTimeouts } from './timeouts.ts';
import { createSender, type Sender, type SenderDeps } from './upstream/sender.ts';

type Deps = SenderDeps &
  Pick<CallTargetDeps, 'admission' | 'guardrails' | 'responseCache' | 'storedObjects'> & {
    /** The system's clock, for records and for dates that providers send. */
    clock: Clock;
    /** The clock of deadlines and waits. Default: `clock`. */
    steadyClock?: Clock | undefined;
    /** Returns a number from 0 to 1, to choose among targets and to spread retries. */
    random: () => number;
    search?: PlanDeps['search'];
    renderPrompt?: PlanDeps['renderPrompt'];
    traffic?: Pick<Traffic, 'acquire' | 'stop'> & Partial<Pick<Traffic, 'changeOf'>>;
    logger?: Logger;
    sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
  };

/** How a call runs: the differences between live calls and batch lines, apart from their requests. */
export type Course<Planned extends Call> = {
  resolve: Resolve<Planned>;
  /** The whole plan is run again, from the top, as long as its outcome is retryable. Default: it is run once. */
  again?: RetryPolicy;
};

/** Every call to a provider starts here: live calls, batch lines, pass-through, lists of models, fine-tuning. */
export type Calls = {
  /** Runs a call with its plan. Never rejects. Afterwards, `call` has the target that it went to. */
  run: <Planned extends Call>(call: Planned, course: Course<Planned>) => Promise<Outcome>;
  /** Calls GET /models of the target and answers in OpenAI's list format. Its limits are seconds and megabytes. */
  listModels: (target: Target, signal: AbortSignal) => Promise<Outcome>;
  /**
   * Makes one request for files or fine-tuning; see `plainRequest`. Repeated once with a credential that was
   * rotated; with a body that is a stream, it throws unavailable (`credential_rotated`) instead.
   */
  request: Sender['request'];
  /** Calls one target directly, without a plan. */
  callTarget: CallTarget['call'];
  counters: () => { openCalls: number; openStreams: number; waitingRetries: number; sockets: number };
  /** Refuses new calls and ends the waits between attempts with `shutting_down`. Running calls continue. Idempotent. */
  stop: () => void;
};

export function createCalls(deps: Deps): Calls {
  const {
    clock,
    steadyClock = clock,
    random,
    traffic,
    logger,
    sleep,
    admission,
    guardrails,
    responseCache,
    storedObjects,
    search = () => false,
    renderPrompt,
  } = deps;
  const sender = createSender(deps);
  const retries = createRetries({
    clock: steadyClock,
    wallClock: clock,
    changeOf: traffic?.changeOf,
    random,
    stopping: sender.stopping,
    logger,
    sleep,
  });
  const target = createCallTarget({ sender, retries, admission, guardrails, responseCache, storedObjects, traffic });
  const callTarget: CallTarget['call'] = (call, request, policy) => target.call(call, request, policy);
  const planDeps: PlanDeps = { callTarget, search, renderPrompt, random, now: () => clock.now() };

  return {
    run: (call, course) =>
      course.again === undefined ? runPlan(planDeps, call, course) : runCall({ planDeps, retries }, call, course),
    listModels: (to, signal) => {
      const request = { operation: 'models' as const, body: Buffer.alloc(0), model: null, signal };
      return target.send({ ...request, stream: false, includeUsage: false, timeouts: quickTimeouts }, to);
    },
    async request(to, request) {
      const answer = await sender.request(to, request);
      const renewed = await createCredentialRenewal(to)(answer.status);
      if (renewed === null) return answer;
      const isRepeatable = !request.body || request.body instanceof Uint8Array;
      if (!isRepeatable) throw rotatedCredential(to.label);
      return sender.request(renewed, request);
    },
    callTarget,
    counters: () => {
      const { openCalls, openStreams } = target.counters();
      const waitingRetries = retries.waiting();
      return { openCalls: openCalls + sender.openRequests(), openStreams, waitingRetries, sockets: sender.sockets() };
    },
    stop: () => {
      sender.stop();
      traffic?.stop();
    },
  };
}

/**
 * Runs a call with its plan, and again from the top while its outcome is retryable. Never rejects.
 * @testOnly
 */
export async function runCall<Planned extends Call>(
  { planDeps, retries }: { planDeps: PlanDeps; retries: Pick<Retries, 'start'> },
  call: Planned,
  { resolve, again }: Course<Planned>,
): Promise<Outcome> {
  const pass = { resolve, deadlineAt: again?.deadlineAt };
  const retry = again && retries.start(again, call);
  for (;;) {
    const outcome = await runPlan(planDeps, call, pass);
    const ended = retry === undefined ? outcome : await retry.after(outcome);
    if (ended !== null) return ended;
    call.retries += outcome.attempts.length;
    call.earlierAttempts = keepRecent(listAttempts(call, outcome));
  }
}

/** A line can be rate-limited for a day. Only the last of its many refusals are recorded. */
const keptAttemptsMax = 500;

function keepRecent(attempts: readonly Attempt[]): readonly Attempt[] {
  if (attempts.length <= keptAttemptsMax) return attempts;
  const first = attempts.length - keptAttemptsMax / 2;
  return attempts.filter(({ status }, index) => status !== 429 || index >= first);
}

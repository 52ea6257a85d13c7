import type { Guardrail } from '#libs/contracts/guardrails.ts';
import type { Attempt, Failure, ForwardRequest, JsonAnswer, Outcome, Target } from '#libs/calls/call.ts';
import { editedBody } from '#libs/calls/upstream/edited-body.ts';
import { asGatewayError } from '#libs/kernel/errors.ts';
import { spliceMembers } from '#libs/kernel/json-members.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Guardrails, GuardrailVerdict, HookResult } from './guardrails.ts';
import type { GuardrailSubject } from './subject.ts';

/** What clients see of guardrails, with the statuses and the error body of Portkey. */
export const guardrailStatus = { failed: 246, denied: 446 } as const;

export type GuardedCall = {
  input: readonly Guardrail[];
  output: readonly Guardrail[];
  request: ForwardRequest;
  target: Target;
  model: string | null;
  metadata: Readonly<Record<string, string>> | null;
  /** The call is made again while an output check ends it with one of these statuses, `attempts` times in all. */
  repeat?: { statuses: readonly number[]; attempts: number };
  /** `isRepeat`: the answer before was not good enough, so one that was kept is not either. */
  make: (isRepeat: boolean) => Promise<Outcome>;
};

const passed: GuardrailVerdict = { outcome: 'passed', results: [] };

/**
 * Makes a call between its guardrails. A denial is an answer of status 446 with `hook_results`; a failure that does not
 * deny makes a success 246, and so do both of the input when the answer is a stream. Output guardrails do not see
 * streams and pass-through answers: what has been said cannot be taken back. An answer that is an error stays as it is. With strict compliance,
 * `hook_results` are in a body only beside 246 and 446. Never rejects: a failure tells what the call had cost.
 */
export async function guardCall(guardrails: Guardrails, call: GuardedCall): Promise<Outcome> {
  const { input, output, request, repeat } = call;
  const attempts: Attempt[] = [];
  let answered: Outcome | null = null;
  try {
    const subject = toSubject(call);
    const before = input.length === 0 ? passed : await guardrails.evaluate(input, subject);
    if (before.outcome === 'denied') return denied(before.results, [], null);
    for (let made = 1; ; made += 1) {
      const outcome = await call.make(made > 1);
      attempts.push(...outcome.attempts);
      answered = outcome;
      if (outcome.kind === 'failed') return { ...outcome, attempts };
      if (outcome.status < 200 || outcome.status > 299) return { ...outcome, attempts };
      if (outcome.kind !== 'json') {
        return { ...outcome, attempts, status: before.outcome === 'failed' ? guardrailStatus.failed : outcome.status };
      }
      const after =
        output.length === 0 ? passed : await evaluateOutput(guardrails, output, subject, outcome, request.memory);
      const answer = withVerdicts({ ...outcome, attempts }, before, after, request.strict ?? true);
      const isBad = after.outcome !== 'passed' && repeat?.statuses.includes(answer.status) === true;
      if (!isBad || made >= repeat.attempts) return answer;
    }
  } catch (error) {
    const failure: Failure = { kind: 'failed', error: asGatewayError(error), attempts };
    // It was paid for, whatever its guardrails came to.
    if (answered?.kind === 'json') failure.lostAnswer = answered;
    return failure;
  }
}

async function evaluateOutput(
  guardrails: Guardrails,
  output: readonly Guardrail[],
  subject: GuardrailSubject,
  { status, body }: JsonAnswer,
  memory: MemoryLease | undefined,
): Promise<GuardrailVerdict> {
  const texts = await guardrails.textsOf(subject.operation, body, { ...subject, memory });
  const response = { status, body, texts };
  const sizeBytes = Math.max(subject.sizeBytes + body.length, memory?.usedBytes ?? 0);
  return guardrails.evaluate(output, { ...subject, response, sizeBytes });
}

function withVerdicts(
  answer: JsonAnswer,
  before: GuardrailVerdict,
  after: GuardrailVerdict,
  strict: boolean,
): JsonAnswer {
  if (after.outcome === 'denied') return denied(before.results, after.results, answer);
  const failed = before.outcome === 'failed' || after.outcome === 'failed';
  const seen = before.results.length + after.results.length;
  if (!failed && (strict || seen === 0)) return answer;
  const results = hookResults(before.results, after.results);
  return {
    ...answer,
    status: failed ? guardrailStatus.failed : answer.status,
    body: spliceMembers(answer.body, { hook_results: JSON.stringify(results) }),
  };
}

/** The refusal; `answer` is what was refused, and paid for all the same. */
function denied(before: HookResult[], after: HookResult[], answer: JsonAnswer | null): JsonAnswer {
  const phase = answer === null ? 'input' : 'output';
  const error = {
    message: `The ${phase} guardrail checks defined in the config failed. You can find more information in the \`hook_results\` object.`,
    type: 'hooks_failed',
    param: null,
    code: null,
  };
  return {
    kind: 'json',
    status: guardrailStatus.denied,
    // The same call would be refused again; SDKs repeat none of the 4xx but a few.
    headers: answer?.headers ?? {},
    providerRequestId: answer?.providerRequestId ?? null,
    attempts: answer?.attempts ?? [],
    usage: answer?.usage ?? null,
    model: answer?.model ?? null,
    finishReason: answer?.finishReason ?? null,
    body: Buffer.from(JSON.stringify({ error, hook_results: hookResults(before, after) })),
    contentType: 'application/json',
  };
}

const hookResults = (before: HookResult[], after: HookResult[]): object => ({
  before_request_hooks: before,
  after_request_hooks: after,
});

function toSubject({ request, target, model, metadata }: GuardedCall): GuardrailSubject {
  const { operation, stream, signal } = request;
  return {
    workspaceId: target.workspaceId ?? '',
    operation,
    model,
    provider: target.provider,
    metadata,
    stream,
    request: editedBody(request.body, request.edits, request.parsed),
    response: null,
    // Its value may take many times its bytes, and outlives the call's memory where a guardrail runs beside the call.
    sizeBytes: Math.max(request.body.length, request.memory?.usedBytes ?? 0),
    signal,
  };
}

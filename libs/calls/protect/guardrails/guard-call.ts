import { isReference, type GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import type {
  Attempt,
  Failure,
  ForwardRequest,
  GuardrailRun,
  JsonAnswer,
  Outcome,
  StreamAnswer,
  Target,
} from '#libs/calls/call.ts';
import { editedBody } from '#libs/calls/upstream/edited-body.ts';
import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import { asGatewayError } from '#libs/kernel/errors.ts';
import { spliceMembers } from '#libs/kernel/json/json-members.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { annotateStream, mustHoldStream, holdStream, type HeldStream } from './guard-stream.ts';
import type { Guardrails, GuardrailVerdict, HookResult } from './guardrails.ts';
import type { GuardrailSubject } from './texts/subject.ts';

/** The statuses with which clients see guardrail results: those of Portkey. */
const guardrailStatus = { failed: 246, denied: 446 } as const;

export type GuardedCall = {
  input: readonly GuardrailEntry[];
  output: readonly GuardrailEntry[];
  request: ForwardRequest;
  target: Target;
  model: string | null;
  /** The name of the public model in the call. Absent: it names none. */
  publicModel?: string | undefined;
  metadata: Readonly<Record<string, string>> | null;
  /** Asked when an output check ends the call with a status: whether the call is made once more. */
  mayRepeat: (status: number) => boolean;
  /** Told of each run of guardrails that had results. */
  ran?: (run: GuardrailRun) => void;
  /** `isRepeat`: the previous answer was rejected, so a cached answer must not be used. */
  make: (isRepeat: boolean) => Promise<Outcome>;
};

const passed: GuardrailVerdict = { outcome: 'passed', results: [] };

/**
 * Makes a call between its guardrails. A denial is an answer of status 446 with `hook_results`. A failure that does not
 * deny turns a success into 246. A stream is held until the output guardrails have checked it, if one of them can deny.
 * Otherwise it is sent as it arrives, with their results in its last event. Output guardrails do not check pass-through
 * answers. An answer that is an error is not changed. With strict compliance, a whole body, or a stream that was held,
 * has `hook_results` only with 246 and 446. Never rejects: a failure has the usage of the call.
 */
export async function guardCall(guardrails: Guardrails, call: GuardedCall): Promise<Outcome> {
  const { input, output, request, mayRepeat } = call;
  const attempts: Attempt[] = [];
  let answered: JsonAnswer | null = null;
  try {
    const subject = toSubject(call);
    const before =
      input.length === 0 ? passed : await timed(call, 'input_guardrails', () => guardrails.evaluate(input, subject));
    if (before.outcome === 'denied') return denied(before.results, [], null);
    const judge = (answer: JsonAnswer) =>
      timed(call, 'output_guardrails', () => evaluateOutput(guardrails, output, subject, answer, request.memory));
    for (let made = 1; ; made += 1) {
      const outcome = await call.make(made > 1);
      attempts.push(...outcome.attempts);
      if (outcome.kind === 'failed') return { ...outcome, attempts };
      if (outcome.status < 200 || outcome.status > 299) return { ...outcome, attempts };
      const sent = { ...outcome, attempts };
      const status = before.outcome === 'failed' ? guardrailStatus.failed : outcome.status;
      if (sent.kind === 'relayed' || (sent.kind === 'stream' && output.length === 0)) return { ...sent, status };
      if (sent.kind === 'stream' && !mustHoldStream(output)) {
        return annotateStream({ ...sent, status }, request, async (answer) =>
          annotationOf(before, await judge(answer)),
        );
      }
      let held: HeldStream | null = null;
      if (sent.kind === 'stream') {
        held = await holdStream(sent, request, (lost) => {
          answered = lost;
        });
      }
      answered = held?.answer ?? (sent as JsonAnswer);
      // An `async` guardrail can still read the body after it was sent.
      if (output.length > 0) delete answered.freeBody;
      const after = output.length === 0 ? passed : await judge(answered);
      const answer = withVerdicts(answered, before, after, request.strict ?? true, held);
      if (after.outcome === 'passed' || !mayRepeat(answer.status)) return answer;
    }
  } catch (error) {
    const failure: Failure = { kind: 'failed', error: asGatewayError(error), attempts };
    // The answer has to be paid for, whatever its guardrails decide.
    if (answered !== null) failure.lostAnswer = answered;
    return failure;
  }
}

async function timed(
  { input, output, ran }: GuardedCall,
  kind: GuardrailRun['kind'],
  evaluate: () => Promise<GuardrailVerdict>,
): Promise<GuardrailVerdict> {
  const startedAt = Date.now();
  const start = performance.now();
  const verdict = await evaluate();
  // Guardrails that a call does not wait for have no results.
  if (ran !== undefined && verdict.results.length > 0) {
    const verdicts = listVerdicts(kind === 'input_guardrails' ? input : output, verdict.results);
    ran({ kind, startedAt, durationMs: performance.now() - start, outcome: verdict.outcome, verdicts });
  }
  return verdict;
}

/** `results` are those of the guardrails that a call waits for, in their order. */
function listVerdicts(entries: readonly GuardrailEntry[], results: readonly HookResult[]): GuardrailRun['verdicts'] {
  const awaited = entries.filter((entry) => isReference(entry) || !entry.async);
  return results.map(({ id, verdict, deny }, index) => {
    const entry = awaited[index];
    const record = entry === undefined || isReference(entry) ? null : entry.record;
    return {
      id: record?.id ?? id,
      slug: record?.slug ?? null,
      version: record?.version ?? null,
      verdict: verdict ? 'passed' : deny ? 'denied' : 'failed',
    };
  });
}

/**
 * The last event of a stream that was sent. It is always added, because no status can express that all checks passed.
 */
function annotationOf(
  before: GuardrailVerdict,
  after: GuardrailVerdict,
): { members: object | null; status: number | null } {
  const { results } = after;
  return {
    members: results.length === 0 ? null : { hook_results: hookResults(before.results, results) },
    status: after.outcome === 'passed' ? null : guardrailStatus.failed,
  };
}

async function evaluateOutput(
  guardrails: Guardrails,
  output: readonly GuardrailEntry[],
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
  held: HeldStream | null,
): JsonAnswer | StreamAnswer {
  if (after.outcome === 'denied') return denied(before.results, after.results, answer);
  const failed = before.outcome === 'failed' || after.outcome === 'failed';
  const status = failed ? guardrailStatus.failed : answer.status;
  const seen = before.results.length + after.results.length;
  const isShown = failed || (!strict && seen > 0);
  const results = hookResults(before.results, after.results);
  if (held !== null) return held.release(status, isShown ? { hook_results: results } : null);
  if (!isShown) return answer;
  return {
    ...answer,
    status,
    body: spliceMembers(answer.body, { hook_results: JSON.stringify(results) }),
  };
}

/** Returns the refusal. `answer` is the refused answer, which has to be paid for nevertheless. */
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
    // The same call would be refused again. SDKs do not retry 4xx statuses, with a few exceptions.
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

const noHeaders = {};

function toSubject({ request, target, model, publicModel, metadata }: GuardedCall): GuardrailSubject {
  const { operation, stream, signal } = request;
  return {
    workspaceId: target.workspaceId ?? '',
    traceId: request.traceId ?? null,
    operation,
    model,
    publicModel,
    provider: target.provider,
    metadata,
    headers: request.headers ?? noHeaders,
    stream,
    request: editedBody(request.body, request.edits, request.parsed),
    response: null,
    // The parsed body can take many times its bytes, and stays in memory longer than the call if an async guardrail
    // runs.
    sizeBytes: Math.max(request.body.length, request.memory?.usedBytes ?? 0),
    signal: toAbortSignal(signal),
  };
}

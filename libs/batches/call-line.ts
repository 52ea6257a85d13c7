import type { Answer, ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import type { Calls } from '#libs/calls/calls.ts';
import { plainLeaf, plainPlan } from '#libs/calls/plan/plain-plan.ts';
import type { Leaf, Plan } from '#libs/calls/plan/plan.ts';
import type { Resolved } from '#libs/calls/plan/run-plan.ts';
import { attemptsOf, noAttempts, type Call } from '#libs/calls/planned-call.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';
import { isTransient } from '#libs/database/database-error.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import { memberValue } from '#libs/kernel/json-members.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { Operation } from '#libs/providers/provider.ts';
import type { BatchRow } from './batch-model.ts';
import { operationOf } from './endpoint-operation.ts';
import type { LinePermit } from './line-permit.ts';
import { resultId, type LineOutcome } from './result-line.ts';
import type { LineResult } from './settle-group.ts';

/** `body`: the raw JSON of the line's `body`. `permit`: released while the line waits. */
type Line = {
  batch: BatchRow;
  line: number;
  body: Buffer | undefined;
  signal: AbortSignal;
  /** The lease to which its answer is charged. */
  memory: MemoryLease;
  permit: Pick<LinePermit, 'waitWithoutPermit' | 'isAbandoned'>;
};

/** Runs one line. Rejects only when its signal aborted or the line was abandoned, and then the line has no outcome. */
export type CallLine = (line: Line) => Promise<{ outcome: LineOutcome; usage: LineResult['usage'] }>;

/** A line's call when it is over, for the request log. */
export type CalledLine = {
  batch: BatchRow;
  line: number;
  operation: Operation;
  requestId: string;
  target: Target | null;
  model: string | null;
  metadata: Readonly<Record<string, string>> | null;
  answer: Answer | null;
  errorCode: string | null;
  attempts: number;
  /** The target of the config that answered. Null without a config. */
  option: string | null;
  startedAtMs: number;
  durationMs: number;
};

const retryResolveMs = 500;

export function createCallLine(deps: {
  calls: Pick<Calls, 'run'>;
  /** The plan of the batch's lines. Throws GatewayError, which becomes the line's error. */
  planOf: (batch: BatchRow) => { plan: Plan } | Promise<{ plan: Plan }>;
  /** Where the calls of one of its targets go. Throws as `planOf`. */
  resolve: (batch: BatchRow, leaf: Leaf, model: string | null, isLeafsModel: boolean) => Resolved | Promise<Resolved>;
  /** The retries of a batch's lines: each is another pass over the whole plan. */
  policy: (batch: BatchRow) => RetryPolicy;
  onCalled: (called: CalledLine) => void;
  now: () => number;
}): CallLine {
  const { calls, planOf, resolve, policy, onCalled, now } = deps;

  /** Retries `work` while the database is unavailable, until the batch expires: that is no error of the line. */
  const whenPossible = <Result>(
    { signal, permit }: Pick<Line, 'signal' | 'permit'>,
    deadlineAt: number,
    work: () => Result | Promise<Result>,
  ): Promise<Result> =>
    retryDuringOutage(work, {
      isOutage: (error) => now() < deadlineAt && isUnavailable(error),
      delayMs: retryResolveMs,
      signal,
      wait(delayMs) {
        const what = { reason: 'gateway' as const, label: null, model: null, untilMs: now() + delayMs };
        return permit.waitWithoutPermit(what, (end) => sleep(delayMs, end));
      },
    });

  /** The line as a call. Conditions see its own parameters, the batch's metadata and its endpoint. */
  const toCall = ({ batch, signal, memory, permit }: Line, plan: Plan, sent: SentLine, deadlineAt: number): Call => {
    const { operation, body, model } = sent;
    // A line that only passes is not parsed.
    const parsed = plan === plainPlan ? undefined : (JSON.parse(body.toString()) as Record<string, unknown>);
    const request: ForwardRequest = {
      operation,
      body,
      parsed,
      model,
      stream: false,
      includeUsage: false,
      signal,
      backgroundUntil: deadlineAt,
      waitWithoutPermit: permit.waitWithoutPermit,
      memory,
    };
    return {
      plan,
      request,
      params: parsed ?? noParams,
      metadata: tagsOf(batch),
      pathname: batch.endpoint,
      workspaceId: batch.workspace_id,
      keyId: null,
      modelOverride: replacedModel(batch),
      adjust: null,
      leaf: plainLeaf,
      target: null,
      model,
      earlierAttempts: noAttempts,
    };
  };

  return async (given) => {
    const { batch, line, body, signal, permit } = given;
    const operation = operationOf(batch.endpoint);
    // Both were checked when the batch was validated. If the file has changed since, that is a bug of ours.
    if (operation === undefined || body === undefined)
      throw new Error(`line ${line} of ${batch.id} is not what was validated`);
    const startedAtMs = now();
    const requestId = resultId(batch.id, line);
    // Validation has read all lines: if they have the same model, the batch has it.
    const model = batch.model ?? modelOf(body);
    const again = policy(batch);
    const possible = <Result>(work: () => Result | Promise<Result>): Promise<Result> =>
      whenPossible(given, again.deadlineAt, work);
    let call: Call | null = null;
    let result: Outcome;
    try {
      const { plan } = await possible(() => planOf(batch));
      call = toCall(given, plan, { operation, body, model }, again.deadlineAt);
      result = await calls.run(call, {
        resolve: (_call, ...leaf) => possible(() => resolve(batch, ...leaf)),
        again,
      });
    } catch (error) {
      result = { kind: 'failed', error: asGatewayError(error), attempts: noAttempts };
    }
    const attempts = call === null ? 0 : attemptsOf(call, result).length;
    const { outcome, errorCode } = toOutcome(result, requestId);
    const isAbandoned = result.kind === 'failed' && (signal.aborted || permit.isAbandoned());
    const answer = result.kind === 'failed' ? (result.lostAnswer ?? null) : result;
    const called = { target: call?.target ?? null, model: call === null ? model : call.model };
    // An abandoned line is run again with the next claim of its chunk. But if a call was made, it is recorded.
    if (!isAbandoned || attempts > 0) {
      onCalled({
        ...called,
        batch,
        line,
        operation,
        requestId,
        startedAtMs,
        option: call === null || call.plan === plainPlan ? null : call.leaf.path,
        metadata: call === null ? tagsOf(batch) : call.metadata,
        answer,
        errorCode,
        attempts,
        durationMs: now() - startedAtMs,
      });
    }
    if (result.kind === 'failed') {
      signal.throwIfAborted();
      if (permit.isAbandoned()) throw result.error;
      // A bug: the caller logs it and makes it the line's error.
      if (result.error.kind === 'internal') throw result.error;
    }
    return { outcome, usage: usageOf(called, answer) };
  };
}

type SentLine = { operation: Operation; body: Buffer; model: string | null };

const isUnavailable = (error: unknown): boolean =>
  isTransient(error) || (error instanceof GatewayError && error.kind === 'unavailable');

const noParams = {};

/** The metadata of the batch, overridden by the metadata headers of the call that created it. */
function tagsOf({ metadata, gateway_options: options }: BatchRow): Readonly<Record<string, string>> | null {
  const inherited = options['metadata'] as Record<string, string> | undefined;
  return inherited === undefined ? metadata : { ...metadata, ...inherited };
}

/** The model from the batch's options that overrides the model of every line. */
export function replacedModel(batch: BatchRow): string | null {
  const model = batch.gateway_options['provider_model'];
  return typeof model === 'string' ? model : null;
}

/** The model that a body names. */
export function modelOf(body: Buffer): string | null {
  const raw = memberValue(body, 'model');
  const model: unknown = raw === undefined ? null : JSON.parse(raw.toString('utf8'));
  return typeof model === 'string' ? model : null;
}

function toOutcome(result: Outcome, requestId: string): { outcome: LineOutcome; errorCode: string | null } {
  if (result.kind === 'json') {
    const { status, body, providerRequestId } = result;
    const errorCode = status >= 400 ? `http_${status}` : null;
    return {
      outcome: { kind: 'response', statusCode: status, requestId: providerRequestId ?? requestId, body },
      errorCode,
    };
  }
  // Validation rejects `stream: true`, so no line asks for a stream.
  const error =
    result.kind === 'failed' ? result.error : asGatewayError(new Error('a batch line was answered by a stream'));
  const { kind, message } = error;
  // OpenAI's own code for this case (RESULT-3).
  const code = kind === 'provider_timeout' ? 'request_timeout' : (error.code ?? 'provider_error');
  return { outcome: { kind: 'error', code, message }, errorCode: code };
}

function usageOf(called: { target: Target | null; model: string | null }, answer: Answer | null): LineResult['usage'] {
  if (!answer?.usage || !called.target) return null;
  const { inputTokens, cachedTokens, outputTokens, reasoningTokens } = answer.usage;
  return {
    provider: called.target.provider,
    model: recordableText(answer.model ?? called.model),
    input_tokens: inputTokens,
    cached_tokens: cachedTokens,
    output_tokens: outputTokens,
    reasoning_tokens: reasoningTokens,
  };
}

/** Makes a text storable in jsonb. A provider may answer with any model name, and none may keep its group from being settled. */
const recordableText = (text: string | null): string | null =>
  text === null ? null : toStorableText(text.slice(0, modelLengthMax));

const modelLengthMax = 512;

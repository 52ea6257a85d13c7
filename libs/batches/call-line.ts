import type { Answer, ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';
import { isTransient } from '#libs/database/database-error.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import { memberValue } from '#libs/kernel/json-members.ts';
import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { Operation } from '#libs/providers/provider.ts';
import type { PlanRun } from '#libs/calls/plan/run-plan.ts';
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
  /** To which its answer is charged. */
  memory: MemoryLease;
  permit: Pick<LinePermit, 'aside' | 'isAbandoned'>;
};

/** Executes one line. Rejects only when its signal aborted, or the line was abandoned: then the line has no outcome. */
export type CallLine = (line: Line) => Promise<{ outcome: LineOutcome; usage: LineResult['usage'] }>;

/** What is known about a line's call when it is over, for the request log. */
export type CalledLine = {
  batch: BatchRow;
  line: number;
  operation: Operation;
  requestId: string;
  target: Target | null;
  model: string | null;
  answer: Answer | null;
  errorCode: string | null;
  attempts: number;
  /** The config's target that answered; null without a config. */
  option: string | null;
  startedAtMs: number;
  durationMs: number;
};

const retryResolveMs = 500;

/** Runs `work` until the database answers, as long as the batch may wait. */
export type WhenPossible = <Result>(work: () => Result | Promise<Result>) => Promise<Result>;

export function createCallLine(deps: {
  forward: (request: ForwardRequest, target: Target, policy: RetryPolicy) => Promise<Outcome>;
  /** The target of this attempt. Throws GatewayError, which becomes the line's error. */
  resolveTarget: (batch: BatchRow, model: string | null) => Promise<{ target: Target; model: string | null }>;
  /**
   * Runs a line by the batch's config, within the batch's own retries; null for a batch without one. `model` is what the
   * batch asks for in the place of the line's. `whenPossible` waits out a database that is away.
   */
  runByPlan: (
    batch: BatchRow,
    request: ForwardRequest,
    model: string | null,
    whenPossible: WhenPossible,
  ) => Promise<PlanRun> | null;
  policy: (batch: BatchRow) => RetryPolicy;
  onCalled: (called: CalledLine) => void;
  now: () => number;
}): CallLine {
  const { forward, resolveTarget, runByPlan, policy, onCalled, now } = deps;

  /** That the database is away says nothing about the line: it waits, as long as the batch does. */
  async function whenPossible<Result>(
    batch: BatchRow,
    { signal, permit }: Pick<Line, 'signal' | 'permit'>,
    work: () => Result | Promise<Result>,
  ): Promise<Result> {
    for (;;) {
      try {
        return await work();
      } catch (error) {
        const passes = isTransient(error) || (error instanceof GatewayError && error.kind === 'unavailable');
        if (!passes || now() >= policy(batch).deadlineAt) throw error;
        signal.throwIfAborted();
        const what = { reason: 'gateway' as const, label: null, model: null, untilMs: now() + retryResolveMs };
        await permit.aside(what, (end) => sleep(retryResolveMs, end));
      }
    }
  }

  return async ({ batch, line, body, signal, memory, permit }) => {
    const operation = operationOf(batch.endpoint);
    // Both were checked when the batch was validated; a file that changed since is a fault of ours.
    if (operation === undefined || body === undefined)
      throw new Error(`line ${line} of ${batch.id} is not what was validated`);
    const startedAtMs = now();
    const requestId = resultId(batch.id, line);
    // Validation has read them all: the batch has a model when it is that of every line.
    const bodyModel = batch.model ?? modelOf(body);
    const called = {
      batch,
      line,
      operation,
      requestId,
      startedAtMs,
      target: null as Target | null,
      model: bodyModel,
      option: null as string | null,
    };
    let result: Outcome;
    let attempts: number | null = null;
    try {
      const wantedModel = replacedModel(batch);
      const request: ForwardRequest = {
        operation,
        body,
        model: bodyModel,
        stream: false,
        includeUsage: false,
        signal,
        backgroundUntil: policy(batch).deadlineAt,
        aside: permit.aside,
        memory,
      };
      const running = runByPlan(batch, request, wantedModel, (work) => whenPossible(batch, { signal, permit }, work));
      if (running !== null) {
        const run = await running;
        called.target = run.target;
        called.model = run.model ?? bodyModel;
        called.option = run.leaf.path;
        attempts = run.attempts.length;
        result = run.outcome;
      } else {
        const { target, model } = await whenPossible(batch, { signal, permit }, () =>
          resolveTarget(batch, wantedModel ?? bodyModel),
        );
        called.target = model === null ? target : { ...target, model };
        called.model = model;
        result = await forward(request, called.target, policy(batch));
      }
    } catch (error) {
      result = { kind: 'failed', error: asGatewayError(error), attempts: [] };
    }
    const madeAttempts = attempts ?? result.attempts.length;
    const { outcome, errorCode } = toOutcome(result, requestId);
    const isAbandoned = result.kind === 'failed' && (signal.aborted || permit.isAbandoned());
    const answer = result.kind === 'failed' ? (result.lostAnswer ?? null) : result;
    // A line that is left is done by whoever has its chunk next; but a call that was made is recorded.
    if (!isAbandoned || madeAttempts > 0) {
      onCalled({ ...called, answer, errorCode, attempts: madeAttempts, durationMs: now() - startedAtMs });
    }
    if (result.kind === 'failed') {
      signal.throwIfAborted();
      if (permit.isAbandoned()) throw result.error;
      // Whoever runs the line logs it, and makes the line's error of it.
      if (result.error.kind === 'internal') throw result.error;
    }
    return { outcome, usage: usageOf(called, answer) };
  };
}

/** The model that the batch's options put in the place of every line's own. */
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
  // Validation refuses `stream: true`, so a stream cannot be asked for.
  const error =
    result.kind === 'stream' ? asGatewayError(new Error('a batch line was answered by a stream')) : result.error;
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

/** What jsonb takes: a provider may answer with any name for its model, and no answer may keep its group from settling. */
const recordableText = (text: string | null): string | null =>
  text === null ? null : toStorableText(text.slice(0, modelLengthMax));

const modelLengthMax = 512;

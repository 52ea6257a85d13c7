import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import { outputBoundNames, requireGoodBounds } from '#libs/contracts/calls/output-bounds.ts';
import { metadataText } from '#libs/contracts/scalars.ts';
import type { Answer, Attempt, ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import type { CallBound } from '#libs/calls/admission.ts';
import type { Calls } from '#libs/calls/calls.ts';
import { plainLeaf, plainPlan } from '#libs/calls/plan/plain-plan.ts';
import type { Leaf, Plan } from '#libs/calls/plan/plan.ts';
import type { Resolved } from '#libs/calls/plan/run-plan.ts';
import {
  listAttempts,
  noAttempts,
  type Call,
  type PromptInput,
  type PromptPins,
  type StoredVersion,
} from '#libs/calls/planned-call.ts';
import { isOutage, type RetryPolicy } from '#libs/calls/retry.ts';
import { retryDuringOutage } from '#libs/database/retry-during-outage.ts';
import { httpStatus, toErrorBody } from '#libs/http/answers/error-response.ts';
import { defaultJsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import { parseJsonBytes } from '#libs/http/bodies/parse-json-bytes.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import { toAbortSignal, type CallSignal } from '#libs/kernel/call-signal.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { memberValue, memberValues } from '#libs/kernel/json/json-members.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { Operation } from '#libs/providers/provider.ts';
import { namesPrompt } from '#libs/validation/lines/check-prompt-line.ts';
import { createBodyCheck } from '#libs/validation/lines/check-body.ts';
import { checkStream } from '#libs/validation/lines/check-line.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import { SecretError } from '#libs/secret-managers/secret-error.ts';
import type { SettledUsage } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { failsLinesAlone } from '../batch/line-rules.ts';
import { operationOf } from '../batch/endpoint-operation.ts';
import type { LinePermit } from './line-permit.ts';
import { callUntilValid, findOutputRule } from './validate-output.ts';
import type { LineOutcome } from '../results/result-line.ts';
import type { LineResult } from '../results/settle-groups.ts';

/** `id`: its `batchLineId`. `body`: the raw JSON of the line's `body`. `permit`: released while the line waits. */
type Line = {
  batch: BatchRow;
  line: number;
  id: string;
  body: Buffer | undefined;
  signal: CallSignal;
  /** The lease to which its answer is charged. */
  memory: MemoryLease;
  permit: Pick<LinePermit, 'waitWithoutPermit' | 'isAbandoned'> & Partial<Pick<LinePermit, 'place'>>;
  /** The claim of the chunk that it is called for. */
  job?: { id: string; retryCount: number } | undefined;
};

/**
 * Runs one line. Rejects only when its signal aborted or the line was abandoned. In that case, the line has no outcome.
 */
export type CallLine = (line: Line) => Promise<{ outcome: LineOutcome } & Pick<LineResult, 'usage' | 'output'>>;

export type LineCost = Pick<SettledUsage, 'cost' | 'price_version'>;

/** A line's call when it is over, for the request log. */
export type CalledLine = {
  batch: BatchRow;
  line: number;
  operation: Operation;
  requestId: string;
  /** The claim of the chunk that it was called for. */
  job: Line['job'];
  /** Without a plan if none could be made. */
  call: Omit<Call, 'plan' | 'request' | 'params' | 'adjust' | 'leaf' | 'modelOverride'> & { plan?: Plan; leaf?: Leaf };
  answer: Answer | null;
  /** The body of the line, as it is in the input file. */
  body: Buffer;
  outcome: LineOutcome;
  errorCode: string | null;
  /** The attempts at its last target. */
  attempts: readonly Attempt[];
  /** The target of the config that answered. Null without a config. */
  option: string | null;
  startedAtMs: number;
  durationMs: number;
};

/** The body of a line that names a prompt. Throws GatewayError, which becomes the line's error. */
export type RenderLine = (
  batch: BatchRow,
  operation: Operation,
  body: Buffer,
) => Promise<{ body: Buffer; promptInput: PromptInput }>;

const retryResolveMs = 500;
/** The cache of secrets queries a secret manager again, at growing intervals. */
const retrySecretMs = 2_000;

type CallLineDeps = {
  calls: Pick<Calls, 'run'>;
  /**
   * The plan of the batch's lines with this model, which can be a public one. Throws GatewayError, which becomes the line's
   * error.
   */
  planOf: (batch: BatchRow, model: string | null) => FoundPlan | Promise<FoundPlan>;
  /** Returns where the calls of one of its targets go. Throws like `planOf`. */
  resolve: (batch: BatchRow, leaf: Leaf, model: string | null, isLeafsModel: boolean) => Resolved | Promise<Resolved>;
  /** Absent: no line names a prompt. */
  renderLine?: RenderLine;
  /** Checks answers against the JSON Schema of their request. Absent: no batch asks for that. */
  outputs?: Pick<OutputChecker, 'check'>;
  /** The cost bound of a batch; null if it has none. */
  boundOf: (batch: BatchRow) => CallBound | null;
  /** How lines are retried. Each retry runs the whole plan again. */
  policy: (batch: BatchRow) => RetryPolicy;
  /** Records the line's call, and returns its cost: US cents as a decimal, null if that is not known. */
  onCalled: (called: CalledLine) => LineCost;
  /** The system's clock, for records. */
  now: () => number;
  /** The clock of waits. */
  clock: Clock;
  /** The `traceparent` header of a line's calls. Absent: its trace ends at this gateway. */
  makeTraceparent?: ((traceId: string, requestId: string) => string) | undefined;
};

export function createCallLine(deps: CallLineDeps): CallLine {
  const { calls, planOf, resolve, renderLine, outputs, boundOf, policy, onCalled, now, clock, makeTraceparent } = deps;

  /** null for a line whose body is the request itself. */
  const renderPrompt = (batch: BatchRow, operation: Operation, body: Buffer): ReturnType<RenderLine> | null => {
    if (renderLine === undefined || batch.gateway_options['pinned_prompts'] === undefined) return null;
    return memberValue(body, 'prompt_id') === undefined ? null : renderLine(batch, operation, body);
  };

  return async (given) => {
    const { batch, line, id: requestId, body, signal, permit } = given;
    const operation = operationOf(batch.endpoint);
    // Validation checked both. If the file has changed since, that is a bug of ours.
    if (operation === undefined || body === undefined)
      throw new Error(`line ${line} of ${batch.id} is not what was validated`);
    const startedAtMs = now();
    // Validation has read all lines. If they all name the same model, it is stored with the batch.
    const model = batch.model ?? readModel(body);
    const possible = <Result>(work: () => Result | Promise<Result>): Result | Promise<Result> =>
      throughOutages(work, given, clock);
    let call: Call | null = null;
    let result: Outcome;
    let output: LineResult['output'] = null;
    const refusal = failsLinesAlone(batch)
      ? requestRefusal(batch.endpoint as BatchEndpoint, operation, body)
      : boundsRefusal(operation, body);
    try {
      if (refusal !== null) throw refusal;
      const rendered = await possible(() => renderPrompt(batch, operation, body));
      const sent = rendered ? { operation, ...rendered, model: readModel(rendered.body) } : { operation, body, model };
      const found = await possible(() => planOf(batch, replacedModel(batch) ?? sent.model));
      const made: Call = { ...toCall(given, found, sent, makeTraceparent), bound: boundOf(batch) };
      call = made;
      const run = (): Promise<Outcome> =>
        calls.run(made, {
          resolve: (_call, ...leaf) => possible(() => resolve(batch, ...leaf)),
          again: policy(batch),
        });
      const rule = outputs === undefined ? null : findOutputRule(batch, operation, sent.body);
      if (outputs === undefined || rule === null) result = await run();
      else ({ outcome: result, output } = await callUntilValid(outputs, { call: made, permit, rule }, run));
    } catch (error) {
      result = { kind: 'failed', error: asGatewayError(error), attempts: noAttempts };
    }
    const called = call ?? unroutedCall(batch, model);
    const attempts = listAttempts(called, result).length;
    const { outcome, errorCode } = toOutcome(result, requestId, refusal ?? refusedTarget(batch, result, attempts));
    const isAbandoned = result.kind === 'failed' && (signal.aborted || permit.isAbandoned());
    let cost = noCost;
    const answer = result.kind === 'failed' ? (result.lostAnswer ?? null) : result;
    // An abandoned line is run again with the next claim of its chunk. If it made a call, that call is recorded
    // nevertheless.
    if (!isAbandoned || attempts > 0) {
      cost = onCalled({
        call: called,
        batch,
        line,
        operation,
        requestId,
        job: given.job,
        startedAtMs,
        option: call === null || call.plan === plainPlan ? null : call.leaf.path,
        answer,
        body,
        outcome,
        errorCode,
        attempts: result.attempts,
        durationMs: now() - startedAtMs,
      });
    }
    if (result.kind === 'failed') {
      signal.throwIfAborted();
      if (permit.isAbandoned()) throw result.error;
      // A bug: the caller logs it and makes it the line's error.
      if (result.error.kind === 'internal') throw result.error;
    }
    return { outcome, usage: usageOf(called, answer, cost), output };
  };
}

/** Runs `work`, and repeats it during an outage. Returns its result, without a promise unless there is something to wait for. */
function throughOutages<Result>(
  work: () => Result | Promise<Result>,
  line: Line,
  clock: Clock,
): Result | Promise<Result> {
  const repeat = (error: unknown): Promise<Result> => {
    let isFirst = true;
    const repeated = (): Result | Promise<Result> => {
      if (!isFirst) return work();
      isFirst = false;
      throw error;
    };
    return retryDuringOutage(repeated, createOutageOptions(line, clock));
  };
  try {
    const found = work();
    return found instanceof Promise ? found.catch(repeat) : found;
  } catch (error) {
    return repeat(error);
  }
}

/**
 * How a line retries while the database or a secret manager is unavailable, until it is abandoned because its batch
 * expires: an outage is not an error of the line.
 */
function createOutageOptions({ signal, permit }: Pick<Line, 'signal' | 'permit'>, clock: Clock) {
  let missing: SecretError | null = null;
  return {
    isOutage,
    delayMs: (_failures: number, error: unknown) => (error instanceof SecretError ? retrySecretMs : retryResolveMs),
    signal: toAbortSignal(signal),
    onRetry(error: unknown): void {
      missing = error instanceof SecretError ? error : null;
    },
    wait(delayMs: number): Promise<void> {
      // A chunk whose lines all wait for a secret gives its slot to others, like one whose lines wait for a provider.
      const cause =
        missing === null
          ? { reason: 'gateway' as const, label: null }
          : { reason: 'secret_unavailable' as const, label: `the secret reference '${missing.slug}'` };
      return permit.waitWithoutPermit({ ...cause, model: null, untilMs: clock.now() + delayMs }, (end) =>
        sleep(delayMs, end),
      );
    },
  };
}

/**
 * Turns the line into a call. Conditions of a config see its parameters, the batch's metadata and the batch's
 * endpoint.
 */
function toCall(
  { batch, id, signal, memory, permit }: Line,
  { plan, stored }: FoundPlan,
  sent: SentLine,
  makeTraceparent: CallLineDeps['makeTraceparent'],
): Call {
  const { operation, body, model, promptInput = null } = sent;
  // A line that is passed on unchanged does not have to be parsed.
  const parsed = plan === plainPlan ? undefined : (JSON.parse(body.toString()) as Record<string, unknown>);
  const request: ForwardRequest = {
    operation,
    body,
    parsed,
    model,
    stream: false,
    includeUsage: false,
    traceId: batch.headers['trace_id'] ?? null,
    traceparent: makeTraceparent?.(batch.headers['trace_id'] ?? batch.id, id),
    signal,
    isBackground: true,
    turn: batch.workspace_id,
    waitWithoutPermit: permit.waitWithoutPermit,
    place: permit.place,
    memory,
  };
  return {
    ...unroutedCall(batch, model),
    plan,
    request,
    params: parsed ?? noParams,
    modelOverride: replacedModel(batch),
    adjust: null,
    config: stored,
    promptInput,
    leaf: plainLeaf,
  };
}

/** Makes the call of a line before its target is chosen. It belongs to the key and the user that created the batch. */
const unroutedCall = (batch: BatchRow, model: string | null) => ({
  metadata: tagsOf(batch),
  pathname: batch.endpoint,
  workspaceId: batch.workspace_id,
  keyId: batch.headers['api_key_id'] ?? null,
  config: null,
  promptInput: null,
  pinnedPrompts: batch.gateway_options['pinned_prompts'] as PromptPins | undefined,
  prompt: null,
  waitsForBudget: batch.gateway_options['on_budget_exceeded'] !== 'fail',
  target: null,
  model,
  earlierAttempts: noAttempts,
  fallbacks: 0,
  retries: 0,
});

/** A batch's plan, and the stored config that it comes from. */
type FoundPlan = { plan: Plan; stored: StoredVersion | null };

type SentLine = { operation: Operation; body: Buffer; model: string | null; promptInput?: PromptInput };

const noParams = {};

/** The metadata of the batch as texts, overridden by the metadata headers of the call that created it. */
function tagsOf({ metadata, gateway_options: options }: BatchRow): Readonly<Record<string, string>> | null {
  const inherited = options['metadata'] as Record<string, unknown> | undefined;
  if (metadata === null && inherited === undefined) return null;
  const texts = Object.entries({ ...metadata, ...inherited }).map(([name, value]) => [name, metadataText(value)]);
  return Object.fromEntries(texts) as Record<string, string>;
}

/** The model from the batch's options that overrides the model of every line. */
export function replacedModel(batch: BatchRow): string | null {
  const model = batch.gateway_options['provider_model'];
  return typeof model === 'string' ? model : null;
}

/** The model that a body names. */
export function readModel(body: Buffer): string | null {
  const raw = memberValue(body, 'model');
  const model: unknown = raw === undefined ? null : JSON.parse(raw.toString('utf8'));
  return typeof model === 'string' ? model : null;
}

/** Returns the refusal of a line with a bound below 1, which validation leaves to its call. null: there is none. */
function boundsRefusal(operation: Operation, body: Buffer): GatewayError | null {
  const bounds = Object.entries(memberValues(body, outputBoundNames));
  const values = bounds.map(([name, raw]): [string, unknown] => [name, JSON.parse(raw.toString())]);
  try {
    requireGoodBounds(Object.fromEntries(values), operation === 'completions');
    return null;
  } catch (error) {
    return asGatewayError(error);
  }
}

/** Returns the error of a line whose body was not checked by validation; null if the body is valid. */
function requestRefusal(endpoint: BatchEndpoint, operation: Operation, bytes: Buffer): GatewayError | null {
  try {
    // With the limits of a live call, because this blocks the event loop.
    const body = parseJsonBytes(bytes, defaultJsonBodyLimits, null) as Record<string, unknown>;
    if (namesPrompt(body, endpoint)) return boundsRefusal(operation, bytes);
    const streamed = checkStream(body, endpoint);
    if (streamed !== null)
      return new GatewayError('invalid_request', streamed.code, streamed.message, { param: 'stream' });
    createBodyCheck(endpoint)(body);
    return null;
  } catch (error) {
    return asGatewayError(error);
  }
}

/** Returns the error of such a line if it was not called because its target does not exist or cannot be used. */
function refusedTarget(batch: BatchRow, result: Outcome, attempts: number): GatewayError | null {
  if (result.kind !== 'failed' || attempts > 0 || !failsLinesAlone(batch)) return null;
  return httpStatus(result.error) < 500 ? result.error : null;
}

/** With a `refusal`, the outcome is the answer that the live route gives to it. */
function toOutcome(
  result: Outcome,
  requestId: string,
  refusal: GatewayError | null,
): { outcome: LineOutcome; errorCode: string | null } {
  if (refusal !== null) {
    const body = Buffer.from(JSON.stringify(toErrorBody(refusal, requestId)));
    return {
      outcome: { kind: 'response', statusCode: httpStatus(refusal), requestId, body },
      errorCode: refusal.code,
    };
  }
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

const noCost: LineCost = { cost: '0', price_version: null };

/** Null for a line that, as far as is known, used no tokens and cost nothing. */
function usageOf(
  { target, model }: { target: Target | null; model: string | null },
  answer: Answer | null,
  { cost, price_version }: LineCost,
): LineResult['usage'] {
  const usage = answer?.usage ?? null;
  if (target === null || (usage === null && cost === '0')) return null;
  return {
    provider: target.provider,
    model: recordableText(answer?.model ?? model),
    input_tokens: usage?.inputTokens ?? 0,
    cached_tokens: usage?.cachedTokens ?? 0,
    output_tokens: usage?.outputTokens ?? 0,
    reasoning_tokens: usage?.reasoningTokens ?? 0,
    cost,
    price_version,
  };
}

/**
 * Makes a text storable in jsonb. A provider can answer with any model name, and an unstorable one would prevent the
 * line's whole group from being settled.
 */
const recordableText = (text: string | null): string | null =>
  text === null ? null : toStorableText(text.slice(0, modelLengthMax));

const modelLengthMax = 512;

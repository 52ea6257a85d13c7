import type { JsonAnswer, Outcome } from '#libs/calls/call.ts';
import { listAttempts, type Call } from '#libs/calls/planned-call.ts';
import { addUsage } from '#libs/calls/upstream/answers/usage.ts';
import type { BatchError, GatewayOptions, ValidateOutputs } from '#libs/contracts/batches/batches.ts';
import { toAbortSignal } from '#libs/kernel/call-signal.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { OutputWork } from '#libs/validation/outputs/check-output-worker.ts';
import type { OutputChecker } from '#libs/validation/outputs/output-checker.ts';
import type { OutputChecks } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import type { LinePermit } from './line-permit.ts';

type CheckedOutcome = { outcome: Outcome; output: keyof OutputChecks | null };

/** What the answers of a line are checked against, and how often it is called again. */
type OutputRule = Pick<OutputWork, 'operation' | 'format'> & Pick<ValidateOutputs, 'retries'>;

/** Returns null if the answers of a line are not checked. `body`: the request that is sent. */
export function findOutputRule(batch: BatchRow, operation: string, body: Buffer): OutputRule | null {
  const options = batch.gateway_options['validate_outputs'] as ValidateOutputs | undefined;
  if (options === undefined || (operation !== 'chat' && operation !== 'responses')) return null;
  const { retries, schema } = options;
  if (schema !== undefined) return { operation, format: toFormat(operation, schema), retries };
  const format = memberValue(body, operation === 'chat' ? 'response_format' : 'text');
  return format?.includes('json_schema') === true ? { operation, format, retries } : null;
}

const toFormat = (operation: OutputWork['operation'], schema: string): Buffer =>
  Buffer.from(
    operation === 'chat'
      ? `{"type":"json_schema","json_schema":{"schema":${schema}}}`
      : `{"format":{"type":"json_schema","schema":${schema}}}`,
  );

/** Why the schema for a whole batch cannot be used; null if it can, or there is none. */
export async function findSchemaProblem(
  checker: Pick<OutputChecker, 'check'>,
  options: BatchRow['gateway_options'] | GatewayOptions,
  caller: { workspaceId: string; signal: AbortSignal },
): Promise<BatchError | null> {
  const { schema } = (options.validate_outputs ?? {}) as Partial<ValidateOutputs>;
  if (schema === undefined) return null;
  const work = { operation: 'chat', format: toFormat('chat', schema), answer: Buffer.from('{}') } as const;
  const verdict = await checker.check(work, caller);
  if (verdict.kind !== 'failed') return null;
  const param = 'gateway_options.validate_outputs.schema';
  return { code: 'invalid_request', message: `Invalid '${param}'. ${verdict.problem}`, param, line: null };
}

type Line = { call: Call; permit: Pick<LinePermit, 'waitWithoutPermit'>; rule: OutputRule };

/**
 * Makes the call of a line, and makes it again while its answer does not match. In the end, the line fails as
 * `output_schema_mismatch`. Outcomes without content to check are not changed. The usage is that of all answers. Never
 * rejects.
 */
export async function callUntilValid(
  checker: Pick<OutputChecker, 'check'>,
  { call, permit, rule: { operation, format, retries } }: Line,
  run: () => Promise<Outcome>,
): Promise<CheckedOutcome> {
  const { signal } = call.request;
  const { workspaceId } = call;
  let lost: JsonAnswer | null = null;
  for (let calls = 1; ; calls += 1) {
    const outcome = addLost(await run(), lost);
    if (outcome.kind !== 'json' || outcome.status < 200 || outcome.status > 299) return { outcome, output: null };
    const { attempts, body } = outcome;
    const lose = (error: GatewayError): Outcome => ({ kind: 'failed', error, attempts, lostAnswer: outcome });
    try {
      const verdict = await checker.check(
        { operation, format, answer: body },
        { workspaceId, signal: toAbortSignal(signal) },
      );
      if (verdict.kind === 'unchecked') return { outcome, output: null };
      if (verdict.kind === 'passed') return { outcome, output: calls === 1 ? 'passed' : 'passed_after_retry' };
      if (verdict.isFinal || calls > retries)
        return { outcome: lose(mismatch(verdict.problem, calls)), output: 'failed' };
      // Other lines have their turn first. A line that was stopped meanwhile is not called again.
      const what = { reason: 'retry' as const, label: call.target?.label ?? null, model: call.model, untilMs: null };
      await permit.waitWithoutPermit(what, () => Promise.resolve());
    } catch (error) {
      return { outcome: lose(asGatewayError(error)), output: null };
    }
    // Only its usage is still needed.
    lost = { ...outcome, body: Buffer.alloc(0) };
    call.retries += attempts.length;
    call.earlierAttempts = listAttempts(call, outcome);
    // A cached answer would be the same one.
    call.request.headers = { ...call.request.headers, 'x-gateway-cache-force-refresh': 'true' };
  }
}

/** An outcome with the usage of the previous answer, which did not match but has to be paid for. */
function addLost(outcome: Outcome, lost: JsonAnswer | null): Outcome {
  if (lost === null) return outcome;
  if (outcome.kind !== 'failed') return { ...outcome, usage: addUsage(lost.usage, outcome.usage) };
  const { lostAnswer: own } = outcome;
  return { ...outcome, lostAnswer: own ? { ...own, usage: addUsage(lost.usage, own.usage) } : lost };
}

function mismatch(problem: string, calls: number): GatewayError {
  const times = calls === 1 ? '' : ` in ${calls} calls`;
  const message = `The model did not answer with JSON that matches the schema of the request${times}: ${problem}`;
  return new GatewayError('provider_failed', 'output_schema_mismatch', message);
}

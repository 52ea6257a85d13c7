import { toFirstTarget } from '#libs/calls/plan/plain-plan.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { mustHoldStream } from '#libs/calls/protect/guardrails/guard-stream.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { operationPaths, type Operation, type RelayArea } from '#libs/providers/provider.ts';
import type { RelayBody } from './relay-body.ts';

type Relay = { method: string; path: string; area: RelayArea; body: Pick<RelayBody, 'json' | 'asksForStream'> };

/**
 * `isWhole`: the answer is checked before it is sent, so the call is made as one of `operation` instead of being
 * relayed.
 */
type RelayPlan = { plan: Plan; operation: Operation | RelayArea; isWhole: boolean };

const checkableOperations: ReadonlyMap<string, Operation> = new Map(
  (['responses', 'moderations', 'images'] as const).map((operation) => [`/v1${operationPaths[operation]}`, operation]),
);

/**
 * The plan of a pass-through call: the first target of its config with its guardrails. They check both input and output
 * of a call whose answer comes whole, and only the input of a stream. Throws unsupported_operation
 * (`guardrails_not_applicable`) if a guardrail cannot check the call, because guardrails are never skipped silently.
 */
export function planRelayed(plan: Plan, { method, path, area, body }: Relay): RelayPlan {
  const { guarded, unguarded } = toFirstTarget(plan);
  const { inputGuardrails: input, outputGuardrails: output } = guarded.leaves[0];
  const relayed = { plan: unguarded, operation: area, isWhole: false };
  if (input.length === 0 && output.length === 0) return relayed;
  const operation = method === 'POST' ? checkableOperations.get(path) : undefined;
  if (operation === undefined || body.json === null) {
    const hasInput = method === 'POST' && input.length > 0;
    const hasOutput = method !== 'DELETE' && output.length > 0;
    if (hasInput || hasOutput) throw notApplicable(method, path);
    return relayed;
  }
  const { asksForStream } = body;
  if (asksForStream && mustHoldStream(output)) throw streamNotApplicable(path);
  return { plan: guarded, operation, isWhole: !asksForStream };
}

function notApplicable(method: string, path: string): GatewayError {
  const message = `The guardrails of the config cannot check ${method} ${path}. Guardrails check JSON calls of chat, completions, embeddings and ${[...checkableOperations.keys()].join(', ')}. Use a config without guardrails for this call.`;
  return new GatewayError('unsupported_operation', 'guardrails_not_applicable', message, { param: 'config' });
}

function streamNotApplicable(path: string): GatewayError {
  const message = `Guardrails check the whole answer of ${path} before it is sent, so it cannot be streamed. Send the request without "stream": true.`;
  return new GatewayError('unsupported_operation', 'guardrails_not_applicable', message, { param: 'stream' });
}

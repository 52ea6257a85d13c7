import type { TargetGuardrails } from '#libs/access/target-of-credential.ts';
import type { ForwardRequest, Outcome, Target } from '#libs/calls/call.ts';
import { guardCall, guardInput } from '#libs/calls/protect/guardrails/guard-call.ts';
import type { Guardrails } from '#libs/calls/protect/guardrails/guardrails.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { operationPaths, type Operation } from '#libs/providers/provider.ts';

type Deps = {
  guardrails: Guardrails;
  forward: (request: ForwardRequest, target: Target) => Promise<Outcome>;
};

type Call = {
  method: string;
  path: string;
  /** As it goes out; null: none, or none that is JSON. */
  body: Buffer | null;
  target: Target;
  metadata: Readonly<Record<string, string>> | null;
} & Pick<ForwardRequest, 'stream' | 'headers' | 'model' | 'signal' | 'memory'>;

/** `outcome`: the call is over, made or refused. Otherwise it may be relayed; `hasFailed`: its success is to be told as 246. */
type Judged = { outcome: Outcome } | { outcome: null; hasFailed: boolean };

const judgedOperations: ReadonlyMap<string, Operation> = new Map(
  (['responses', 'moderations', 'images'] as const).map((operation) => [`/v1${operationPaths[operation]}`, operation]),
);

/**
 * Judges a call of a pass-through area by guardrails: one whose answer comes whole is made between them, as calls of
 * configs are; of a stream, the input is judged. Throws unsupported_operation (`guardrails_not_applicable`) when there is
 * something to judge that cannot be: guardrails that somebody set are never passed over in silence.
 */
export async function judgeRelayed(
  { guardrails, forward }: Deps,
  { input, output, strict, answersWhole }: TargetGuardrails,
  { method, path, body, stream, headers = {}, target, model, metadata, signal, memory }: Call,
): Promise<Judged> {
  const operation = method === 'POST' ? judgedOperations.get(path) : undefined;
  if (operation === undefined || body === null) {
    const hasInput = method === 'POST' && input.length > 0;
    const hasOutput = method !== 'DELETE' && output.length > 0;
    if (hasInput || hasOutput) throw notApplicable(method, path);
    return { outcome: null, hasFailed: false };
  }
  if (stream && answersWhole) throw streamNotApplicable(path);
  const request: ForwardRequest = {
    operation,
    body,
    model,
    stream,
    includeUsage: false,
    strict,
    headers,
    signal,
    memory,
  };
  const judging = { input, request, target, model, metadata };
  if (stream) return guardInput(guardrails, judging);
  return { outcome: await guardCall(guardrails, { ...judging, output, make: () => forward(request, target) }) };
}

function notApplicable(method: string, path: string): GatewayError {
  const message =
    `This call goes by a config with guardrails, which cannot judge ${method} ${path}. They judge JSON calls of chat, ` +
    `completions, embeddings and ${[...judgedOperations.keys()].join(', ')}: use a config without guardrails here.`;
  return new GatewayError('unsupported_operation', 'guardrails_not_applicable', message, { param: 'config' });
}

function streamNotApplicable(path: string): GatewayError {
  const message =
    `The guardrails of your workspace judge the answer of ${path} before it is sent, which they cannot do with a stream: ` +
    'send the request without "stream": true.';
  return new GatewayError('unsupported_operation', 'guardrails_not_applicable', message, { param: 'stream' });
}

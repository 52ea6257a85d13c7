import { z } from 'zod';
import { configLimits } from '#libs/contracts/configs/config.ts';
import { hasCredentialName } from '#libs/kernel/logging/credential-shapes.ts';
import { outputBounds } from '#libs/contracts/calls/output-bounds.ts';
import { parseParamPath } from '#libs/contracts/param-path.ts';
import type { SourceNode } from './source-node.ts';

/** Members of a target, or of a whole model, with the names of a config. */
export type Members = Record<string, unknown>;

/** Parameters that requests have too, and override (docs.litellm.ai/docs/completion/input). */
const bodyParams: ReadonlySet<string> = new Set([
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'n',
  'max_tokens',
  'max_completion_tokens',
  'presence_penalty',
  'frequency_penalty',
  'repetition_penalty',
  'logit_bias',
  'logprobs',
  'top_logprobs',
  'user',
  'seed',
  'stop',
  'response_format',
  'tools',
  'tool_choice',
  'parallel_tool_calls',
  'reasoning_effort',
  'reasoning',
  'thinking',
  'verbosity',
  'modalities',
  'audio',
  'prediction',
  'service_tier',
  'store',
  'metadata',
  'dimensions',
  'encoding_format',
  'input_type',
  'enable_thinking',
  'chat_template_kwargs',
  'web_search_options',
  'safety_settings',
  'num_ctx',
  'keep_alive',
]);

export const attemptsMax = 5;
const droppedMax = 100;

/** Seconds as `request_timeout`: milliseconds for one attempt, or up to the first event of a stream. */
export function readTimeout(node: SourceNode): number | null {
  const seconds = node.number();
  if (seconds === null) return null;
  if (seconds === 0) {
    node.unsupported('Expected a time above 0 s. Without it, the timeouts of the server apply.');
    return null;
  }
  const ms = Math.max(1, Math.round(seconds * 1_000));
  const { timeoutMsMax } = configLimits;
  node.translated(ms > timeoutMsMax ? `${timeoutMsMax / 1_000} s, the maximum.` : null);
  return Math.min(ms, timeoutMsMax);
}

/** A number of retries as `retry.attempts`. */
export function readAttempts(node: SourceNode): number | null {
  const count = node.number();
  if (count === null) return null;
  const attempts = Math.min(Math.round(count), attemptsMax);
  node.changed(
    `${attempts} ${attempts === 1 ? 'retry' : 'retries'} at the same target${attempts < count ? ', the maximum' : ''}; then the next target of a fallback.`,
  );
  return attempts;
}

/** `stream_timeout`, in comparison with the timeout that applies. */
export function readStreamTimeout(node: SourceNode, timeoutMs: number | undefined): void {
  const seconds = node.number();
  if (seconds === null) return;
  if (seconds * 1_000 === timeoutMs) node.same('request_timeout also bounds the time until the first event.');
  else node.unsupported('Streams have no separate timeout. request_timeout bounds the time until the first event.');
}

/** The members of a target in `litellm_params`, apart from credential, weights and limits. */
export function readTargetMembers(params: SourceNode): Members {
  const members: Members = {};
  const defaults: Members = {};
  for (const node of params.members()) {
    if (!node.isGiven || !bodyParams.has(node.name)) continue;
    if (isUsableParam(node)) defaults[node.name] = node.value;
  }
  if (Object.keys(defaults).length > 0) members['default_params'] = defaults;
  const timeout = params.member('timeout');
  const timeoutMs = timeout.isGiven ? readTimeout(timeout) : null;
  if (timeoutMs !== null) members['request_timeout'] = timeoutMs;
  readStreamTimeout(params.member('stream_timeout'), timeoutMs ?? undefined);
  const [retries, ...others] = ['num_retries', 'max_retries']
    .map((name) => params.member(name))
    .filter((each) => each.isGiven);
  for (const other of others) other.unsupported('The entry has another number of retries, which is used.');
  const attempts = retries === undefined ? null : readAttempts(retries);
  if (attempts !== null) members['retry'] = { attempts };
  const drop = params.member('drop_params');
  if (drop.isGiven) readDropParams(drop, members);
  readDroppedPaths(params.member('additional_drop_params'), members);
  const extra = readParams(params.member('extra_body'));
  if (extra !== null) members['override_params'] = extra;
  return members;
}

/** The parameters of a section that a config can set; null for none. */
export function readParams(section: SourceNode): Members | null {
  const usable = section.members().filter((node) => {
    if (node.name !== 'stream' && node.name !== 'model') return isUsableParam(node);
    node.unsupported('A request sets this parameter itself.');
    return false;
  });
  return usable.length === 0 ? null : Object.fromEntries(usable.map(({ name, value }) => [name, value]));
}

/** Whether a body parameter can be part of a record, which others can read. Reports it. */
function isUsableParam(node: SourceNode): boolean {
  if (!node.isGiven) return false;
  const problem = findProblem(node);
  if (problem === null) node.same();
  else node.unsupported(problem);
  return problem === null;
}

function findProblem({ name, value }: SourceNode): string | null {
  if (hasCredentialName(name) || hasCredential(value))
    return 'A record cannot contain a secret here. Let callers send the parameter.';
  if (JSON.stringify(value).includes('"os.environ/')) return 'A parameter cannot refer to a variable. Write its value.';
  return paramBounds.safeParse({ [name]: value }).success ? null : 'The value is not allowed for this parameter.';
}

const paramBounds = z.looseObject(outputBounds);

const hasCredential = (value: unknown): boolean =>
  typeof value === 'object' &&
  value !== null &&
  Object.entries(value).some(
    ([name, member]) => (typeof member === 'string' && hasCredentialName(name)) || hasCredential(member),
  );

/** Whether parameters that a provider does not support are dropped, which is the default of Sluice. */
export function readDropParams(node: SourceNode, members: Members): void {
  const drops = node.flag();
  if (drops === null) return;
  if (!drops) members['unsupported_params'] = 'refuse';
  node.same();
}

function readDroppedPaths(node: SourceNode, members: Members): void {
  const paths = node.isGiven ? node.texts() : null;
  if (paths === null || paths.length === 0) return;
  const usable = paths
    .filter((path) => path !== 'stream' && path !== 'model' && path.length <= 500 && parseParamPath(path) !== null)
    .slice(0, droppedMax);
  if (usable.length === 0) return node.unsupported('None of these parameters can be dropped.');
  members['drop_params'] = usable;
  node.translated(usable.length < paths.length ? `Only ${usable.join(', ')}; the others cannot be dropped.` : null);
}

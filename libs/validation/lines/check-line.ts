import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import { isPublicName, type PublicNames } from '#libs/contracts/configs/public-models.ts';
import { duplicateBreach } from '#libs/contracts/calls/body-rules.ts';
import { describeBreach, kindOf, type Problem } from '#libs/contracts/calls/describe-issue.ts';
import { withoutLowBounds } from '#libs/contracts/calls/output-bounds.ts';
import { isStorable } from '#libs/contracts/scalars.ts';
import { countMembers, findDuplicateMember } from '#libs/kernel/json/duplicate-members.ts';
import { estimateInput, estimateTokens, type UsageEstimate } from '#libs/prices/estimate-tokens.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import { checkBody } from './check-body.ts';
import { checkPromptLine, namesPrompt, type KnownPrompt } from './check-prompt-line.ts';
import { checkResponseSchema, type SchemaLimits } from './check-response-schema.ts';

// In the order of LINE-2: the first problem of a line is the one that is reported.

export type LineRules = SchemaLimits & {
  endpoint: BatchEndpoint;
  /** Without a default target, every line must name its own: `model: "@virtual-key/model"`. */
  hasDefaultTarget: boolean;
  /** Slugs of the virtual keys that a model can name; null allows any. */
  virtualKeys: ReadonlySet<string> | null;
  /** The public models that a line can name if there is no default target. Absent: none. */
  publicNames?: PublicNames | undefined;
  /** Providers without the endpoint: by the slug of their virtual key, and by `null` for the batch's own target. */
  unable: ReadonlyMap<string | null, string>;
  /** Prompts that a line can use, by slug and ID. Absent: lines cannot use prompts. */
  prompts?: ReadonlyMap<string, KnownPrompt> | undefined;
  customIdLengthMax: number;
  /** The maximum nesting of arrays and objects. */
  depthMax: number;
  /** Leaves out the checks of bodies, except of those that use a prompt. */
  withoutBodies?: boolean | undefined;
  /** Whether to estimate the usage of valid lines. */
  estimatesUsage?: boolean | undefined;
};

export type LineVerdict = {
  customId: string | null;
  model: string | null;
  /** The name of the prompt that the line uses. */
  prompt?: string | undefined;
  problem: Problem | null;
  timedOut: boolean;
  /** Only for a line without a problem, if an estimate was requested, and not for one that uses a prompt. */
  estimate?: UsageEstimate | undefined;
};

const notJson = 'This line is not parseable as valid JSON.';

/** The problem of a line that is not valid JSON. `reason` is a sentence with details. */
export function unreadable(reason = ''): Problem {
  return { code: 'invalid_json_line', message: reason === '' ? notJson : `${notJson} ${reason}`, param: null };
}

/** The problem of a line that is longer than allowed. */
export function lineTooLong(lengthBytes: number, lineBytesMax: number): Problem {
  const message = `This line is ${lengthBytes} bytes long. A line can have at most ${lineBytesMax} bytes.`;
  return { code: 'line_too_long', message, param: null };
}

/** The verdict on a line that could not be read. */
export const refusedLine = (problem: Problem): LineVerdict => ({
  customId: null,
  model: null,
  problem,
  timedOut: false,
});

const missing = (param: string): Problem => ({
  code: 'missing_required_parameter',
  message: `Missing required parameter: '${param}'.`,
  param,
});

const wrongType = (param: string, expected: string, value: unknown): Problem => ({
  code: 'invalid_type',
  message: `Invalid type for '${param}': expected ${expected}, but got ${kindOf(value)} instead.`,
  param,
});

const routeNames: Record<BatchEndpoint, string> = {
  '/v1/chat/completions': 'Chat Completions',
  '/v1/completions': 'Completions',
  '/v1/embeddings': 'Embeddings',
  '/v1/messages': 'Messages',
  '/v1/responses': 'Responses',
  '/v1/moderations': 'Moderations',
  '/v1/images/generations': 'Images',
};

/** Checks one line in UTF-8. Pure, except for the caches of compiled schemas. */
export function checkLine(bytes: Buffer, rules: LineRules): LineVerdict {
  const { depthMax } = rules;
  const { excess, members } = measureJson(bytes, { depthMax, membersMax: Number.POSITIVE_INFINITY });
  if (excess === 'depth') {
    return refusedLine(unreadable(`It has more than ${depthMax} levels of nested arrays and objects.`));
  }
  const text = bytes.toString();
  let line: unknown;
  try {
    line = JSON.parse(text);
  } catch {
    const marked = text.startsWith('\uFEFF');
    return refusedLine(
      unreadable(marked ? 'It begins with a byte order mark. Save the file as UTF-8 without BOM.' : ''),
    );
  }
  if (typeof line !== 'object' || line === null || Array.isArray(line))
    return refusedLine(unreadable(`A line must be a JSON object, but this one is ${kindOf(line)}.`));
  if (countMembers(line) < members) {
    const duplicate = findDuplicateMember(bytes);
    if (duplicate !== null) return refusedLine(describeBreach(duplicateBreach(duplicate)));
  }
  const { custom_id: customId, body } = line as Record<string, unknown>;
  const model = isObject(body) && typeof body['model'] === 'string' ? body['model'] : null;
  const verdict = (problem: Problem | null, timedOut = false): LineVerdict => ({
    customId: typeof customId === 'string' && customId !== '' ? customId : null,
    model,
    problem,
    timedOut,
  });
  const envelope = checkEnvelope(line as Record<string, unknown>, rules);
  if (envelope !== null || !isObject(body)) return verdict(envelope ?? wrongType('body', 'an object', body));
  const { endpoint, prompts } = rules;
  if (prompts !== undefined && namesPrompt(body, endpoint)) {
    const problem = checkStream(body, endpoint) ?? checkPromptLine(body, { endpoint, prompts });
    return { ...verdict(problem), prompt: problem === null ? (body['prompt_id'] as string) : undefined };
  }
  if (rules.withoutBodies === true) return verdict(null);
  // A line with a bound below 1 fails individually when it is called, like at OpenAI.
  const problem =
    checkRequired(body, endpoint) ?? checkBody(endpoint, withoutLowBounds(body)) ?? checkTarget(model, rules);
  if (problem !== null) return verdict(problem);
  const schema = checkResponseSchema(body, rules);
  const result = verdict(schema.problem, schema.timedOut);
  if (rules.estimatesUsage === true && schema.problem === null) {
    const operation = endpoint === '/v1/responses' ? 'responses' : 'chat';
    result.estimate = { ...estimateTokens(0, body, operation), inputTokens: estimateInput(body) };
  }
  return result;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function checkEnvelope(line: Record<string, unknown>, rules: LineRules): Problem | null {
  const { custom_id: customId, method, url, body } = line;
  if (customId === undefined) return missing('custom_id');
  if (typeof customId !== 'string') return wrongType('custom_id', 'a string', customId);
  const badId = checkCustomId(customId, rules.customIdLengthMax);
  if (badId !== null) return badId;
  if (method === undefined) return missing('method');
  if (typeof method !== 'string') return wrongType('method', 'a string', method);
  if (method !== 'POST') {
    const shown = method.length > 50 ? `${method.slice(0, 50)}…` : method;
    return {
      code: 'invalid_method',
      message: `Invalid value: '${shown}'. Supported values are: 'POST'.`,
      param: 'method',
    };
  }
  if (url === undefined) return missing('url');
  if (typeof url !== 'string') return wrongType('url', 'a string', url);
  if (url !== rules.endpoint) {
    return {
      code: 'invalid_url',
      message: 'The URL provided for this request does not match the batch endpoint.',
      param: 'url',
    };
  }
  return body === undefined ? missing('body') : null;
}

function checkCustomId(customId: string, lengthMax: number): Problem | null {
  const param = 'custom_id';
  if (customId === '') {
    const message = `Invalid 'custom_id': empty string. Expected a string with minimum length 1, but got an empty string instead.`;
    return { code: 'empty_string', message, param };
  }
  if (customId.length > lengthMax) {
    const message = `Invalid 'custom_id': string too long. Expected a string with maximum length ${lengthMax}, but got a string with length ${customId.length} instead.`;
    return { code: 'string_above_max_length', message, param };
  }
  // The custom_id is written into result rows and shown in logs.
  if (isStorable(customId)) return null;
  const message = `Invalid 'custom_id': expected well-formed Unicode text without the character U+0000.`;
  return { code: 'invalid_value', message, param };
}

export function checkStream(body: Record<string, unknown>, endpoint: BatchEndpoint): Problem | null {
  if (body['stream'] !== true) return null;
  const message = `${routeNames[endpoint]}: Streaming is not supported in the Batch API.`;
  return { code: 'streaming_unsupported', message, param: 'body.stream' };
}

function checkRequired(body: Record<string, unknown>, endpoint: BatchEndpoint): Problem | null {
  const streamed = checkStream(body, endpoint);
  if (streamed !== null) return streamed;
  if (body['model'] === undefined)
    return { code: 'invalid_request', message: 'Model parameter is required.', param: 'body.model' };
  if (endpoint === '/v1/chat/completions' && body['messages'] === undefined)
    return { code: 'invalid_request', message: 'Messages parameter is required.', param: 'body.messages' };
  return null;
}

function checkTarget(model: string | null, rules: LineRules): Problem | null {
  const { hasDefaultTarget, virtualKeys, publicNames, unable, endpoint } = rules;
  const slug = model === null ? undefined : /^@([a-zA-Z0-9_-]{1,64})\/./s.exec(model)?.[1];
  if (slug === undefined ? hasDefaultTarget : virtualKeys === null || virtualKeys.has(slug)) {
    const provider = unable.get(slug ?? null);
    if (provider === undefined) return null;
    const message = `The provider '${provider}' does not support ${endpoint}. Use a virtual key of another provider in the model, as '@virtual-key/model'.`;
    return { code: 'unsupported_operation', message, param: 'body.model' };
  }
  if (publicNames !== undefined && model !== null && isPublicName(publicNames, model)) return null;
  const shown = model !== null && model.length > 200 ? `${model.slice(0, 200)}…` : model;
  if (slug !== undefined) {
    const message = `The model '${shown}' names the virtual key '${slug}', which does not exist in this workspace.`;
    return { code: 'model_not_found', message, param: 'body.model' };
  }
  const message = `The model '${shown}' does not name a provider, and neither does the batch. Use a public model, write the model as '@virtual-key/model', or create the batch with a virtual key or a config.`;
  return { code: 'model_not_found', message, param: 'body.model' };
}

import { GatewayError } from '#libs/kernel/errors.ts';
import { type Json, asNumber, asText, compact, toRecord, toRecords } from '../turns/json-value.ts';
import {
  type ResponseFormat,
  type Tool,
  type ToolChoice,
  type TurnRequest,
  unsupported,
} from '../turns/turn-request.ts';
import { decodeInput } from './decode-input.ts';
import { flatName, readTools } from './tool-names.ts';

/** Members that are read into others, that the core reads, or that only the answer repeats. */
const consumed = new Set([
  'model',
  'input',
  'instructions',
  'stream',
  'background',
  'store',
  'include',
  'max_output_tokens',
  'metadata',
  'reasoning',
  'temperature',
  'text',
  'tools',
  'tool_choice',
  'top_logprobs',
  'top_p',
  'parallel_tool_calls',
  'truncation',
]);

const stateless = 'only providers with the Responses API store responses';

/** Members that refer to something stored, or that store something. */
const storedMembers: Readonly<Record<string, string>> = {
  previous_response_id: `${stateless}. Send the whole conversation in 'input'`,
  conversation: `${stateless}. Send the whole conversation in 'input'`,
  prompt: `only the provider that stored the prompt has it. Send its text`,
};

/**
 * Reads a request of OpenAI's Responses API (platform.openai.com/docs/api-reference/responses) for a provider that does not
 * have that API. Throws like `decodeInput` and `readTools`, and `unsupported_parameter` for what only a provider with that API
 * can do.
 */
export function decodeResponseRequest(body: Json, model: string): TurnRequest {
  refuseStored(body);
  if (model === '') throw missingModel();
  const conversation = decodeInput(body);
  const hints = [...conversation.hints];
  const { tools: all } = readTools(body, hints);
  const { tools, choice } = readToolChoice(body['tool_choice'], all);
  const { effort, summary: _summary, generate_summary: _older, ...reasoning } = toRecord(body['reasoning']);
  const { format, verbosity } = toRecord(body['text']);
  hints.push(...namesOf(reasoning, 'reasoning'), ...readIncluded(body['include']));
  if (asNumber(body['top_logprobs'])) hints.push('top_logprobs');
  if (body['truncation'] === 'auto') hints.push('truncation');
  const parallel = body['parallel_tool_calls'];
  const parameters = {
    maxTokens: asNumber(body['max_output_tokens']),
    temperature: asNumber(body['temperature']),
    topP: asNumber(body['top_p']),
    reasoningEffort: asText(effort),
    toolChoice: choice,
    parallelToolCalls: typeof parallel === 'boolean' ? parallel : undefined,
    responseFormat: readFormat(toRecord(format)),
  };
  return {
    ...conversation,
    hints,
    model,
    tools,
    ...parameters,
    user: asText(body['user']),
    stop: [],
    seed: undefined,
    frequencyPenalty: undefined,
    presencePenalty: undefined,
    n: undefined,
    logprobs: false,
    topLogprobs: undefined,
    usesFunctions: false,
    body: compact({
      ...Object.fromEntries(Object.entries(body).filter(([name]) => !consumed.has(name))),
      max_completion_tokens: parameters.maxTokens,
      temperature: parameters.temperature,
      top_p: parameters.topP,
      reasoning_effort: parameters.reasoningEffort,
      verbosity: asText(verbosity),
      tools: tools.length > 0 ? tools : undefined,
      tool_choice: parameters.toolChoice,
      parallel_tool_calls: parameters.parallelToolCalls,
      response_format: parameters.responseFormat,
    }),
  };
}

function refuseStored(body: Json): void {
  for (const [name, why] of Object.entries(storedMembers)) {
    if (body[name] !== undefined && body[name] !== null) throw unsupported(name, why);
  }
  if (body['store'] === true) throw unsupported('store', `${stateless}. Leave it out, or set it to false`);
  if (body['background'] === true) {
    throw unsupported('background', 'only providers with the Responses API run responses in the background');
  }
}

const missingModel = (): GatewayError =>
  new GatewayError('invalid_request', 'missing_required_parameter', "Missing required parameter: 'model'.", {
    param: 'model',
  });

const namesOf = (members: Json, at: string): string[] =>
  Object.keys(members).flatMap((name) => (members[name] === null ? [] : [`${at}.${name}`]));

/** The parts of an answer that a request asks for and that other providers do not have. Reasoning is always signed. */
const readIncluded = (include: unknown): string[] =>
  (Array.isArray(include) ? include : []).flatMap((name: unknown, index) =>
    name === 'reasoning.encrypted_content' ? [] : [`include[${index}]`],
  );

/** The choice, and the tools that it leaves. */
function readToolChoice(
  choice: unknown,
  tools: readonly Tool[],
): { tools: readonly Tool[]; choice: ToolChoice | undefined } {
  if (choice === undefined || choice === null) return { tools, choice: undefined };
  if (choice === 'auto' || choice === 'none' || choice === 'required') return { tools, choice };
  const { type, name, namespace, mode, tools: allowed } = toRecord(choice);
  if (type === 'function' || type === 'custom') {
    return { tools, choice: { name: flatName(asText(namespace) ?? null, asText(name) ?? '') } };
  }
  if (type !== 'allowed_tools') {
    const why = `only providers with the Responses API have the tool '${String(type).slice(0, 100)}'`;
    throw unsupported('tool_choice', why);
  }
  const names = new Set(
    toRecords(allowed).map((one) => flatName(asText(one['namespace']) ?? null, asText(one['name']) ?? '')),
  );
  return { tools: tools.filter((tool) => names.has(tool.name)), choice: mode === 'required' ? mode : 'auto' };
}

function readFormat(format: Json): ResponseFormat | undefined {
  const { type, schema, strict } = format;
  if (type === 'text' || type === 'json_object') return { type };
  if (type !== 'json_schema') return undefined;
  return {
    type,
    name: asText(format['name']) ?? '',
    description: asText(format['description']),
    schema: schema === undefined || schema === null ? undefined : toRecord(schema),
    strict: typeof strict === 'boolean' ? strict : undefined,
  };
}

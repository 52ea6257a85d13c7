import { isClosedSchema } from '../turns/closed-schema.ts';
import { type Json, asNumber, asText, compact, toRecord, toRecords } from '../turns/json-value.ts';
import {
  type ResponseFormat,
  type Tool,
  type ToolChoice,
  type TurnRequest,
  unsupported,
} from '../turns/turn-request.ts';
import { decodeConversation } from './decode-content.ts';

/** Members that are read into others, or that the core reads. */
const consumed = new Set([
  'model',
  'messages',
  'system',
  'stream',
  'max_tokens',
  'stop_sequences',
  'temperature',
  'top_p',
  'tools',
  'tool_choice',
  'metadata',
  'output_config',
  'output_format',
]);

/** Members that give the model tools which run at Anthropic. */
const serverMembers = ['mcp_servers', 'container'] as const;

/**
 * Reads a request of Anthropic's Messages API (platform.claude.com/docs, "Messages") for a provider that does not have that API.
 * Throws like `decodeConversation`, and `unsupported_parameter` for tools that run at Anthropic or that it defines.
 */
export function decodeMessageRequest(body: Json, model: string): TurnRequest {
  for (const name of serverMembers) {
    const value = body[name];
    if (value === undefined || value === null || (Array.isArray(value) && value.length === 0)) continue;
    throw unsupported(name, `it runs at Anthropic. Leave it out, or use a Claude model`);
  }
  const conversation = decodeConversation(body);
  const hints = [...conversation.hints];
  const tools = toRecords(body['tools']).map((raw, index) => readTool(raw, `tools[${index}]`, hints));
  const { effort, format, ...config } = toRecord(body['output_config']);
  hints.push(...Object.keys(config).map((name) => `output_config.${name}`));
  const choice = toRecord(body['tool_choice']);
  const stop = Array.isArray(body['stop_sequences'])
    ? body['stop_sequences'].filter((text) => typeof text === 'string')
    : [];
  const parameters = {
    maxTokens: asNumber(body['max_tokens']),
    temperature: asNumber(body['temperature']),
    topP: asNumber(body['top_p']),
    user: asText(toRecord(body['metadata'])['user_id']),
    reasoningEffort: asText(effort),
    toolChoice: readToolChoice(choice),
    parallelToolCalls: choice['disable_parallel_tool_use'] === true ? false : undefined,
    responseFormat: readFormat(toRecord(format ?? body['output_format'])),
  };
  return {
    ...conversation,
    hints,
    model,
    tools,
    ...parameters,
    stop,
    seed: undefined,
    frequencyPenalty: undefined,
    presencePenalty: undefined,
    n: undefined,
    logprobs: false,
    topLogprobs: undefined,
    usesFunctions: false,
    body: compact({
      ...Object.fromEntries(Object.entries(body).filter(([name]) => !consumed.has(name))),
      max_tokens: parameters.maxTokens,
      temperature: parameters.temperature,
      top_p: parameters.topP,
      user: parameters.user,
      reasoning_effort: parameters.reasoningEffort,
      stop: stop.length > 0 ? stop : undefined,
      tools: tools.length > 0 ? tools : undefined,
      tool_choice: parameters.toolChoice,
      parallel_tool_calls: parameters.parallelToolCalls,
      response_format: parameters.responseFormat,
    }),
  };
}

/** Members of a tool that describe it. Any others change how Anthropic uses it, and are left out. */
const toolMembers = new Set(['type', 'name', 'description', 'input_schema', 'strict', 'cache_control']);

function readTool(raw: Json, param: string, hints: string[]): Tool {
  const type = asText(raw['type']) ?? 'custom';
  if (type !== 'custom') {
    const why = `only Anthropic's API has the tool '${type.slice(0, 100)}'. Leave the tool out, or use a Claude model`;
    throw unsupported(`${param}.type`, why);
  }
  const others = Object.keys(raw).filter((name) => !toolMembers.has(name) && raw[name] !== null && raw[name] !== false);
  hints.push(...others.map((name) => `${param}.${name}`));
  const { input_schema: schema, strict } = raw;
  return {
    name: asText(raw['name']) ?? '',
    description: asText(raw['description']),
    parameters: schema === undefined || schema === null ? undefined : toRecord(schema),
    strict: typeof strict === 'boolean' ? strict : undefined,
    param,
    raw,
  };
}

function readToolChoice({ type, name }: Json): ToolChoice | undefined {
  if (type === 'auto' || type === 'none') return type;
  if (type === 'any') return 'required';
  return type === 'tool' ? { name: asText(name) ?? '' } : undefined;
}

/** Anthropic always holds its models to a schema; others do that only if it fits their strict mode. */
function readFormat({ type, schema }: Json): ResponseFormat | undefined {
  if (type !== 'json_schema') return undefined;
  const shape = toRecord(schema);
  const strict = isClosedSchema(shape) ? true : undefined;
  return { type, name: 'answer', description: undefined, schema: shape, strict };
}

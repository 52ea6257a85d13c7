import { GatewayError } from '#libs/kernel/errors.ts';
import { readChatMessages, type ChatMessages } from './chat-messages.ts';
import { asNumber, asText, toRecord, toRecords, type Json } from './json-value.ts';

export type Tool = {
  name: string;
  description: string | undefined;
  /** The whole JSON schema; undefined for a tool without parameters. */
  parameters: Json | undefined;
  strict: boolean | undefined;
  param: string;
  raw: Json;
};

export type ToolChoice = 'auto' | 'none' | 'required' | { name: string };

export type ResponseFormat =
  | { type: 'text' }
  | { type: 'json_object' }
  | {
      type: 'json_schema';
      name: string;
      description: string | undefined;
      schema: Json | undefined;
      strict: boolean | undefined;
    };

/** A chat request as read by adapters that transform it. undefined: not given, or null. */
export type ChatRequest = ChatMessages & {
  model: string;
  tools: readonly Tool[];
  toolChoice: ToolChoice | undefined;
  parallelToolCalls: boolean | undefined;
  responseFormat: ResponseFormat | undefined;
  /** Empty if none was given. */
  stop: readonly string[];
  /** `max_completion_tokens`, else `max_tokens`. */
  maxTokens: number | undefined;
  temperature: number | undefined;
  topP: number | undefined;
  seed: number | undefined;
  frequencyPenalty: number | undefined;
  presencePenalty: number | undefined;
  n: number | undefined;
  logprobs: boolean;
  topLogprobs: number | undefined;
  user: string | undefined;
  reasoningEffort: string | undefined;
  /** The request used the deprecated `functions`, so its answer has `function_call`. */
  usesFunctions: boolean;
  body: Json;
};

/**
 * Reads a chat request that the contract has checked (libs/contracts/calls/chat.ts); `functions` and `function_call`
 * become tools. Throws like `readChatMessages`.
 */
export function readChatRequest(body: Json): ChatRequest {
  const legacy = usesFunctions(body);
  const tools = legacy
    ? toRecords(body['functions']).map((raw, index) => readTool(raw, raw, `functions[${index}]`))
    : toRecords(body['tools']).map((raw, index) => readTool(toRecord(raw['function']), raw, `tools[${index}]`));
  const { stop } = body;
  return {
    ...readChatMessages(body['messages']),
    model: asText(body['model']) ?? '',
    tools,
    toolChoice: readToolChoice(legacy ? body['function_call'] : body['tool_choice']),
    parallelToolCalls: flagOf(body['parallel_tool_calls']),
    responseFormat: readResponseFormat(toRecord(body['response_format'])),
    stop:
      typeof stop === 'string' ? [stop] : Array.isArray(stop) ? stop.filter((text) => typeof text === 'string') : [],
    maxTokens: asNumber(body['max_completion_tokens']) ?? asNumber(body['max_tokens']),
    temperature: asNumber(body['temperature']),
    topP: asNumber(body['top_p']),
    seed: asNumber(body['seed']),
    frequencyPenalty: asNumber(body['frequency_penalty']),
    presencePenalty: asNumber(body['presence_penalty']),
    n: asNumber(body['n']),
    logprobs: body['logprobs'] === true,
    topLogprobs: asNumber(body['top_logprobs']),
    user: asText(body['user']),
    reasoningEffort: asText(body['reasoning_effort']),
    usesFunctions: legacy,
    body,
  };
}

/** Whether the request used the deprecated `functions`, so that its answer has `function_call`. */
export function usesFunctions({ tools, functions }: Json): boolean {
  return Array.isArray(functions) && functions.length > 0 && !(Array.isArray(tools) && tools.length > 0);
}

/** Read by every adapter or by the core, or checked by `assertPlainAnswer`. */
const always = new Set(['model', 'messages', 'stream', 'stream_options', 'n', 'logprobs']);

/** OpenAI's defaults: sending one of them has no effect. */
const idle: Readonly<Record<string, readonly unknown[]>> = {
  frequency_penalty: [0],
  presence_penalty: [0],
  parallel_tool_calls: [true],
  service_tier: ['auto', 'default'],
  store: [false],
  verbosity: ['medium'],
};

/**
 * The names of the body's parameters that are not in `taken`, in the client's order, for `OutboundRequest.dropped`.
 * Parameters without effect (null, a penalty of 0) are not included.
 */
export function droppedParams(body: Json, taken: ReadonlySet<string>): string[] {
  return Object.keys(body).filter((name) => {
    const value = body[name];
    if (taken.has(name) || always.has(name) || value === null || value === undefined) return false;
    if (idle[name]?.includes(value)) return false;
    return !(typeof value === 'object' && Object.keys(value).length === 0);
  });
}

/**
 * Rejects the parameters that a provider with only one text choice does not support: several choices, log
 * probabilities, audio. Throws invalid_request `unsupported_parameter`, naming the param.
 */
export function assertPlainAnswer(
  request: ChatRequest,
  provider: string,
  can: { n?: boolean; logprobs?: boolean } = {},
): void {
  if (!can.n && request.n !== undefined && request.n > 1) {
    throw unsupported(
      'n',
      `${provider} returns one choice per call. Leave out 'n' and send the request ${request.n} times`,
    );
  }
  if (!can.logprobs && request.logprobs) throw unsupported('logprobs', `${provider} does not return log-probabilities`);
  const { modalities, audio } = request.body;
  if (Array.isArray(modalities) && modalities.some((kind) => kind !== 'text')) {
    throw unsupported('modalities', `${provider} only returns text`);
  }
  if (audio !== undefined && audio !== null) throw unsupported('audio', `${provider} only returns text`);
}

/** The error for a parameter whose absence would change the answer's shape. `why` is a sentence without a full stop. */
export const unsupported = (param: string, why: string): GatewayError =>
  new GatewayError('invalid_request', 'unsupported_parameter', `Unsupported parameter '${param}': ${why}.`, { param });

function readTool(definition: Json, raw: Json, param: string): Tool {
  const { parameters } = definition;
  return {
    name: asText(definition['name']) ?? '',
    description: asText(definition['description']),
    parameters: parameters === undefined || parameters === null ? undefined : toRecord(parameters),
    strict: flagOf(definition['strict']),
    param,
    raw,
  };
}

function readToolChoice(choice: unknown): ToolChoice | undefined {
  if (choice === 'auto' || choice === 'none' || choice === 'required') return choice;
  const record = toRecord(choice);
  const name = asText(toRecord(record['function'])['name']) ?? asText(record['name']);
  return name === undefined ? undefined : { name };
}

/** `response_format`, which the contract has checked. */
export function readResponseFormat(format: Json): ResponseFormat | undefined {
  const type = format['type'];
  if (type === 'text' || type === 'json_object') return { type };
  if (type !== 'json_schema') return undefined;
  const named = toRecord(format['json_schema']);
  return {
    type,
    name: asText(named['name']) ?? '',
    description: asText(named['description']),
    schema: named['schema'] === undefined || named['schema'] === null ? undefined : toRecord(named['schema']),
    strict: flagOf(named['strict']),
  };
}

const flagOf = (value: unknown): boolean | undefined => (typeof value === 'boolean' ? value : undefined);

import { readChatMessages } from './chat-messages.ts';
import { type Json, asNumber, asText, toRecord, toRecords } from '../turns/json-value.ts';
import type { ResponseFormat, Tool, ToolChoice, TurnRequest } from '../turns/turn-request.ts';

/**
 * Reads a chat request that the contract has checked (libs/contracts/calls/chat.ts); `functions` and `function_call`
 * become tools. Throws like `readChatMessages`.
 */
export function readChatRequest(body: Json, model: string): TurnRequest {
  const legacy = usesFunctions(body);
  const tools = legacy
    ? toRecords(body['functions']).map((raw, index) => readTool(raw, raw, `functions[${index}]`))
    : toRecords(body['tools']).map((raw, index) => readTool(toRecord(raw['function']), raw, `tools[${index}]`));
  const { stop } = body;
  return {
    ...readChatMessages(body['messages']),
    model,
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

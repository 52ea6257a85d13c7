import type { Tool, ToolUse } from '../../model/choose-tools.ts';
import type { GenerateRequest } from '../../model/generate.ts';
import { hashText } from '../../model/hash.ts';
import { countTokens } from '../../model/tokens.ts';
import type { Received } from '../wire-format.ts';
import {
  checkSampling,
  isObject,
  missing,
  optionalBoolean,
  optionalNumber,
  optionalText,
  refuse,
  requiredModel,
  stopSequences,
  streamOptions,
  wrongType,
} from './checks.ts';

type Json = Record<string, unknown>;

/** A checked chat request: the question for the model, and the members that only affect the format of the answer. */
export type ChatRequest = {
  model: string;
  user: string | undefined;
  stream: boolean;
  includeUsage: boolean;
  obfuscate: boolean;
  /** undefined: no log probabilities; otherwise the number of alternatives. */
  topLogprobs: number | undefined;
  /** The request has the deprecated `functions`, so the answer has `function_call`. */
  legacyFunctions: boolean;
  serviceTier: string;
  ask: GenerateRequest;
};

const roles = ['system', 'assistant', 'user', 'function', 'tool', 'developer'];
// The tokens that OpenAI adds for each message and for the conversation when it counts a prompt, and the price of a small
// image.
const tokensPerMessage = 3;
const tokensPerConversation = 3;
const tokensPerMedia = 85;

/** Checks and reads a chat request; throws Refusal with OpenAI's wording, param and code. */
export function decodeChat(received: Received): ChatRequest {
  const body = received.json;
  const model = requiredModel(body);
  const { promptTokens, ...asked } = readMessages(body['messages']);
  checkSampling(body);
  const choiceCount = optionalNumber(body, 'n', { min: 1, max: 128, whole: true }) ?? 1;
  const tokensMax =
    optionalNumber(body, 'max_completion_tokens', { min: 0, whole: true }) ??
    optionalNumber(body, 'max_tokens', { min: 0, whole: true });
  const logprobs = optionalBoolean(body, 'logprobs');
  const topLogprobs = optionalNumber(body, 'top_logprobs', { min: 0, max: 20, whole: true });
  if (topLogprobs !== undefined && !logprobs) {
    refuse("The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", 'top_logprobs', null);
  }
  const legacyFunctions = body['tools'] === undefined && body['functions'] !== undefined;
  const tools = legacyFunctions ? readFunctions(body['functions']) : readTools(body['tools']);
  const choice = readToolChoice(legacyFunctions ? body['function_call'] : body['tool_choice'], tools);
  const seed = body['seed'];
  return {
    model,
    user: optionalText(body['user']),
    ...streamOptions(body),
    topLogprobs: logprobs ? (topLogprobs ?? 0) : undefined,
    legacyFunctions,
    serviceTier: serviceTier(body['service_tier']),
    ask: {
      hash: hashText(`${model}\n${typeof seed === 'number' ? seed : ''}\n${JSON.stringify(body['messages'])}`),
      ...asked,
      rawBody: received.text,
      promptTokens: promptTokens + toolTokens(body, tools),
      choiceCount,
      tokensMax,
      stop: stopSequences(body),
      tools: choice.tools,
      toolUse: choice.toolUse,
      parallelToolUse: !legacyFunctions && body['parallel_tool_calls'] !== false,
      jsonSchema: readResponseFormat(body['response_format']),
    },
  };
}

type Asked = Pick<GenerateRequest, 'promptTokens' | 'lastUserText' | 'endsWithToolResult' | 'toolResults'>;

function readMessages(messages: unknown): Asked {
  if (messages === undefined || messages === null) return missing('messages');
  if (!Array.isArray(messages)) return wrongType('messages', 'an array of objects', messages);
  if (messages.length === 0) {
    return refuse(
      "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
      'messages',
      'empty_array',
    );
  }
  let promptTokens = tokensPerConversation;
  let lastUserText = '';
  let toolResults = 0;
  let role: unknown;
  for (const [index, message] of messages.entries()) {
    if (!isObject(message)) return wrongType(`messages[${index}]`, 'an object', message);
    role = message['role'];
    if (role === undefined) return missing(`messages[${index}].role`);
    if (typeof role !== 'string' || !roles.includes(role)) {
      const supported = "'system', 'assistant', 'user', 'function', 'tool', and 'developer'";
      const given = typeof role === 'string' ? `'${role}'` : JSON.stringify(role);
      return refuse(
        `Invalid value: ${given}. Supported values are: ${supported}.`,
        `messages[${index}].role`,
        'invalid_value',
      );
    }
    const { text, media } = readContent(message, index);
    promptTokens += tokensPerMessage + countTokens(text) + media * tokensPerMedia;
    if (message['tool_calls'] !== undefined) promptTokens += countTokens(JSON.stringify(message['tool_calls']));
    if (role === 'tool' || role === 'function') toolResults += 1;
    if (role !== 'user') continue;
    lastUserText = text;
    toolResults = 0;
  }
  return { promptTokens, lastUserText, endsWithToolResult: role === 'tool' || role === 'function', toolResults };
}

function readContent(message: Json, index: number): { text: string; media: number } {
  const content = message['content'];
  if (typeof content === 'string') return { text: content, media: 0 };
  const param = `messages[${index}].content`;
  if (content === undefined || content === null) {
    if (message['role'] === 'assistant' || message['role'] === 'function') return { text: '', media: 0 };
    return content === null
      ? refuse("Invalid value for 'content': expected a string, got null.", param, null)
      : missing(param);
  }
  if (!Array.isArray(content)) return wrongType(param, 'a string or an array of objects', content);
  const texts: string[] = [];
  let media = 0;
  for (const [at, part] of content.entries()) {
    if (!isObject(part)) return wrongType(`${param}[${at}]`, 'an object', part);
    if (part['type'] === undefined) return missing(`${param}[${at}].type`);
    if (typeof part['text'] === 'string') texts.push(part['text']);
    else media++;
  }
  return { text: texts.join('\n'), media };
}

function readTools(tools: unknown): Tool[] {
  if (tools === undefined || tools === null) return [];
  if (!Array.isArray(tools)) return wrongType('tools', 'an array of objects', tools);
  return tools.map((tool: unknown, index) => {
    if (!isObject(tool)) return wrongType(`tools[${index}]`, 'an object', tool);
    const kind = tool['type'];
    if (kind === undefined) return missing(`tools[${index}].type`);
    if (kind !== 'function' && kind !== 'custom') {
      return refuse(
        `Invalid value: ${JSON.stringify(kind)}. Supported values are: 'function' and 'custom'.`,
        `tools[${index}].type`,
        'invalid_value',
      );
    }
    return readFunction(tool[kind], `tools[${index}].${kind}`, kind);
  });
}

function readFunctions(functions: unknown): Tool[] {
  if (!Array.isArray(functions)) return wrongType('functions', 'an array of objects', functions);
  return functions.map((definition: unknown, index) => readFunction(definition, `functions[${index}]`, 'function'));
}

function readFunction(definition: unknown, param: string, kind: Tool['kind']): Tool {
  if (definition === undefined) return missing(param);
  if (!isObject(definition)) return wrongType(param, 'an object', definition);
  const name = definition['name'];
  if (name === undefined) return missing(`${param}.name`);
  if (typeof name !== 'string') return wrongType(`${param}.name`, 'a string', name);
  return { name, kind, parameters: definition['parameters'] };
}

/** `tool_choice` in all its forms (including the bare `{name}` of `function_call`), and the tools that remain. */
function readToolChoice(choice: unknown, tools: readonly Tool[]): { toolUse: ToolUse; tools: readonly Tool[] } {
  if (choice === undefined || choice === null) return { toolUse: 'auto', tools };
  if (choice === 'none' || choice === 'auto' || choice === 'required') return { toolUse: choice, tools };
  if (!isObject(choice)) {
    return refuse(
      `Invalid value: ${JSON.stringify(choice)}. Supported values are: 'none', 'auto', and 'required'.`,
      'tool_choice',
      'invalid_value',
    );
  }
  const allowed = choice['allowed_tools'];
  if (isObject(allowed)) {
    const listed = Array.isArray(allowed['tools']) ? allowed['tools'].map((tool: unknown) => nameOf(tool)) : [];
    const toolUse = allowed['mode'] === 'required' ? 'required' : 'auto';
    return { toolUse, tools: tools.filter((tool) => listed.includes(tool.name)) };
  }
  const name = nameOf(choice);
  if (name === undefined) return missing('tool_choice.function.name');
  if (!tools.some((tool) => tool.name === name)) {
    return refuse(`Tool choice '${name}' not found in 'tools' parameter.`, 'tool_choice', null);
  }
  return { toolUse: { name }, tools };
}

function nameOf(tool: unknown): string | undefined {
  if (!isObject(tool)) return undefined;
  const definition = tool['function'] ?? tool['custom'] ?? tool;
  return isObject(definition) ? optionalText(definition['name']) : undefined;
}

/** undefined: text; null: any JSON; otherwise the JSON Schema to satisfy. */
function readResponseFormat(format: unknown): unknown {
  if (format === undefined || format === null) return undefined;
  if (!isObject(format)) return wrongType('response_format', 'an object', format);
  switch (format['type']) {
    case 'text':
      return undefined;
    case 'json_object':
      return null;
    case 'json_schema': {
      const wrapper = format['json_schema'];
      if (!isObject(wrapper)) return missing('response_format.json_schema');
      if (typeof wrapper['name'] !== 'string') return missing('response_format.json_schema.name');
      return wrapper['schema'] ?? null;
    }
    default:
      return refuse(
        `Invalid value: ${JSON.stringify(format['type'])}. Supported values are: 'json_object', 'json_schema', and 'text'.`,
        'response_format.type',
        'invalid_value',
      );
  }
}

function toolTokens(body: Json, tools: readonly Tool[]): number {
  return tools.length === 0 ? 0 : countTokens(JSON.stringify(body['tools'] ?? body['functions']));
}

/** The tier that was used: the requested one, or `default` for `auto` or an absent value. */
function serviceTier(asked: unknown): string {
  return typeof asked === 'string' && asked !== 'auto' ? asked : 'default';
}

import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import { cohereSigner } from './decode.ts';
import { type Json, asNumber, asText, compact, toRecord } from '../turns/json-value.ts';
import { readTurns } from '../turns/read-turns.ts';
import {
  type ContentPart,
  type ToolCall,
  type Turn,
  type TurnRequest,
  assertPlainAnswer,
  droppedParams,
  joinText,
  unsupportedPart,
} from '../turns/turn-request.ts';

/** Cohere's own parameters, which are sent unchanged. */
const native = ['k', 'documents', 'citation_options', 'safety_mode', 'strict_tools', 'priority'] as const;

const taken = new Set([
  ...native,
  'max_tokens',
  'max_completion_tokens',
  'temperature',
  'top_p',
  'top_k',
  'seed',
  'frequency_penalty',
  'presence_penalty',
  'stop',
  'tools',
  'tool_choice',
  'functions',
  'function_call',
  'response_format',
  'reasoning_effort',
  'thinking',
]);

/**
 * The body of a v2 chat request (COHERE-1). `dropped` lists the client's parameters that were left out. Values that
 * Cohere rejects (a penalty below 0) are sent, so that Cohere rejects them. Throws invalid_request for a parameter
 * without an equivalent, and `unsupported_parameter` if dropping it would change the answer's shape.
 */
export function encodeChatBody(call: Call): { body: Json; dropped: string[] } {
  const request = readTurns(call);
  assertPlainAnswer(request, 'Cohere');
  const { body: given } = request;
  // Cohere supports the `detail` of an image, but not the names of speakers.
  const dropped = [...request.hints.filter((hint) => !hint.endsWith('.detail')), ...droppedParams(given, taken)];
  const body = compact({
    model: request.model,
    messages: encodeMessages(request, dropped),
    ...encodeTools(request, dropped),
    max_tokens: request.maxTokens,
    temperature: request.temperature,
    p: request.topP,
    k: asNumber(given['top_k']),
    seed: request.seed,
    frequency_penalty: request.frequencyPenalty,
    presence_penalty: request.presencePenalty,
    stop_sequences: request.stop.length > 0 ? request.stop : undefined,
    response_format: encodeFormat(request),
    thinking: encodeThinking(request, call.strict, dropped),
    ...Object.fromEntries(
      native.filter((name) => given[name] !== undefined && given[name] !== null).map((name) => [name, given[name]]),
    ),
    stream: call.stream ? true : undefined,
  });
  return { body, dropped };
}

/** Cohere has no choice of one tool by name. Offering only that tool and requiring a call has the same effect. */
function encodeTools({ tools, toolChoice }: TurnRequest, dropped: string[]): Json {
  if (tools.length === 0) {
    if (toolChoice === 'required' || typeof toolChoice === 'object') dropped.push('tool_choice');
    return {};
  }
  const named = typeof toolChoice === 'object' ? tools.filter(({ name }) => name === toolChoice.name) : tools;
  if (named.length === 0) {
    throw new GatewayError('invalid_request', 'invalid_value', "Invalid 'tool_choice': no tool has this name.", {
      param: 'tool_choice',
    });
  }
  const strict = named.every((tool) => tool.strict === true);
  // Cohere has one switch for all tools of a request. Turned on for some tools, it would change the others.
  if (!strict)
    dropped.push(...named.filter((tool) => tool.strict === true).map(({ param }) => `${param}.function.strict`));
  const choice =
    toolChoice === undefined || toolChoice === 'auto' ? undefined : toolChoice === 'none' ? 'NONE' : 'REQUIRED';
  return {
    tools: named.map(({ name, description, parameters }) => ({
      type: 'function',
      function: compact({ name, description, parameters: parameters ?? { type: 'object', properties: {} } }),
    })),
    tool_choice: choice,
    strict_tools: strict ? true : undefined,
  };
}

/** `json_schema` takes the bare schema, without name and strictness: Cohere always enforces it. */
function encodeFormat({ responseFormat: format }: TurnRequest): Json | undefined {
  if (format === undefined || format.type === 'text') return undefined;
  if (format.type === 'json_object' || format.schema === undefined) return { type: 'json_object' };
  return { type: 'json_object', json_schema: format.schema };
}

/**
 * `thinking` is an extension. Cohere supports only one of OpenAI's efforts, `none`, which is the behaviour of models without
 * thinking anyway.
 */
function encodeThinking(
  { body, reasoningEffort, model }: TurnRequest,
  strict: boolean,
  dropped: string[],
): Json | undefined {
  if (body['thinking'] !== undefined && body['thinking'] !== null) {
    const asked = toRecord(body['thinking']);
    // Its models that think decide about the amount themselves, without a name for that.
    if (!strict && asked['type'] !== 'adaptive') {
      const budget = asNumber(asked['token_budget']) ?? asNumber(asked['budget_tokens']);
      return compact({ type: asText(asked['type']) ?? 'enabled', token_budget: budget });
    }
    dropped.push('thinking');
  }
  if (reasoningEffort === undefined) return undefined;
  if (reasoningEffort !== 'none') dropped.push('reasoning_effort');
  return reasoningEffort === 'none' && model.includes('reasoning') ? { type: 'disabled' } : undefined;
}

/** Messages of Cohere's v2 chat: OpenAI's roles, with documents, a plan next to tool calls, and thinking as content. */
function encodeMessages({ system, messages }: Pick<TurnRequest, 'system' | 'messages'>, dropped: string[]): Json[] {
  return [
    ...system.map(({ text }) => ({ role: 'system', content: text })),
    ...messages.map((message) => encodeMessage(message, dropped)),
  ];
}

function encodeMessage(message: Turn, dropped: string[]): Json {
  switch (message.role) {
    case 'user':
      return { role: 'user', content: encodeUserParts(message.parts) };
    case 'assistant':
      return encodeAssistant(message, dropped);
    case 'tool':
      return { role: 'tool', tool_call_id: message.toolCallId, content: encodeResult(message.parts) };
  }
}

/** Content can be left out only if there are tool calls. */
function encodeAssistant(
  { parts, toolCalls, blocks, raw }: Extract<Turn, { role: 'assistant' }>,
  dropped: string[],
): Json {
  const text = joinText(parts);
  // The blocks of an earlier answer include its text. Blocks that Cohere does not know are from another provider.
  const isOwn = ({ signer }: Json): boolean => signer === undefined || signer === cohereSigner;
  const known = blocks.filter((block) => block['type'] === 'text' || (block['type'] === 'thinking' && isOwn(block)));
  if (blocks.some((block) => block['type'] === 'thinking' && !isOwn(block))) dropped.push('reasoning');
  const thought = known.some(({ type }) => type === 'thinking');
  const content = thought
    ? known.map(({ type, ...block }) =>
        type === 'thinking' ? { type, thinking: block['thinking'] } : { type, text: block['text'] },
      )
    : text === '' && toolCalls.length > 0
      ? undefined
      : text;
  return compact({
    role: 'assistant',
    content,
    tool_plan: asText(raw['tool_plan']),
    tool_calls: toolCalls.length > 0 ? toolCalls.map(encodeToolCall) : undefined,
  });
}

/** The text of the arguments is sent exactly as the client wrote it: Cohere's calls have OpenAI's format. */
function encodeToolCall({ id, name, written }: ToolCall): Json {
  return { id, type: 'function', function: { name, arguments: written.trim() === '' ? '{}' : written } };
}

function encodeUserParts(parts: readonly ContentPart[]): string | Json[] {
  if (parts.every(({ type }) => type === 'text')) return joinText(parts);
  return parts.map((part) => {
    if (part.type === 'text') return { type: 'text', text: part.text };
    if (part.type !== 'image' || part.media.kind === 'id') {
      throw unsupportedPart(
        part,
        'Cohere',
        "messages can only contain text and images. Use the 'documents' parameter for longer texts",
      );
    }
    const { media, detail } = part;
    const url = media.kind === 'url' ? media.url : `data:${media.mediaType};base64,${media.base64}`;
    return { type: 'image_url', image_url: { url, ...(detail === null ? {} : { detail }) } };
  });
}

/** A result is text, or a list whose documents can be cited: Cohere's own parts are sent unchanged. */
function encodeResult(parts: readonly ContentPart[]): string | Json[] {
  if (parts.every(({ type }) => type === 'text')) return joinText(parts);
  return parts.map((part) => {
    if (part.type === 'text') return { type: 'text', text: part.text };
    if (part.type === 'unknown' && part.name === 'document')
      return { type: 'document', document: part.raw['document'] };
    throw unsupportedPart(part, 'Cohere', 'tool results can only contain text and documents');
  });
}

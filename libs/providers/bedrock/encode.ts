import { encodeSampling, encodeThinking } from '../anthropic/encode.ts';
import type { ClaudeModel } from '../anthropic/models.ts';
import { withJsonInWords } from '../chat/json-in-words.ts';
import { withBreakpoints } from '../messages/cache-breakpoints.ts';
import type { Call } from '../provider.ts';
import { cachePoint, encodeMessages, encodeSystem } from './encode-messages.ts';
import { canBeClaude, findClaudeRules, isOpenAiModel } from './models.ts';
import { type Json, asNumber, asText, compact, toRecord } from '../turns/json-value.ts';
import { readTurns } from '../turns/read-turns.ts';
import { type TurnRequest, assertPlainAnswer, droppedParams, unsupported } from '../turns/turn-request.ts';

/** Converse's own parameters, which are sent unchanged. They can also be given in snake case. */
const native = {
  guardrailConfig: 'guardrail_config',
  performanceConfig: 'performance_config',
  requestMetadata: 'request_metadata',
  promptVariables: 'prompt_variables',
  outputConfig: 'output_config',
  additionalModelResponseFieldPaths: 'additional_model_response_field_paths',
} as const;

const taken = new Set([
  ...Object.entries(native).flat(),
  'additionalModelRequestFields',
  'additional_model_request_fields',
  'max_tokens',
  'max_completion_tokens',
  'temperature',
  'top_p',
  'top_k',
  'stop',
  'tools',
  'tool_choice',
  'functions',
  'function_call',
  'response_format',
  'reasoning_effort',
  'thinking',
  'anthropic_beta',
  'service_tier',
  'user',
]);

/**
 * The body of a Converse request; the model is in the path. Parameters of the model that Converse does not have are
 * sent as `additionalModelRequestFields`. `dropped` lists the client's parameters that were left out. Throws
 * invalid_request for a parameter without an equivalent, and `unsupported_parameter` if dropping it would change the
 * answer's shape.
 */
export function encodeConverseBody(call: Call): { model: string; body: Record<string, unknown>; dropped: string[] } {
  const turns = readTurns(call);
  const request = withJsonInWords(canBeClaude(turns.model) ? withBreakpoints(turns, call) : turns);
  assertPlainAnswer(request, 'Bedrock');
  const { model } = request;
  const claude = findClaudeRules(model);
  const dropped = [...request.hints, ...droppedParams(request.body, taken)];
  const messages = encodeMessages(request, call, dropped);
  const maxTokens = request.maxTokens ?? claude?.outputTokensMax ?? Number.POSITIVE_INFINITY;
  const thinking = thinkingOf(request, call.strict, maxTokens, dropped);
  const thinks = thinking !== undefined && thinking['type'] !== 'disabled';
  const sampling = samplingOf(request, claude, thinks, dropped);
  const fields = compact({
    ...(claude && request.user !== undefined ? { metadata: { user_id: request.user } } : {}),
    top_k: sampling['top_k'],
    thinking,
    anthropic_beta: request.body['anthropic_beta'] ?? undefined,
    ...effortOf(request, claude, thinking, dropped),
    ...toRecord(request.body['additionalModelRequestFields'] ?? request.body['additional_model_request_fields']),
  });
  if (!claude && request.user !== undefined) dropped.push('user');
  const inferenceConfig = compact({
    maxTokens: request.maxTokens,
    temperature: sampling['temperature'],
    topP: sampling['top_p'],
    stopSequences: request.stop.length > 0 ? request.stop : undefined,
  });
  const body = compact({
    system: encodeSystem(request),
    messages,
    inferenceConfig: unlessEmpty(inferenceConfig),
    toolConfig: encodeTools(request, dropped),
    serviceTier: serviceTierOf(request, dropped),
    ...Object.fromEntries(
      Object.entries(native).map(([name, snake]) => [name, request.body[name] ?? request.body[snake] ?? undefined]),
    ),
    additionalModelRequestFields: unlessEmpty(fields),
  });
  const format = encodeFormat(request, claude);
  if (format !== undefined) body['outputConfig'] = { ...toRecord(body['outputConfig']), textFormat: format };
  return { model, body, dropped };
}

const unlessEmpty = (members: Json): Json | undefined => (Object.keys(members).length > 0 ? members : undefined);

/** Other models than Claude reject `thinking`. */
function thinkingOf(request: TurnRequest, strict: boolean, maxTokens: number, dropped: string[]): Json | undefined {
  if (canBeClaude(request.model)) return encodeThinking(request, strict, maxTokens, dropped);
  if (request.body['thinking'] !== undefined && request.body['thinking'] !== null) dropped.push('thinking');
  return undefined;
}

/** Converse's temperatures go up to 1; Claude's models have their own rules. */
function samplingOf(request: TurnRequest, claude: ClaudeModel | null, thinks: boolean, dropped: string[]): Json {
  if (claude) return encodeSampling(request, claude, thinks, dropped);
  const { temperature, topP } = request;
  const cool = temperature === undefined || temperature <= 1;
  if (!cool) dropped.push('temperature');
  return { temperature: cool ? temperature : undefined, top_p: topP, top_k: asNumber(request.body['top_k']) };
}

function effortOf(
  { model, reasoningEffort: effort }: TurnRequest,
  claude: ClaudeModel | null,
  thinking: Json | undefined,
  dropped: string[],
): Json {
  if (effort === undefined) return {};
  if (isOpenAiModel(model)) return { reasoning_effort: effort };
  if (claude?.effort && effort !== 'none') {
    const adaptive = claude.adaptiveThinking && thinking === undefined ? { thinking: { type: 'adaptive' } } : {};
    return { ...adaptive, output_config: { effort: effort === 'minimal' ? 'low' : effort } };
  }
  if (!(claude && effort === 'none' && claude.withoutThinking === 'unsaid')) dropped.push('reasoning_effort');
  return {};
}

/**
 * Converse has no `none`. The tools are left out instead, unless the conversation has calls, whose tools must be
 * listed. The tools of calls in a conversation without tools are listed by their names only.
 */
function encodeTools(request: TurnRequest, dropped: string[]): Json | undefined {
  const { tools, toolChoice, messages, usesFunctions } = request;
  const called = new Set(
    messages.flatMap((message) => (message.role === 'assistant' ? message.toolCalls.map(({ name }) => name) : [])),
  );
  const choiceParam = usesFunctions ? 'function_call' : 'tool_choice';
  if (tools.length === 0) {
    if (toolChoice === 'required' || typeof toolChoice === 'object') dropped.push(choiceParam);
    if (called.size === 0) return undefined;
    return { tools: Array.from(called, (name) => ({ toolSpec: { name, inputSchema: { json: { type: 'object' } } } })) };
  }
  if (toolChoice === 'none' && called.size === 0) return undefined;
  if (toolChoice === 'none') dropped.push(choiceParam);
  const specs = tools.flatMap(({ name, description, parameters, strict, raw }) => [
    {
      toolSpec: {
        name,
        ...(description ? { description } : {}),
        inputSchema: { json: { type: 'object', ...(parameters ?? { properties: {} }) } },
        ...(strict ? { strict: true } : {}),
      },
    },
    ...cachePoint(raw),
  ]);
  const choice =
    toolChoice === 'auto'
      ? { auto: {} }
      : toolChoice === 'required'
        ? { any: {} }
        : typeof toolChoice === 'object'
          ? { tool: toolChoice }
          : undefined;
  return { tools: specs, ...(choice ? { toolChoice: choice } : {}) };
}

const tiers = new Set(['default', 'flex', 'priority', 'reserved']);

function serviceTierOf({ body }: TurnRequest, dropped: string[]): Json | undefined {
  const tier = asText(body['service_tier']);
  if (tier === undefined || tier === 'auto') return undefined;
  if (tiers.has(tier)) return { type: tier };
  dropped.push('service_tier');
  return undefined;
}

/** `outputConfig.textFormat` has the schema as text. Without a schema there is no JSON mode: an instruction asks for JSON. */
function encodeFormat({ responseFormat: format }: TurnRequest, claude: ClaudeModel | null) {
  if (format?.type !== 'json_schema' || format.schema === undefined) return undefined;
  if (claude && !claude.structuredOutput) {
    throw unsupported('response_format', 'this Claude model does not support JSON schemas. Use a newer one');
  }
  const { name, description, schema } = format;
  const jsonSchema = { name, ...(description ? { description } : {}), schema: JSON.stringify(schema) };
  return { type: 'json_schema', structure: { jsonSchema } };
}

import { GatewayError } from '#libs/kernel/errors.ts';
import { withJsonInWords } from '../chat/json-in-words.ts';
import { withBreakpoints } from '../messages/cache-breakpoints.ts';
import type { Call } from '../provider.ts';
import { findClaudeModel, type ClaudeModel } from './models.ts';
import { cacheMark, encodeMessages, encodeSystem } from './encode-messages.ts';
import { type Json, asNumber, asText, compact, toRecord } from '../turns/json-value.ts';
import { readTurns } from '../turns/read-turns.ts';
import { type TurnRequest, assertPlainAnswer, droppedParams, unsupported } from '../turns/turn-request.ts';

/** Anthropic's own parameters, which are sent unchanged, except that `thinking` and `service_tier` are checked. */
const native = ['top_k', 'cache_control', 'container', 'context_management', 'mcp_servers', 'inference_geo'] as const;

const taken = new Set([
  ...native,
  'max_tokens',
  'max_completion_tokens',
  'temperature',
  'top_p',
  'stop',
  'tools',
  'tool_choice',
  'functions',
  'function_call',
  'parallel_tool_calls',
  'response_format',
  'reasoning_effort',
  'thinking',
  'output_config',
  'service_tier',
  'user',
  'safety_identifier',
]);

/**
 * The body of a Messages request for Claude, wherever it runs, without `model` and `stream`, which each host takes
 * elsewhere. `dropped` lists the client's parameters that were left out. Throws invalid_request for a parameter without
 * an equivalent, and `unsupported_parameter` if dropping it would change the answer's shape.
 */
export function encodeClaudeBody(call: Call): { model: string; body: Record<string, unknown>; dropped: string[] } {
  const request = withJsonInWords(withBreakpoints(readTurns(call), call));
  assertPlainAnswer(request, 'Claude');
  const model = findClaudeModel(request.model);
  const dropped = [...request.hints, ...droppedParams(request.body, taken)];
  const maxTokens = request.maxTokens ?? model.outputTokensMax;
  const thinking = encodeThinking(request, call.strict, maxTokens, dropped);
  const { effort, adaptive } = encodeEffort(request, model, dropped);
  const stop = request.stop.filter((text) => text.trim() !== '');
  if (stop.length < request.stop.length) dropped.push('stop'); // The API refuses white space as a stop sequence.
  const tier = asText(request.body['service_tier']);
  if (tier !== undefined && tier !== 'auto' && tier !== 'default' && tier !== 'standard_only') {
    dropped.push('service_tier');
  }
  const outputConfig = compact({
    ...toRecord(request.body['output_config']),
    effort: effort ?? toRecord(request.body['output_config'])['effort'],
    format: encodeFormat(request, model) ?? toRecord(request.body['output_config'])['format'],
  });
  const userId = request.user ?? asText(request.body['safety_identifier']);
  const body = compact({
    max_tokens: maxTokens,
    system: encodeSystem(request),
    messages: encodeMessages(request, call, dropped),
    ...encodeTools(request, model, dropped),
    ...encodeSampling(request, model, thinking !== undefined && thinking['type'] !== 'disabled', dropped),
    stop_sequences: stop.length > 0 ? stop : undefined,
    thinking: thinking ?? adaptive,
    output_config: Object.keys(outputConfig).length > 0 ? outputConfig : undefined,
    metadata: userId === undefined ? undefined : { user_id: userId },
    service_tier: tier === 'standard_only' ? tier : undefined,
    ...Object.fromEntries(native.filter((name) => name !== 'top_k').map((name) => [name, given(request.body[name])])),
  });
  return { model: request.model, body, dropped };
}

const given = (value: unknown): unknown => (value === null ? undefined : value);

function encodeTools(request: TurnRequest, model: ClaudeModel, dropped: string[]): Json {
  const { tools, toolChoice, usesFunctions } = request;
  if (tools.length === 0) {
    if (toolChoice !== undefined && toolChoice !== 'none' && toolChoice !== 'auto') dropped.push('tool_choice');
    return {};
  }
  const encoded = tools.map((tool) => {
    if (tool.strict && !model.structuredOutput) dropped.push(`${tool.param}.function.strict`);
    return {
      name: tool.name,
      ...(tool.description === undefined ? {} : { description: tool.description }),
      input_schema: { type: 'object', ...(tool.parameters ?? { properties: {} }) },
      ...(tool.strict && model.structuredOutput ? { strict: true } : {}),
      ...cacheMark(toRecord(tool.raw['function'])),
      ...cacheMark(tool.raw),
    };
  });
  // The deprecated form has only one call per answer.
  const one = request.parallelToolCalls === false || usesFunctions;
  const type =
    toolChoice === undefined ? (one ? 'auto' : undefined) : typeof toolChoice === 'object' ? 'tool' : toolChoice;
  if (type === undefined) return { tools: encoded };
  const choice = {
    type: type === 'required' ? 'any' : type,
    ...(typeof toolChoice === 'object' ? { name: toolChoice.name } : {}),
    ...(one && type !== 'none' ? { disable_parallel_tool_use: true } : {}),
  };
  return { tools: encoded, tool_choice: choice };
}

/** Values that the model rejects are dropped and reported, never clamped. */
export function encodeSampling(request: TurnRequest, model: ClaudeModel, thinks: boolean, dropped: string[]): Json {
  const { temperature, topP } = request;
  const topK = asNumber(request.body['top_k']);
  const allowed = model.sampling !== 'none';
  // Anthropic's temperatures go up to 1, and thinking allows only 1.
  const warm = temperature !== undefined && allowed && temperature <= 1 && (!thinks || temperature === 1);
  const nucleus = topP !== undefined && allowed && !(model.sampling === 'one' && warm) && (!thinks || topP >= 0.95);
  const top = topK !== undefined && allowed && !thinks;
  if (temperature !== undefined && temperature !== 1 && !warm) dropped.push('temperature');
  if (topP !== undefined && topP !== 1 && !nucleus) dropped.push('top_p');
  if (topK !== undefined && !top) dropped.push('top_k');
  return {
    temperature: warm ? temperature : undefined,
    top_p: nucleus ? topP : undefined,
    top_k: top ? topK : undefined,
  };
}

/**
 * Claude's `thinking`, only if strict compliance is off, because OpenAI's clients cannot read such answers.
 * Throws invalid_request for a budget that is larger than `max_tokens`.
 */
export function encodeThinking(
  request: TurnRequest,
  strict: boolean,
  maxTokens: number,
  dropped: string[],
): Json | undefined {
  const { thinking } = request.body;
  if (thinking === undefined || thinking === null) return undefined;
  if (strict) {
    dropped.push('thinking');
    return undefined;
  }
  const asked = toRecord(thinking);
  const budget = asNumber(asked['budget_tokens']);
  if (budget !== undefined && budget >= maxTokens) {
    throw new GatewayError(
      'invalid_request',
      'invalid_value',
      `Invalid 'thinking.budget_tokens': expected fewer than the ${maxTokens} tokens of max_tokens, but got ${budget}.`,
      { param: 'thinking.budget_tokens' },
    );
  }
  return asked;
}

/** Anthropic has no `minimal`. Its own `max` is sent unchanged. */
const efforts: Readonly<Record<string, string>> = {
  minimal: 'low',
  low: 'low',
  medium: 'medium',
  high: 'high',
  xhigh: 'xhigh',
  max: 'max',
};

function encodeEffort(
  { reasoningEffort, toolChoice }: TurnRequest,
  model: ClaudeModel,
  dropped: string[],
): { effort?: string; adaptive?: Json } {
  if (reasoningEffort === undefined) return {};
  if (reasoningEffort === 'none') {
    if (model.withoutThinking === 'impossible') dropped.push('reasoning_effort');
    return model.withoutThinking === 'disabled' ? { adaptive: { type: 'disabled' } } : {};
  }
  const effort = Object.hasOwn(efforts, reasoningEffort) ? efforts[reasoningEffort] : undefined;
  if (!model.effort || effort === undefined) {
    dropped.push('reasoning_effort');
    return {};
  }
  // A forced tool call and thinking cannot be combined.
  const forced = toolChoice === 'required' || typeof toolChoice === 'object';
  return model.adaptiveThinking && !forced ? { effort, adaptive: { type: 'adaptive' } } : { effort };
}

/** There is no JSON mode without a schema, so JSON without one is requested by an instruction. */
function encodeFormat({ responseFormat }: TurnRequest, model: ClaudeModel): Json | undefined {
  if (responseFormat?.type !== 'json_schema' || responseFormat.schema === undefined) return undefined;
  if (!model.structuredOutput) {
    throw unsupported('response_format', 'this Claude model does not support JSON schemas. Use a newer one');
  }
  return { type: 'json_schema', schema: responseFormat.schema };
}

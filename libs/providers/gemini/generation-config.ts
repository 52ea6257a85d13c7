import { toGeminiSchema } from './schemas/schema.ts';
import { type Json, compact, toRecord } from '../turns/json-value.ts';
import { type TurnRequest, unsupported } from '../turns/turn-request.ts';

/** Gemini's own members of generationConfig, which are passed on in either spelling. */
const native = [
  'top_k',
  'response_modalities',
  'response_mime_type',
  'response_schema',
  'response_json_schema',
  'media_resolution',
  'speech_config',
  'image_config',
  'audio_timestamp',
  'enable_enhanced_civic_answers',
  'routing_config',
] as const;

/** The request parameters that this file reads. */
export const generationParams: readonly string[] = [
  ...bothSpellings(native),
  ...bothSpellings(['thinking_config', 'generation_config']),
  'temperature',
  'top_p',
  'max_tokens',
  'max_completion_tokens',
  'stop',
  'seed',
  'presence_penalty',
  'frequency_penalty',
  'top_logprobs',
  'response_format',
  'reasoning_effort',
  'thinking',
];

function camelCase(name: string): string {
  return name.replaceAll(/_([a-z])/g, (_match, letter: string) => letter.toUpperCase());
}

export function bothSpellings(names: readonly string[]): string[] {
  return names.flatMap((name) => [name, camelCase(name)]);
}

/** The members of the body that are given in either spelling, in Gemini's spelling. */
export function pickNative(body: Json, names: readonly string[]): Json {
  return compact(
    Object.fromEntries(
      names.map((name) => [camelCase(name), (body[name] ?? body[camelCase(name)] ?? undefined) as unknown]),
    ),
  );
}

/**
 * `generationConfig`; undefined if it would be empty. It starts from a native `generation_config`, which parameters with
 * OpenAI's names override. Throws `unsupported_parameter` for images or speech in strict mode.
 */
export function toGenerationConfig(request: TurnRequest, strict: boolean, dropped: string[]): Json | undefined {
  const { body } = request;
  const ground = toRecord(body['generation_config'] ?? body['generationConfig']);
  const config: Json = compact({
    ...ground,
    ...pickNative(body, native),
    temperature: request.temperature ?? ground['temperature'],
    topP: request.topP ?? ground['topP'],
    maxOutputTokens: request.maxTokens ?? ground['maxOutputTokens'],
    stopSequences: request.stop.length > 0 ? request.stop : ground['stopSequences'],
    candidateCount: request.n ?? ground['candidateCount'],
    seed: toSeed(request.seed, dropped) ?? ground['seed'],
    presencePenalty: request.presencePenalty ?? ground['presencePenalty'],
    frequencyPenalty: request.frequencyPenalty ?? ground['frequencyPenalty'],
    responseLogprobs: request.logprobs ? true : ground['responseLogprobs'],
    logprobs: request.logprobs && request.topLogprobs ? request.topLogprobs : ground['logprobs'],
    ...toResponseFormat(request, dropped),
    thinkingConfig: toThinkingConfig(request, strict, dropped) ?? ground['thinkingConfig'],
  });
  const { responseModalities: modalities } = config;
  if (strict && Array.isArray(modalities) && modalities.some((kind) => !/^text$/i.test(String(kind)))) {
    throw unsupported(
      'response_modalities',
      'the OpenAI format has no field for generated images or speech. Set strict_open_ai_compliance to false to get them as content_blocks',
    );
  }
  return Object.keys(config).length === 0 ? undefined : config;
}

/** Gemini's seed has 32 bits. A longer one is dropped, because shortening it would make it another seed. */
function toSeed(seed: number | undefined, dropped: string[]): number | undefined {
  if (seed === undefined || (Number.isInteger(seed) && Math.abs(seed) <= 0x7fffffff)) return seed;
  dropped.push('seed');
  return undefined;
}

function toResponseFormat({ responseFormat: format }: TurnRequest, dropped: string[]): Json {
  if (format === undefined || format.type === 'text') return {};
  if (format.type === 'json_object' || format.schema === undefined) return { responseMimeType: 'application/json' };
  const param = 'response_format.json_schema.schema';
  const { form, schema, lost } = toGeminiSchema(format.schema, param);
  dropped.push(...lost.map((keyword) => `${param}.${keyword}`));
  return {
    responseMimeType: 'application/json',
    [form === 'openapi' ? 'responseSchema' : 'responseJsonSchema']: schema,
  };
}

/** The token budgets that Google documents for OpenAI's efforts (ai.google.dev/gemini-api/docs/openai#thinking). */
const budgets: Readonly<Record<string, number>> = { none: 0, minimal: 1_024, low: 1_024, medium: 8_192, high: 24_576 };
const levels: Readonly<Record<string, string>> = { minimal: 'minimal', low: 'low', medium: 'medium', high: 'high' };
const proLevels: Readonly<Record<string, string>> = { ...levels, minimal: 'low' };
const firstProLevels: Readonly<Record<string, string>> = { ...proLevels, medium: 'high' };

/**
 * `thinkingConfig` from the first of these that is given: the native `thinking_config`, `thinking` (only if strict
 * compliance is off), `reasoning_effort`. Gemini 3 and later have levels, earlier models token budgets. Settings that a
 * model does not support are added to `dropped`.
 */
function toThinkingConfig(
  { body, model, reasoningEffort }: TurnRequest,
  strict: boolean,
  dropped: string[],
): Json | undefined {
  const native = toRecord(body['thinking_config'] ?? body['thinkingConfig']);
  const { type, budget_tokens: budget } = toRecord(body['thinking']);
  const isAdaptive = !strict && type === 'adaptive';
  const hasThinking = !strict && (isAdaptive || type === 'enabled' || type === 'disabled');
  if (type !== undefined && !hasThinking) dropped.push('thinking');
  const thinking = hasThinking ? fromThinking(type, budget) : {};
  const effort = hasThinking && !isAdaptive ? undefined : fromEffort(model, reasoningEffort, dropped);
  const config = { ...thinking, ...effort, ...native };
  return Object.keys(config).length === 0 ? undefined : config;
}

function fromThinking(type: string, budget: unknown): Json {
  if (type === 'disabled') return { thinkingBudget: 0 };
  return { includeThoughts: true, ...(typeof budget === 'number' ? { thinkingBudget: budget } : {}) };
}

function fromEffort(model: string, effort: string | undefined, dropped: string[]): Json | undefined {
  if (effort === undefined) return undefined;
  if (/gemini-2\.5/.test(model)) {
    const thinkingBudget = budgets[effort];
    // Pro models cannot turn thinking off.
    if (thinkingBudget !== undefined && !(effort === 'none' && model.includes('pro'))) return { thinkingBudget };
  } else if (!/gemini-(1|2\.0)/.test(model)) {
    const known = /gemini-3-pro/.test(model) ? firstProLevels : model.includes('pro') ? proLevels : levels;
    const thinkingLevel = known[effort];
    if (thinkingLevel !== undefined) return { thinkingLevel };
  }
  dropped.push('reasoning_effort');
  return undefined;
}

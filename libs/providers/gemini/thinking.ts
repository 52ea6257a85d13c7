import type { ChatRequest } from '../chat/chat-request.ts';
import { toRecord, type Json } from '../chat/json-value.ts';

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
export function toThinkingConfig(
  { body, model, reasoningEffort }: ChatRequest,
  strict: boolean,
  dropped: string[],
): Json | undefined {
  const native = toRecord(body['thinking_config'] ?? body['thinkingConfig']);
  const { type, budget_tokens: budget } = toRecord(body['thinking']);
  const hasThinking = !strict && (type === 'enabled' || type === 'disabled');
  if (type !== undefined && !hasThinking) dropped.push('thinking');
  const thinking = hasThinking ? fromThinking(type, budget) : {};
  const effort = hasThinking ? undefined : fromEffort(model, reasoningEffort, dropped);
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

import type { Usage } from '#libs/calls/call.ts';

/** A JSON object's members; nothing of anything else. */
export function asRecord(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

/** Usage as OpenAI writes it, of a body or of a chunk; null when there is none. Absurd counts count as 0. */
export function readUsage(usage: unknown): Usage | null {
  if (typeof usage !== 'object' || usage === null) return null;
  const {
    prompt_tokens: input,
    completion_tokens: output,
    prompt_tokens_details,
    completion_tokens_details,
  } = asRecord(usage);
  if (typeof input !== 'number' && typeof output !== 'number') return null;
  return {
    inputTokens: count(input),
    cachedTokens: count(asRecord(prompt_tokens_details)['cached_tokens']),
    outputTokens: count(output),
    reasoningTokens: count(asRecord(completion_tokens_details)['reasoning_tokens']),
  };
}

/** Usage by the names that the Responses, images and audio APIs use. */
export function readTokenUsage(usage: unknown): Usage | null {
  const { input_tokens, output_tokens, input_tokens_details, output_tokens_details } = asRecord(usage);
  return readUsage({
    prompt_tokens: input_tokens,
    completion_tokens: output_tokens,
    prompt_tokens_details: input_tokens_details,
    completion_tokens_details: output_tokens_details,
  });
}

/** Both together; what is not known counts as nothing. */
export function addUsage(one: Usage | null, other: Usage | null): Usage | null {
  if (one === null || other === null) return one ?? other;
  return {
    inputTokens: one.inputTokens + other.inputTokens,
    cachedTokens: one.cachedTokens + other.cachedTokens,
    outputTokens: one.outputTokens + other.outputTokens,
    reasoningTokens: one.reasoningTokens + other.reasoningTokens,
  };
}

function count(value: unknown): number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : 0;
}

/** The first choice's finish reason, of a body. */
export function readFinishReason(choices: unknown): string | null {
  const reason = Array.isArray(choices) ? asRecord(choices[0])['finish_reason'] : null;
  return typeof reason === 'string' ? reason : null;
}

import type { Usage } from '#libs/prices/usage.ts';
import { blockedPrompt, readGeminiDetails, readTokenCounts } from '../gemini/decode.ts';
import { type Json, asText, toRecords } from '../turns/json-value.ts';

/** The usage in an answer or a payload of generateContent (ai.google.dev/api/generate-content#UsageMetadata); null: none. */
export function readGenerateUsage(response: Json): Usage | null {
  const counts = readTokenCounts(response);
  if (counts === null) return null;
  const { promptTokens, completionTokens, cachedTokens = 0, reasoningTokens = 0 } = counts;
  return {
    inputTokens: promptTokens,
    cachedTokens,
    outputTokens: completionTokens,
    reasoningTokens,
    ...readGeminiDetails(response),
  };
}

/** The finish reason of the first candidate, or the reason why the prompt was blocked; null: it has not ended. */
export function readGenerateFinish(response: Json): string | null {
  const [first] = toRecords(response['candidates']);
  if (first !== undefined) return asText(first['finishReason']) ?? null;
  return blockedPrompt(response) === undefined ? null : 'BLOCKED';
}

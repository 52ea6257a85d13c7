import type { Usage } from '#libs/prices/usage.ts';
import { readClaudeDetails, readTokenCounts } from '../anthropic/decode.ts';
import { toRecord } from '../chat/json-value.ts';

/** The usage of an answer of Anthropic's Messages API (platform.claude.com/docs, "Messages"); null when there is none. */
export function readMessageUsage(usage: unknown): Usage | null {
  const counts = toRecord(usage);
  if (typeof counts['input_tokens'] !== 'number' && typeof counts['output_tokens'] !== 'number') return null;
  const { promptTokens, completionTokens, cachedTokens = 0 } = readTokenCounts(counts, true);
  return {
    inputTokens: promptTokens,
    cachedTokens,
    outputTokens: completionTokens,
    reasoningTokens: 0,
    ...readClaudeDetails(counts),
  };
}

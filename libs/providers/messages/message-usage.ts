import type { Usage } from '#libs/prices/usage.ts';
import { readClaudeDetails, readTokenCounts } from '../anthropic/decode.ts';
import { asCount, toRecord, type Json } from '../turns/json-value.ts';

/** What the usage of an answer is read from. A provider can send any other names, without end. */
const countNames = [
  'input_tokens',
  'cache_read_input_tokens',
  'cache_creation_input_tokens',
  'cache_creation',
  'output_tokens',
  'output_tokens_details',
  'server_tool_use',
  'service_tier',
] as const;

/** The counts of a stream so far: later events repeat only some of them, and can have null for the others. */
export function mergeCounts(counts: Json, more: unknown): Json {
  const found = toRecord(more);
  const known = countNames.filter((name) => found[name] !== null && found[name] !== undefined);
  return { ...counts, ...Object.fromEntries(known.map((name) => [name, found[name]])) };
}

/** The usage of an answer of Anthropic's Messages API (platform.claude.com/docs, "Messages"); null when there is none. */
export function readMessageUsage(usage: unknown): Usage | null {
  const counts = toRecord(usage);
  if (typeof counts['input_tokens'] !== 'number' && typeof counts['output_tokens'] !== 'number') return null;
  const { promptTokens, completionTokens, cachedTokens = 0 } = readTokenCounts(counts);
  // A translated message has zeros if the provider reported nothing.
  if (promptTokens === 0 && completionTokens === 0) return null;
  return {
    inputTokens: promptTokens,
    cachedTokens,
    outputTokens: completionTokens,
    reasoningTokens: asCount(toRecord(counts['output_tokens_details'])['thinking_tokens']),
    ...readClaudeDetails(counts),
  };
}

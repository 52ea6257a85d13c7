import {
  newCompletionId,
  toCompletion,
  type CalledTool,
  type FinishReason,
  type TokenCounts,
} from '../chat/chat-chunks.ts';
import { asCount, asText, toRecord, toRecords, type Json } from '../chat/json-value.ts';
import { usesFunctions } from '../chat/chat-request.ts';
import { readServiceTier, type UsageDetails } from '#libs/prices/usage.ts';
import type { Call } from '../provider.ts';

const finishReasons: Readonly<Record<string, FinishReason>> = {
  end_turn: 'stop',
  stop_sequence: 'stop',
  max_tokens: 'length',
  model_context_window_exceeded: 'length',
  tool_use: 'tool_calls',
  guardrail_intervened: 'content_filter',
  content_filtered: 'content_filter',
};

/** OpenAI's finish reason. A reason that Bedrock adds later counts as an ordinary end. */
export function toFinishReason(stopReason: unknown): FinishReason {
  const known = typeof stopReason === 'string' && Object.hasOwn(finishReasons, stopReason);
  return (known ? finishReasons[stopReason] : undefined) ?? 'stop';
}

/** Prompt tokens are the uncached ones, those written to the cache and those read from it. */
export function readTokenCounts(usage: Json, strict: boolean): TokenCounts {
  const cached = asCount(usage['cacheReadInputTokens']);
  const written = asCount(usage['cacheWriteInputTokens']);
  return {
    promptTokens: asCount(usage['inputTokens']) + written + cached,
    completionTokens: asCount(usage['outputTokens']),
    cachedTokens: cached,
    extra: strict ? undefined : { cache_read_input_tokens: cached, cache_creation_input_tokens: written },
  };
}

/**
 * Usage that OpenAI's format does not have: tokens written to the cache, and the class of service. Both are part of a
 * whole answer and of the `metadata` event of a stream. Latency-optimised inference has separate prices, so it is a
 * class of service, too.
 */
export function readConverseDetails({ usage, serviceTier, performanceConfig }: Json): UsageDetails | null {
  const cacheWriteTokens = asCount(toRecord(usage)['cacheWriteInputTokens']);
  const isOptimized = toRecord(performanceConfig)['latency'] === 'optimized';
  const tier = readServiceTier(isOptimized ? 'optimized' : toRecord(serviceTier)['type']);
  if (cacheWriteTokens === 0) return tier.serviceTier === undefined ? null : tier;
  return { cacheWriteTokens, ...tier };
}

/** Converts a whole Converse answer to a `chat.completion`. Anything else is returned unchanged, and the core rejects it. */
export function decodeConverse(body: unknown, call: Call): unknown {
  const answer = toRecord(body);
  const { content } = toRecord(toRecord(answer['output'])['message']);
  if (!Array.isArray(content)) return body;
  const blocks = toRecords(content);
  const toolCalls = blocks.flatMap((block): CalledTool[] => {
    if (block['toolUse'] === undefined) return [];
    const { toolUseId, name, input } = toRecord(block['toolUse']);
    return [{ id: asText(toolUseId) ?? '', name: asText(name) ?? '', arguments: JSON.stringify(input ?? {}) }];
  });
  const shown = call.strict ? [] : blocks.flatMap(shownBlock);
  return toCompletion(
    { id: newCompletionId(), model: asText(call.json()['model']) ?? '', usesFunctions: usesFunctions(call.json()) },
    [
      {
        text: blocks.map((block) => asText(block['text']) ?? '').join(''),
        toolCalls,
        finishReason: toFinishReason(answer['stopReason']),
        extra: shown.length > 0 ? { content_blocks: shown } : undefined,
      },
    ],
    readTokenCounts(toRecord(answer['usage']), call.strict),
  );
}

/** A block as part of `content_blocks` (CALL-5). Tool calls are returned as `tool_calls`. */
function shownBlock(block: Json): Json[] {
  const text = asText(block['text']);
  if (text !== undefined) return [{ type: 'text', text }];
  const reasoning = toRecord(block['reasoningContent']);
  if (reasoning['redactedContent'] !== undefined)
    return [{ type: 'redacted_thinking', data: reasoning['redactedContent'] }];
  const thought = toRecord(reasoning['reasoningText']);
  if (thought['text'] === undefined) return [];
  const signature = asText(thought['signature']);
  return [{ type: 'thinking', thinking: thought['text'], ...(signature === undefined ? {} : { signature }) }];
}

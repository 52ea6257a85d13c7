import { readServiceTier, type UsageDetails } from '#libs/prices/usage.ts';
import type { Call } from '../provider.ts';
import { newCompletionId } from '../chat/chat-chunks.ts';
import { signerOf } from './models.ts';
import type { AnswerBlock, AnswerHead, CalledTool, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, asCount, asText, toRecord, toRecords } from '../turns/json-value.ts';

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
export function readTokenCounts(usage: Json): TokenCounts {
  const cached = asCount(usage['cacheReadInputTokens']);
  const written = asCount(usage['cacheWriteInputTokens']);
  return {
    promptTokens: asCount(usage['inputTokens']) + written + cached,
    completionTokens: asCount(usage['outputTokens']),
    cachedTokens: cached,
    writtenTokens: written,
    extra: { cache_read_input_tokens: cached, cache_creation_input_tokens: written },
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

/** Converse has no IDs. */
export const headOf = ({ model }: Call): AnswerHead => ({ id: newCompletionId(), model, signer: signerOf(model) });

/** Converts a whole Converse answer to the client's format. Anything else is returned unchanged, and the core rejects it. */
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
  return call.dialect.encodeAnswer(
    headOf(call),
    [{ blocks: blocks.flatMap(readBlock), toolCalls, finishReason: toFinishReason(answer['stopReason']) }],
    readTokenCounts(toRecord(answer['usage'])),
    call,
  );
}

/** A block of text or reasoning (CALL-5). Tool calls are returned as calls. */
function readBlock(block: Json): AnswerBlock[] {
  const text = asText(block['text']);
  if (text !== undefined) return [{ type: 'text', text }];
  const reasoning = toRecord(block['reasoningContent']);
  const data = asText(reasoning['redactedContent']);
  if (data !== undefined) return [{ type: 'redacted_thinking', data }];
  const thought = toRecord(reasoning['reasoningText']);
  const thinking = asText(thought['text']);
  if (thinking === undefined) return [];
  const signature = asText(thought['signature']);
  return [{ type: 'thinking', thinking, ...(signature === undefined ? {} : { signature }) }];
}

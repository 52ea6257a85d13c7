import { readServiceTier, type UsageDetails } from '#libs/prices/usage.ts';
import type { Call } from '../provider.ts';
import type { AnswerBlock, AnswerHead, CalledTool, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, asCount, asText, toRecord, toRecords } from '../turns/json-value.ts';

const finishReasons: Readonly<Record<string, FinishReason>> = {
  end_turn: 'stop',
  stop_sequence: 'stop',
  pause_turn: 'stop',
  max_tokens: 'length',
  model_context_window_exceeded: 'length',
  tool_use: 'tool_calls',
  refusal: 'content_filter',
};

/** OpenAI's finish reason. A reason that Anthropic adds later counts as an ordinary end. */
export function toFinishReason(stopReason: unknown): FinishReason {
  const known = typeof stopReason === 'string' && Object.hasOwn(finishReasons, stopReason);
  return (known ? finishReasons[stopReason] : undefined) ?? 'stop';
}

/** The reason for Claude's refusal, if it gives one. */
export function readRefusal({ stop_details: details }: Json): string | null {
  const { type, explanation } = toRecord(details);
  return type === 'refusal' ? (asText(explanation) ?? null) : null;
}

/** Prompt tokens are the uncached ones, those written to the cache and those read from it. */
export function readTokenCounts(usage: Json): TokenCounts {
  const cached = asCount(usage['cache_read_input_tokens']);
  const written = asCount(usage['cache_creation_input_tokens']);
  return {
    promptTokens: asCount(usage['input_tokens']) + written + cached,
    completionTokens: asCount(usage['output_tokens']),
    cachedTokens: cached,
    writtenTokens: written,
    extra: { cache_read_input_tokens: cached, cache_creation_input_tokens: written },
  };
}

/**
 * Usage that OpenAI's format does not have: tokens written to the cache, searches, and the class of service, which
 * Claude reports as `standard`, `priority` or `batch`.
 */
export function readClaudeDetails(usage: Json): UsageDetails | null {
  const written = asCount(usage['cache_creation_input_tokens']);
  const searches = asCount(toRecord(usage['server_tool_use'])['web_search_requests']);
  const tier = readServiceTier(usage['service_tier']);
  if (written === 0 && searches === 0 && tier.serviceTier === undefined) return null;
  const cacheWriteHourTokens = asCount(toRecord(usage['cache_creation'])['ephemeral_1h_input_tokens']);
  return {
    ...(written === 0 ? {} : { cacheWriteTokens: written }),
    ...(cacheWriteHourTokens === 0 ? {} : { cacheWriteHourTokens }),
    ...(searches === 0 ? {} : { searches }),
    ...tier,
  };
}

/** Claude's signatures are accepted by Claude wherever it runs. */
export const claudeSigner = 'claude';

/** Id and model of a whole message or of the first event of a stream. */
export const headOf = (message: Json, call: Call, fallbackId: string): AnswerHead => ({
  id: asText(message['id']) ?? fallbackId,
  model: asText(message['model']) ?? call.model,
  signer: claudeSigner,
});

/** Converts a whole message of Claude to the client's format. Anything else is returned unchanged, and the core rejects it. */
export function decodeClaudeMessage(body: unknown, call: Call): unknown {
  const message = toRecord(body);
  if (!Array.isArray(message['content'])) return body;
  const blocks = toRecords(message['content']);
  const toolCalls = blocks.flatMap((block): CalledTool[] =>
    block['type'] === 'tool_use'
      ? [
          {
            id: asText(block['id']) ?? '',
            name: asText(block['name']) ?? '',
            arguments: JSON.stringify(block['input'] ?? {}),
          },
        ]
      : [],
  );
  return call.dialect.encodeAnswer(
    headOf(message, call, ''),
    [
      {
        blocks: blocks.filter(({ type }) => shownBlocks.has(type)) as unknown as AnswerBlock[],
        toolCalls,
        refusal: readRefusal(message),
        finishReason: toFinishReason(message['stop_reason']),
      },
    ],
    readTokenCounts(toRecord(message['usage'])),
    call,
  );
}

/** The blocks that have the form of an `AnswerBlock` (CALL-5). Tool calls are returned as calls. */
const shownBlocks = new Set<unknown>(['text', 'thinking', 'redacted_thinking']);

/** Anthropic's list of models in OpenAI's format. */
export function decodeModels(body: unknown): unknown {
  const { data } = toRecord(body);
  if (!Array.isArray(data)) return body;
  return {
    object: 'list',
    data: toRecords(data).map((model) => {
      const createdAt = Date.parse(asText(model['created_at']) ?? '');
      return {
        id: asText(model['id']) ?? '',
        object: 'model',
        created: Number.isNaN(createdAt) ? 0 : Math.floor(createdAt / 1_000),
        owned_by: 'anthropic',
      };
    }),
  };
}

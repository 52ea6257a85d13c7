import { toCompletion, type CalledTool, type FinishReason, type TokenCounts } from '../chat-chunks.ts';
import { usesFunctions } from '../chat-request.ts';
import { countOf, textOf, toRecord, toRecords, type Json } from '../json-value.ts';
import type { Call } from '../provider.ts';

const finishReasons: Readonly<Record<string, FinishReason>> = {
  end_turn: 'stop',
  stop_sequence: 'stop',
  pause_turn: 'stop',
  max_tokens: 'length',
  model_context_window_exceeded: 'length',
  tool_use: 'tool_calls',
  refusal: 'content_filter',
};

/** One of OpenAI's reasons; one that Anthropic adds later reads as an ordinary end. */
export function finishReasonOf(stopReason: unknown): FinishReason {
  const known = typeof stopReason === 'string' && Object.hasOwn(finishReasons, stopReason);
  return (known ? finishReasons[stopReason] : undefined) ?? 'stop';
}

/** Why Claude refused, as far as it says. */
export function refusalOf({ stop_details: details }: Json): string | null {
  const { type, explanation } = toRecord(details);
  return type === 'refusal' ? (textOf(explanation) ?? null) : null;
}

/** The prompt is what was read fresh, what was written into the cache and what was read from it. */
export function countsOf(usage: Json, strict: boolean): TokenCounts {
  const cached = countOf(usage['cache_read_input_tokens']);
  const written = countOf(usage['cache_creation_input_tokens']);
  return {
    promptTokens: countOf(usage['input_tokens']) + written + cached,
    completionTokens: countOf(usage['output_tokens']),
    cachedTokens: cached,
    extra: strict ? undefined : { cache_read_input_tokens: cached, cache_creation_input_tokens: written },
  };
}

/** A whole message of Claude to `chat.completion`; anything else is given back as it is, for the core to refuse. */
export function decodeClaudeMessage(body: unknown, call: Call): unknown {
  const message = toRecord(body);
  if (!Array.isArray(message['content'])) return body;
  const blocks = toRecords(message['content']);
  const toolCalls = blocks.flatMap((block): CalledTool[] =>
    block['type'] === 'tool_use'
      ? [
          {
            id: textOf(block['id']) ?? '',
            name: textOf(block['name']) ?? '',
            arguments: JSON.stringify(block['input'] ?? {}),
          },
        ]
      : [],
  );
  const text = blocks.map((block) => (block['type'] === 'text' ? (textOf(block['text']) ?? '') : '')).join('');
  const shown = call.strict ? [] : blocks.filter(({ type }) => shownBlocks.has(type));
  return toCompletion(
    {
      id: textOf(message['id']) ?? '',
      model: textOf(message['model']) ?? textOf(call.json()['model']) ?? '',
      usesFunctions: usesFunctions(call.json()),
    },
    [
      {
        text,
        toolCalls,
        refusal: refusalOf(message),
        finishReason: finishReasonOf(message['stop_reason']),
        extra: shown.length > 0 ? { content_blocks: shown } : undefined,
      },
    ],
    countsOf(toRecord(message['usage']), call.strict),
  );
}

/** What `content_blocks` may hold (CALL-5); tool calls have a place of their own. */
const shownBlocks = new Set<unknown>(['text', 'thinking', 'redacted_thinking']);

/** Anthropic's list of models in OpenAI's shape. */
export function decodeModels(body: unknown): unknown {
  const { data } = toRecord(body);
  if (!Array.isArray(data)) return body;
  return {
    object: 'list',
    data: toRecords(data).map((model) => {
      const createdAt = Date.parse(textOf(model['created_at']) ?? '');
      return {
        id: textOf(model['id']) ?? '',
        object: 'model',
        created: Number.isNaN(createdAt) ? 0 : Math.floor(createdAt / 1_000),
        owned_by: 'anthropic',
      };
    }),
  };
}

import {
  newCompletionId,
  toCompletion,
  type AnswerHead,
  type CalledTool,
  type FinishReason,
  type TokenCounts,
} from '../chat/chat-chunks.ts';
import { usesFunctions } from '../chat/chat-request.ts';
import { asCount, asText, toRecord, toRecords, type Json } from '../chat/json-value.ts';
import type { Call } from '../provider.ts';
import { toFailure, throwFailure } from './errors.ts';

const finishReasons: Readonly<Record<string, FinishReason>> = {
  COMPLETE: 'stop',
  STOP_SEQUENCE: 'stop',
  MAX_TOKENS: 'length',
  TOOL_CALL: 'tool_calls',
  ERROR_LIMIT: 'length',
  ERROR_TOXIC: 'content_filter',
};

/** OpenAI's finish reason. A reason that Cohere adds later counts as an ordinary end. Failures are handled before. */
export function toFinishReason(reason: unknown, hasToolCalls: boolean): FinishReason {
  const known = typeof reason === 'string' && Object.hasOwn(finishReasons, reason) ? finishReasons[reason] : undefined;
  return known === undefined || known === 'stop' ? (hasToolCalls ? 'tool_calls' : 'stop') : known;
}

/** The tokens that the model read and wrote, including cached ones. Billed tokens (an extension) are fewer. */
export function readTokenCounts(usage: Json, strict: boolean): TokenCounts {
  const billed = toRecord(usage['billed_units']);
  const tokens = usage['tokens'] === undefined || usage['tokens'] === null ? billed : toRecord(usage['tokens']);
  return {
    promptTokens: asCount(tokens['input_tokens']),
    completionTokens: asCount(tokens['output_tokens']),
    cachedTokens: usage['cached_tokens'] === undefined ? undefined : asCount(usage['cached_tokens']),
    extra: strict ? undefined : { billed_units: billed },
  };
}

export function headOf(id: unknown, call: Call): AnswerHead {
  const request = call.json();
  return {
    id: asText(id) || newCompletionId(),
    model: asText(request['model']) ?? '',
    usesFunctions: usesFunctions(request),
  };
}

/** For a tool without parameters, Cohere can send `null` or leave the arguments out. */
function argumentsOf(written: unknown): string {
  const text = asText(written)?.trim() ?? '';
  return text === '' || text === 'null' ? '{}' : text;
}

/**
 * Converts a whole answer of v2 chat to a `chat.completion`. Anything else is returned unchanged, and the core rejects it.
 * Throws provider_failed or provider_timeout for an answer that ended in a failure.
 */
export function decodeChat(body: unknown, call: Call): unknown {
  const answer = toRecord(body);
  if (answer['message'] === undefined || answer['finish_reason'] === undefined) return body;
  const failure = toFailure(answer['finish_reason'], undefined);
  if (failure) throwFailure(failure);
  const message = toRecord(answer['message']);
  const blocks =
    typeof message['content'] === 'string'
      ? [{ type: 'text', text: message['content'] }]
      : toRecords(message['content']);
  const toolCalls = toRecords(message['tool_calls']).map((called): CalledTool => {
    const { name, arguments: written } = toRecord(called['function']);
    return { id: asText(called['id']) ?? '', name: asText(name) ?? '', arguments: argumentsOf(written) };
  });
  return toCompletion(
    headOf(answer['id'], call),
    [
      {
        text: blocks.map((block: Json) => (block['type'] === 'text' ? (asText(block['text']) ?? '') : '')).join(''),
        toolCalls,
        finishReason: toFinishReason(answer['finish_reason'], toolCalls.length > 0),
        extra: call.strict ? undefined : extensionsOf(message, blocks),
      },
    ],
    answer['usage'] === undefined ? null : readTokenCounts(toRecord(answer['usage']), call.strict),
  );
}

/** Members that have no place in OpenAI's answers. */
function extensionsOf(message: Json, blocks: readonly Json[]): Json {
  const plan = asText(message['tool_plan']);
  const citations = toRecords(message['citations']);
  const shown = blocks.filter(({ type }) => type === 'text' || type === 'thinking');
  return {
    ...(shown.length > 0 ? { content_blocks: shown } : {}),
    ...(plan ? { tool_plan: plan } : {}),
    ...(citations.length > 0 ? { citations } : {}),
  };
}

/** Cohere's list of models in OpenAI's format; it has no creation times. */
export function decodeModels(body: unknown): unknown {
  const { models } = toRecord(body);
  if (!Array.isArray(models)) return body;
  return {
    object: 'list',
    data: toRecords(models).map((model) => ({
      id: asText(model['name']) ?? '',
      object: 'model',
      created: 0,
      owned_by: 'cohere',
    })),
  };
}

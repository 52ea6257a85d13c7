import type { Call } from '../provider.ts';
import { toFailure, throwFailure } from './errors.ts';
import { newCompletionId } from '../chat/chat-chunks.ts';
import type { AnswerBlock, AnswerHead, CalledTool, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, asCount, asText, toRecord, toRecords } from '../turns/json-value.ts';

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
export function readTokenCounts(usage: Json): TokenCounts {
  const billed = toRecord(usage['billed_units']);
  const tokens = usage['tokens'] === undefined || usage['tokens'] === null ? billed : toRecord(usage['tokens']);
  return {
    promptTokens: asCount(tokens['input_tokens']),
    completionTokens: asCount(tokens['output_tokens']),
    cachedTokens: usage['cached_tokens'] === undefined ? undefined : asCount(usage['cached_tokens']),
    extra: { billed_units: billed },
  };
}

/** Who wrote the reasoning of Cohere's models, which is not signed. */
export const cohereSigner = 'cohere';

export const headOf = (id: unknown, { model }: Call): AnswerHead => ({
  id: asText(id) || newCompletionId(),
  model,
  signer: cohereSigner,
});

/** For a tool without parameters, Cohere can send `null` or leave the arguments out. */
function argumentsOf(written: unknown): string {
  const text = asText(written)?.trim() ?? '';
  return text === '' || text === 'null' ? '{}' : text;
}

/**
 * Converts a whole answer of v2 chat to the client's format. Anything else is returned unchanged, and the core rejects it.
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
  return call.dialect.encodeAnswer(
    headOf(answer['id'], call),
    [
      {
        blocks: blocks.filter(({ type }) => type === 'text' || type === 'thinking') as unknown as AnswerBlock[],
        toolCalls,
        finishReason: toFinishReason(answer['finish_reason'], toolCalls.length > 0),
        extra: extensionsOf(message),
      },
    ],
    answer['usage'] === undefined ? null : readTokenCounts(toRecord(answer['usage'])),
    call,
  );
}

/** Members that have no place in OpenAI's answers. */
function extensionsOf(message: Json): Json {
  const plan = asText(message['tool_plan']);
  const citations = toRecords(message['citations']);
  return {
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

import { GatewayError } from '#libs/kernel/errors.ts';
import type { UsageDetails } from '#libs/prices/usage.ts';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import type { Call } from '../provider.ts';
import { createBlockPieces, joinBlocks, readParts, type ReadPart } from './parts.ts';
import { packCallId } from './thought-signature.ts';
import { newCompletionId } from '../chat/chat-chunks.ts';
import type { AnswerHead, CalledTool, Choice, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, asCount, asText, toRecord, toRecords } from '../turns/json-value.ts';

const filtered = new Set([
  'SAFETY',
  'RECITATION',
  'LANGUAGE',
  'BLOCKLIST',
  'PROHIBITED_CONTENT',
  'SPII',
  'IMAGE_SAFETY',
  'IMAGE_PROHIBITED_CONTENT',
  'IMAGE_RECITATION',
  'MODEL_ARMOR',
]);
/** Finish reasons of a confused model. A retry often succeeds. */
const failed = new Set([
  'OTHER',
  'MALFORMED_FUNCTION_CALL',
  'MALFORMED_RESPONSE',
  'UNEXPECTED_TOOL_CALL',
  'TOO_MANY_TOOL_CALLS',
  'MISSING_THOUGHT_SIGNATURE',
  'IMAGE_OTHER',
  'NO_IMAGE',
]);

/**
 * OpenAI's finish reason for Gemini's (which is STOP for calls too). Throws provider_failed if there is no content and the
 * reason is a failure of the model (like MALFORMED_FUNCTION_CALL): an empty answer would look like a success.
 */
export function toFinishReason(candidate: Json, said: { calls: boolean; content: boolean }): FinishReason {
  const reason = asText(candidate['finishReason']) ?? 'no finish reason';
  if (filtered.has(reason)) return 'content_filter';
  if (reason === 'MAX_TOKENS') return 'length';
  if (said.calls) return 'tool_calls';
  if (said.content || (isFinished(candidate) && !failed.has(reason))) return 'stop';
  const detail = asText(candidate['finishMessage']);
  throw unusable(`ended its answer with ${reason}${detail ? `: ${scrub(detail, [], 300)}` : ''}`);
}

export function isFinished({ finishReason }: Json): boolean {
  return typeof finishReason === 'string' && finishReason !== '' && finishReason !== 'FINISH_REASON_UNSPECIFIED';
}

/** A server error, so that retry policies apply. */
export const unusable = (what: string): GatewayError =>
  new GatewayError('provider_failed', 'upstream_invalid_response', `The provider ${what}.`);

/** Prompt tokens include those of Google's tools, completion tokens the thoughts. null: no usage was sent. */
export function readTokenCounts(response: Json): TokenCounts | null {
  const { usageMetadata } = response;
  if (usageMetadata === undefined || usageMetadata === null) return null;
  const usage = toRecord(usageMetadata);
  const reasoningTokens = asCount(usage['thoughtsTokenCount']);
  return {
    promptTokens: asCount(usage['promptTokenCount']) + asCount(usage['toolUsePromptTokenCount']),
    completionTokens: asCount(usage['candidatesTokenCount']) + reasoningTokens,
    cachedTokens: asCount(usage['cachedContentTokenCount']),
    reasoningTokens,
  };
}

/** Audio, images and searches, which have separate prices. */
export function readGeminiDetails(response: Json): UsageDetails | null {
  const usage = toRecord(response['usageMetadata']);
  const counted = {
    audioInputTokens: countOfModality(usage['promptTokensDetails'], 'AUDIO'),
    cachedAudioTokens: countOfModality(usage['cacheTokensDetails'], 'AUDIO'),
    audioOutputTokens: countOfModality(usage['candidatesTokensDetails'], 'AUDIO'),
    imageOutputTokens: countOfModality(usage['candidatesTokensDetails'], 'IMAGE'),
    searches: toRecords(response['candidates']).some(hasSearched) ? 1 : 0,
  };
  const found = Object.entries(counted).filter(([, count]) => count > 0);
  return found.length === 0 ? null : Object.fromEntries(found);
}

function countOfModality(details: unknown, modality: string): number {
  let sum = 0;
  for (const each of toRecords(details)) if (each['modality'] === modality) sum += asCount(each['tokenCount']);
  return sum;
}

/** A grounded answer is charged once, however many searches it took. */
function hasSearched(candidate: Json): boolean {
  const { webSearchQueries } = toRecord(candidate['groundingMetadata']);
  return Array.isArray(webSearchQueries) && webSearchQueries.length > 0;
}

/** Gemini's signatures are accepted by Gemini wherever it runs. */
export const geminiSigner = 'gemini';

/** Id, model and time of a whole answer or of a stream's first event. */
export function headOf(response: Json, call: Call): AnswerHead {
  const createdAt = Date.parse(asText(response['createTime']) ?? '');
  return {
    id: asText(response['responseId']) ?? newCompletionId(),
    model: asText(response['modelVersion']) ?? call.model,
    ...(Number.isNaN(createdAt) ? {} : { created: Math.floor(createdAt / 1_000) }),
    signer: geminiSigner,
  };
}

/** The reason why the prompt was blocked, if there is no candidate; undefined if it was not blocked. */
export function blockedPrompt(response: Json): { refusal: string | null } | undefined {
  const { blockReason, blockReasonMessage } = toRecord(response['promptFeedback']);
  if (typeof blockReason !== 'string' || toRecords(response['candidates']).length > 0) return undefined;
  return { refusal: asText(blockReasonMessage) ?? null };
}

/** A call with the ID that the client sends back. `position` is its number among the choice's calls. */
export function toCalledTool(
  part: Extract<ReadPart, { kind: 'call' }>,
  { responseId, choice, position }: { responseId: string; choice: number; position: number },
): CalledTool {
  const { id: ownId, name, args, signature } = part;
  // Made from the answer's own id, so that the same answer always gives the same call ids.
  const fallbackId = `call_${responseId.replaceAll(/[^A-Za-z0-9_-]/g, '')}_${choice}_${position}`;
  return {
    id: packCallId({ ownId, signature }, fallbackId),
    name,
    arguments: JSON.stringify(args ?? {}),
    ...(signature === undefined ? {} : { extra: { thought_signature: signature } }),
  };
}

/** Gemini's log probabilities in OpenAI's format; null if there are none. */
export function toLogprobs(candidate: Json): { content: Json[] } | null {
  const { chosenCandidates, topCandidates } = toRecord(candidate['logprobsResult']);
  const chosen = toRecords(chosenCandidates);
  if (chosen.length === 0) return null;
  const tops = toRecords(topCandidates);
  return {
    content: chosen.map((token, position) => ({
      ...toTokenLogprob(token),
      top_logprobs: toRecords(tops[position]?.['candidates']).map(toTokenLogprob),
    })),
  };
}

function toTokenLogprob({ token, logProbability }: Json): Json {
  const text = asText(token) ?? '';
  return {
    token: text,
    logprob: typeof logProbability === 'number' ? logProbability : 0,
    bytes: [...Buffer.from(text)],
  };
}

/**
 * Converts a whole generateContent answer to the client's format. Throws provider_failed for one without a candidate,
 * unless the prompt was blocked, and like `toFinishReason`.
 */
export function decodeGeminiChat(body: unknown, call: Call): unknown {
  const response = toRecord(body);
  const head = headOf(response, call);
  const blocked = blockedPrompt(response);
  if (blocked) {
    return call.dialect.encodeAnswer(
      head,
      [{ blocks: [], toolCalls: [], finishReason: 'content_filter', ...blocked }],
      readTokenCounts(response),
      call,
    );
  }
  const candidates = toRecords(response['candidates']);
  if (candidates.length === 0) throw unusable('returned no candidates');
  const ordered = candidates.toSorted((a, b) => asCount(a['index']) - asCount(b['index']));
  const choices = ordered.map((candidate, index) => toChoice(candidate, index, head.id));
  return call.dialect.encodeAnswer(head, choices, readTokenCounts(response), call);
}

function toChoice(candidate: Json, choice: number, responseId: string): Choice {
  const parts = readParts(candidate);
  const called = parts.filter((part) => part.kind === 'call');
  const toolCalls = called.map((part, position) => toCalledTool(part, { responseId, choice, position }));
  const hasContent = parts.some((part) => part.kind === 'image' || (part.kind === 'text' && part.text !== ''));
  return {
    blocks: joinBlocks(parts.flatMap(createBlockPieces())),
    toolCalls,
    finishReason: toFinishReason(candidate, { calls: toolCalls.length > 0, content: hasContent }),
    logprobs: toLogprobs(candidate),
  };
}

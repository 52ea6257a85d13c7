import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import { unpackCallId } from '../gemini/thought-signature.ts';
import { geminiSigner } from '../gemini/decode.ts';
import type { AnswerBlock, AnswerHead, CalledTool, Choice, FinishReason, TokenCounts } from '../turns/answer.ts';
import { type Json, asNumber, asText, compact, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { readMedia } from '../turns/media.ts';
import { writeHidden, writePartSignature } from './part-signature.ts';

/** Google's finish reasons (ai.google.dev/api/generate-content#FinishReason). None of them means tool calls. */
const finishReasons: Readonly<Record<FinishReason, string>> = {
  stop: 'STOP',
  length: 'MAX_TOKENS',
  tool_calls: 'STOP',
  content_filter: 'SAFETY',
};

/** The members that a whole answer and each payload of a stream have. */
export const encodeHead = ({ id, model, created }: AnswerHead): Json =>
  compact({
    modelVersion: model,
    responseId: id,
    createTime: created === undefined ? undefined : new Date(created * 1_000).toISOString(),
  });

/** A body of generateContent's answer. */
export const encodeGenerateAnswer = (
  head: AnswerHead,
  choices: readonly Choice[],
  usage: TokenCounts | null,
  _call: Call,
): Json => ({
  candidates: choices.map((choice, index) => encodeCandidate(choice, index, head.signer)),
  ...(usage === null ? {} : { usageMetadata: encodeUsage(usage) }),
  ...encodeHead(head),
});

function encodeCandidate(
  { blocks, toolCalls, finishReason, refusal, logprobs }: Choice,
  index: number,
  signer: string | undefined,
): Json {
  const calls = toolCalls.flatMap((call) => encodeCall(call, finishReason));
  return {
    content: { parts: [...blocks.flatMap((block) => encodeBlock(block, signer)), ...calls], role: 'model' },
    ...encodeFinish(finishReason, refusal ?? '', logprobs),
    index,
  };
}

/** Why an answer ended. A refusal counts as an answer that a filter stopped. */
export function encodeFinish(reason: FinishReason, refusal: string, logprobs?: unknown): Json {
  return {
    finishReason: refusal === '' ? finishReasons[reason] : finishReasons.content_filter,
    ...(refusal === '' ? {} : { finishMessage: refusal }),
    ...encodeLogprobs(logprobs),
  };
}

export function encodeUsage({ promptTokens, completionTokens, cachedTokens, reasoningTokens = 0 }: TokenCounts): Json {
  return compact({
    promptTokenCount: promptTokens,
    candidatesTokenCount: Math.max(0, completionTokens - reasoningTokens),
    totalTokenCount: promptTokens + completionTokens,
    cachedContentTokenCount: cachedTokens || undefined,
    thoughtsTokenCount: reasoningTokens || undefined,
  });
}

function encodeBlock(block: AnswerBlock, signer: string | undefined): Json[] {
  switch (block.type) {
    case 'text': {
      const { text, signature } = block;
      if (text === '' && signature === undefined) return [];
      return [
        { text, ...(signature === undefined ? {} : { thoughtSignature: writePartSignature(signer, signature) }) },
      ];
    }
    case 'thinking':
      return [encodeThought(block.thinking, signer, block.signature)];
    case 'redacted_thinking':
      return [{ text: '', thought: true, thoughtSignature: writeHidden(signer, block.data) }];
    case 'image_url':
      return [encodeImage(block.image_url.url, signer, block.signature)];
  }
}

/** Reasoning of other providers always names its author, even if it has no signature. */
export function encodeThought(thinking: string, signer: string | undefined, signature: string | undefined): Json {
  const isNamed = signature !== undefined || (signer !== undefined && signer !== geminiSigner);
  return {
    text: thinking,
    thought: true,
    ...(isNamed ? { thoughtSignature: writePartSignature(signer, signature ?? '') } : {}),
  };
}

export function encodeImage(url: string, signer: string | undefined, signature: string | undefined): Json {
  const media = readMedia(url, 'image');
  const signed = signature === undefined ? {} : { thoughtSignature: writePartSignature(signer, signature) };
  return media.kind === 'bytes'
    ? { inlineData: { mimeType: media.mediaType, data: media.base64 }, ...signed }
    : { fileData: { fileUri: url }, ...signed };
}

/**
 * A call as one part; none for a call that was cut off. Throws provider_failed if the arguments of a finished call are not
 * a JSON object.
 */
export function encodeCall({ id, name, arguments: written, extra }: CalledTool, reason: FinishReason): Json[] {
  const args = written.trim() === '' ? {} : parseJson(written);
  if (typeof args !== 'object' || args === null || Array.isArray(args)) {
    if (reason === 'length' || reason === 'content_filter') return [];
    const problem = `The provider called a tool with arguments that are not a JSON object.`;
    throw new GatewayError('provider_failed', 'upstream_invalid_response', problem);
  }
  const signature = asText(extra?.['thought_signature']);
  // With a signature, the ID of a call of Gemini is the carrier of it.
  const ownId = signature === undefined ? id : unpackCallId(id).ownId;
  return [
    {
      functionCall: { ...(ownId ? { id: ownId } : {}), name, args },
      ...(signature === undefined ? {} : { thoughtSignature: signature }),
    },
  ];
}

/** OpenAI's log probabilities in Google's form (ai.google.dev/api/generate-content#LogprobsResult). */
function encodeLogprobs(logprobs: unknown): Json {
  const tokens = toRecords(toRecord(logprobs)['content']);
  if (tokens.length === 0) return {};
  const encode = ({ token, logprob }: Json): Json => ({ token, logProbability: logprob });
  const sum = tokens.reduce((total, { logprob }) => total + (asNumber(logprob) ?? 0), 0);
  return {
    avgLogprobs: sum / tokens.length,
    logprobsResult: {
      chosenCandidates: tokens.map(encode),
      topCandidates: tokens.map((token) => ({ candidates: toRecords(token['top_logprobs']).map(encode) })),
    },
  };
}

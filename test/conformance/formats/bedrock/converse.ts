import {
  generate,
  onlyGeneration,
  type Answer,
  type Behaviour,
  type FinishReason,
  type Generation,
  type GenerateRequest,
} from '#apps/simulator/model/generate.ts';
import { hexOf, mixHash } from '#apps/simulator/model/hash.ts';
import { piecesOf } from '#apps/simulator/model/pieces.ts';
import { splitTokens } from '#apps/simulator/model/tokens.ts';
import { signatureOf } from '#apps/simulator/wire/anthropic/turns.ts';
import type { Call, Received } from '#apps/simulator/wire/wire-format.ts';
import { decodeConverse } from './decode-converse.ts';
import { eventFrame } from './event-stream.ts';

/** POST /model/{id}/converse and /converse-stream. */
export function converseCall(received: Received, model: string, stream: boolean): Call {
  const ask = decodeConverse(received, model);
  return {
    model,
    hash: ask.hash,
    user: undefined,
    stream,
    body: (behaviour) => JSON.stringify(toCachedAnswer(ask, behaviour)),
    frames: (behaviour) => answerFrames(ask, behaviour),
  };
}

function toCachedAnswer(ask: GenerateRequest, behaviour: Behaviour) {
  const answer = generate(ask, behaviour);
  const generation = onlyGeneration(answer);
  const { input, tokens } = usageOf(answer);
  const usage = {
    ...tokens,
    cacheReadInputTokenCount: input.read,
    cacheReadInputTokens: input.read,
    cacheWriteInputTokenCount: input.written,
    cacheWriteInputTokens: input.written,
    serverToolUsage: {},
  };
  return {
    metrics: { latencyMs: 1 },
    output: { message: { content: contentOf(generation, ask), role: 'assistant' } },
    stopReason: stopReasons[generation.finish],
    ...(behaviour.omitUsage === true ? {} : { usage }),
  };
}

type AnswerBlock =
  | { reasoningContent: { reasoningText: { signature: string; text: string } } }
  | { text: string }
  | { toolUse: { toolUseId: string; name: string; input: unknown } };

function contentOf({ text, toolCalls, thought }: Generation, ask: GenerateRequest): AnswerBlock[] {
  const content: AnswerBlock[] = [];
  if (thought !== undefined) {
    content.push({ reasoningContent: { reasoningText: { signature: signatureOf(thought.text), text: thought.text } } });
  }
  if (text !== null && text !== '') content.push({ text });
  for (const [index, { name, input }] of toolCalls.entries()) {
    const toolUseId = `tooluse_${hexOf(mixHash(ask.hash, index), 22)}`;
    content.push({ toolUse: { toolUseId, name, input: JSON.parse(input) as unknown } });
  }
  return content;
}

// Padding, which the service adds so that texts cannot be guessed from packet sizes.
const padding = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789';

function* answerFrames(ask: GenerateRequest, behaviour: Behaviour): Generator<Uint8Array> {
  const answer = generate(ask, behaviour);
  const generation = onlyGeneration(answer);
  let count = 0;
  const event = (type: string, payload: object): Uint8Array =>
    eventFrame(type, { ...payload, p: padding.slice(0, 2 + (count++ % 37)) });
  yield event('messageStart', { role: 'assistant' });
  for (const [contentBlockIndex, block] of contentOf(generation, ask).entries()) {
    const delta = (delta: object): Uint8Array => event('contentBlockDelta', { contentBlockIndex, delta });
    if ('toolUse' in block) {
      const { toolUseId, name, input } = block.toolUse;
      yield event('contentBlockStart', { contentBlockIndex, start: { toolUse: { toolUseId, name } } });
      for (const piece of splitTokens(JSON.stringify(input))) yield delta({ toolUse: { input: piece } });
    } else if ('text' in block) {
      for (const { piece } of piecesOf(block.text, behaviour.inOnePiece)) yield delta({ text: piece });
    } else {
      const { text, signature } = block.reasoningContent.reasoningText;
      for (const { piece } of piecesOf(text, false)) yield delta({ reasoningContent: { text: piece } });
      yield delta({ reasoningContent: { signature } });
    }
    yield event('contentBlockStop', { contentBlockIndex });
  }
  const additionalModelResponseFields = { delta: { stop_sequence: null } };
  yield event('messageStop', { additionalModelResponseFields, stopReason: stopReasons[generation.finish] });
  const { input, tokens } = usageOf(answer);
  const cached = input.read === 0 ? {} : { cacheReadInputTokens: input.read, cacheWriteInputTokens: input.written };
  const usage = behaviour.omitUsage === true ? {} : { usage: { ...tokens, ...cached, serverToolUsage: {} } };
  yield event('metadata', { metrics: { latencyMs: 1 }, ...usage });
}

const stopReasons: Record<FinishReason, string> = {
  stop: 'end_turn',
  length: 'max_tokens',
  tool_calls: 'tool_use',
  content_filter: 'content_filtered',
  refusal: 'guardrail_intervened',
};

/** `inputTokens` excludes tokens that were read from the cache or written to it; the total includes them. */
function usageOf({ promptTokens, cachedTokens, completionTokens }: Answer) {
  const written = cachedTokens > 0 ? Math.floor((promptTokens - cachedTokens) / 2) : 0;
  const inputTokens = promptTokens - cachedTokens - written;
  return {
    input: { read: cachedTokens, written },
    tokens: { inputTokens, outputTokens: completionTokens, totalTokens: promptTokens + completionTokens },
  };
}

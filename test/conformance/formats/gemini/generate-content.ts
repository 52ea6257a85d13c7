import {
  generate,
  type Answer,
  type Behaviour,
  type FinishReason,
  type Generation,
} from '#apps/simulator/model/generate.ts';
import { hashText, hexOf } from '#apps/simulator/model/hash.ts';
import { rateToken } from '#apps/simulator/model/log-probabilities.ts';
import { piecesOf } from '#apps/simulator/model/pieces.ts';
import { countTokens, splitTokens } from '#apps/simulator/model/tokens.ts';
import { createdAt, takeTurns } from '#apps/simulator/wire/openai/shapes.ts';
import type { Call, Received } from '#apps/simulator/wire/wire-format.ts';
import { decodeGenerate, type Asked, type Flavour } from './decode-generate.ts';
import { arrayForm, googleJson, sseFrame } from './streams.ts';

type Part = {
  text?: string;
  thought?: true;
  functionCall?: { name: string; args: unknown };
  thoughtSignature?: string;
};

/** POST …:generateContent and :streamGenerateContent, the latter as events (`alt=sse`) or as one JSON list. */
export function generateCall(received: Received, model: string, flavour: Flavour, stream: boolean): Call {
  const asked = decodeGenerate(received, model, flavour);
  const asEvents = new URLSearchParams(received.query).get('alt') === 'sse';
  const payloads = (behaviour: Behaviour) => answerPayloads(asked, behaviour);
  return {
    model,
    hash: asked.ask.hash,
    user: undefined,
    stream,
    contentType: googleJson,
    body: (behaviour) => JSON.stringify(toCachedAnswer(asked, behaviour)),
    frames: (behaviour) => (asEvents ? eventFrames(payloads(behaviour)) : listFrames(payloads(behaviour))),
    ...(asEvents ? {} : { form: arrayForm }),
  };
}

function* eventFrames(payloads: Iterable<object>): Generator<string> {
  for (const payload of payloads) yield sseFrame(payload);
}

function* listFrames(payloads: Iterable<object>): Generator<string> {
  let before = '[';
  for (const payload of payloads) {
    yield `${before}${JSON.stringify(payload)}`;
    before = ',\r\n';
  }
  yield ']';
}

function toCachedAnswer(asked: Asked, behaviour: Behaviour) {
  const answer = generate(asked.ask, behaviour);
  if (isBlocked(answer)) return blockedAnswer(asked, answer, behaviour);
  const candidates = answer.generations.map((generation, index) => {
    const parts = partsOf(generation, asked);
    const message = generation.toolCalls.length === 0 ? {} : { finishMessage: 'Model generated function call(s).' };
    const finishReason = finishReasons[generation.finish];
    return {
      content: { parts, role: 'model' },
      finishReason,
      index,
      ...message,
      ...ratings(generation),
      ...logprobsOf(generation.text, 0, asked),
    };
  });
  return {
    candidates,
    ...usageMember(asked, answer, answer.completionTokens - answer.reasoningTokens, behaviour),
    ...tailOf(asked, behaviour),
  };
}

/** Each payload is a complete object with a piece of the answer; usage is cumulative. */
function* answerPayloads(asked: Asked, behaviour: Behaviour): Generator<object> {
  const answer = generate(asked.ask, behaviour);
  if (isBlocked(answer)) {
    yield blockedAnswer(asked, answer, behaviour);
    return;
  }
  const tail = tailOf(asked, behaviour);
  let tokens = 0;
  const turns = answer.generations.map((generation, index) => candidatePieces(generation, index, asked, behaviour));
  for (const { candidate, tokens: added } of takeTurns(turns)) {
    tokens += added;
    yield { candidates: [candidate], ...usageMember(asked, answer, tokens, behaviour), ...tail };
  }
}

type Piece = { candidate: object; tokens: number };

function* candidatePieces(generation: Generation, index: number, asked: Asked, behaviour: Behaviour): Generator<Piece> {
  const { text, toolCalls, thought, finish } = generation;
  const piece = (part: Part, tokens: number, more: object = {}): Piece => ({
    candidate: { content: { parts: [part], role: 'model' }, ...more, index },
    tokens,
  });
  if (thought !== undefined && asked.showThoughts) {
    for (const { piece: said } of piecesOf(thought.text, false)) yield piece({ text: said, thought: true }, 0);
  }
  let position = 0;
  if (text !== null) {
    for (const { piece: said } of piecesOf(text, behaviour.inOnePiece)) {
      yield piece({ text: said }, countTokens(said), logprobsOf(said, position++, asked));
    }
  }
  const calls = callParts(generation, asked);
  // Calls are complete, and all of them are in one payload.
  if (calls.length > 0) {
    const tokens = toolCalls.reduce((sum, { name, input }) => sum + countTokens(name) + countTokens(input), 0);
    yield { candidate: { content: { parts: calls, role: 'model' }, index }, tokens };
  }
  const signature = asked.signs && calls.length === 0 ? { thoughtSignature: textSignature(asked) } : {};
  yield piece({ text: '', ...signature }, 0, { finishReason: finishReasons[finish], ...ratings(generation) });
}

function partsOf(generation: Generation, asked: Asked): Part[] {
  const { text, thought, toolCalls } = generation;
  const parts: Part[] = [];
  if (thought !== undefined && asked.showThoughts) parts.push({ text: thought.text, thought: true });
  if (text !== null) {
    parts.push({ text, ...(asked.signs && toolCalls.length === 0 ? { thoughtSignature: textSignature(asked) } : {}) });
  }
  return [...parts, ...callParts(generation, asked)];
}

/** Only the first of several parallel calls is signed. */
function callParts({ toolCalls }: Generation, { signs }: Asked): Part[] {
  return toolCalls.map(({ name, input }, index) => {
    const args = JSON.parse(input) as unknown;
    const signature = signs && index === 0 ? { thoughtSignature: callSignature(name, args) } : {};
    return { functionCall: { name, args }, ...signature };
  });
}

/**
 * The signature of a call. It is derived from the call, so that a signature on another call is detected.
 * @testOnly
 */
export function callSignature(name: string, args: unknown): string {
  return Buffer.from(`simulator:${hexOf(hashText(`${name}\n${JSON.stringify(args)}`), 60)}`).toString('base64');
}

function textSignature({ ask }: Asked): string {
  return Buffer.from(`simulator:${hexOf(ask.hash, 60)}`).toString('base64');
}

function isBlocked({ generations }: Answer): boolean {
  return generations[0]?.finish === 'refusal';
}

function blockedAnswer(asked: Asked, { promptTokens }: Answer, behaviour: Behaviour) {
  const usage = {
    promptTokenCount: promptTokens,
    totalTokenCount: promptTokens,
    promptTokensDetails: textTokens(promptTokens),
  };
  const usageMetadata = behaviour.omitUsage === true ? {} : { usageMetadata: usage };
  return { promptFeedback: { blockReason: 'PROHIBITED_CONTENT' }, ...usageMetadata, ...tailOf(asked, behaviour) };
}

function ratings({ finish }: Generation) {
  if (finish !== 'content_filter') return {};
  return { safetyRatings: [{ category: 'HARM_CATEGORY_DANGEROUS_CONTENT', probability: 'HIGH', blocked: true }] };
}

const finishReasons: Record<FinishReason, string> = {
  stop: 'STOP',
  length: 'MAX_TOKENS',
  tool_calls: 'STOP',
  content_filter: 'SAFETY',
  refusal: 'PROHIBITED_CONTENT',
};

function usageMember({ flavour }: Asked, answer: Answer, candidatesTokenCount: number, behaviour: Behaviour) {
  if (behaviour.omitUsage === true) return {};
  const { promptTokens, cachedTokens, reasoningTokens } = answer;
  const cached = { cachedContentTokenCount: cachedTokens, cacheTokensDetails: textTokens(cachedTokens) };
  const usageMetadata = {
    promptTokenCount: promptTokens,
    candidatesTokenCount,
    totalTokenCount: promptTokens + candidatesTokenCount + reasoningTokens,
    ...(cachedTokens === 0 ? {} : cached),
    ...(flavour === 'vertex' ? { trafficType: 'ON_DEMAND' } : {}),
    promptTokensDetails: textTokens(promptTokens),
    ...(reasoningTokens === 0 ? {} : { thoughtsTokenCount: reasoningTokens }),
  };
  return { usageMetadata };
}

function textTokens(tokenCount: number) {
  return [{ modality: 'TEXT', tokenCount }];
}

function tailOf({ ask, model, flavour }: Asked, behaviour: Behaviour) {
  const createTime = new Date(createdAt(ask.hash) * 1_000).toISOString();
  return {
    modelVersion: behaviour.answersAs ?? model,
    ...(flavour === 'vertex' ? { createTime } : {}),
    responseId: Buffer.from(hexOf(ask.hash, 32), 'hex').toString('base64url'),
  };
}

function logprobsOf(text: string | null, position: number, { logprobs }: Asked) {
  if (logprobs === undefined || text === null) return {};
  const rated = splitTokens(text).map((token, index) => rateToken(token, position + index, logprobs));
  const item = ({ token, logprob }: { token: string; logprob: number }) => ({
    token,
    tokenId: hashText(token) % 250_000,
    logProbability: logprob,
  });
  const average = rated.reduce((sum, { logprob }) => sum + logprob, 0) / Math.max(1, rated.length);
  const topCandidates = rated.map(({ alternatives }) => ({ candidates: alternatives.map(item) }));
  return { avgLogprobs: average, logprobsResult: { topCandidates, chosenCandidates: rated.map(item) } };
}

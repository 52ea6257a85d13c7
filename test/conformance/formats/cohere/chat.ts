import {
  generate,
  onlyGeneration,
  type Answer,
  type Behaviour,
  type FinishReason,
  type Generation,
} from '#apps/simulator/model/generate.ts';
import { hashText, hexOf, mixHash } from '#apps/simulator/model/hash.ts';
import { rateToken } from '#apps/simulator/model/log-probabilities.ts';
import { piecesOf } from '#apps/simulator/model/pieces.ts';
import { splitTokens } from '#apps/simulator/model/tokens.ts';
import type { Call, Received } from '#apps/simulator/wire/wire-format.ts';
import { decodeChat, type Asked } from './decode-chat.ts';

/** POST /v2/chat. */
export function chatCall(received: Received): Call {
  const asked = decodeChat(received);
  return {
    model: asked.model,
    hash: asked.ask.hash,
    user: undefined,
    stream: asked.stream,
    body: (behaviour) => JSON.stringify(toCachedAnswer(asked, behaviour)),
    frames: (behaviour) => answerFrames(asked, behaviour),
  };
}

/** One event: its name and its data, whose type repeats the name. */
export function eventFrame(data: { type: string; [member: string]: unknown }): string {
  return `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** An id in the form of a UUID, derived from the hash. */
export function uuidOf(hash: number): string {
  const hex = hexOf(hash, 32);
  return [hex.slice(0, 8), hex.slice(8, 12), `4${hex.slice(13, 16)}`, `8${hex.slice(17, 20)}`, hex.slice(20)].join('-');
}

function toCachedAnswer(asked: Asked, behaviour: Behaviour) {
  const answer = generate(asked.ask, behaviour);
  const generation = onlyGeneration(answer);
  const { text, thought, toolCalls } = generation;
  const content = [
    ...(thought === undefined ? [] : [{ type: 'thinking', thinking: thought.text }]),
    ...(text === null || toolCalls.length > 0 ? [] : [{ type: 'text', text }]),
  ];
  const message = {
    role: 'assistant',
    ...(content.length === 0 ? {} : { content }),
    ...(toolCalls.length === 0 ? {} : { tool_plan: planOf(generation), tool_calls: callsOf(generation, asked) }),
  };
  return {
    id: uuidOf(asked.ask.hash),
    message,
    finish_reason: finishReasons[generation.finish],
    ...(behaviour.omitUsage === true ? {} : { usage: usageOf(answer) }),
    ...(asked.logprobs ? { logprobs: logprobsOf(text ?? '', 0) } : {}),
  };
}

function* answerFrames(asked: Asked, behaviour: Behaviour): Generator<string> {
  const answer = generate(asked.ask, behaviour);
  const generation = onlyGeneration(answer);
  const { text, thought, toolCalls } = generation;
  const empty = { role: 'assistant', content: [], tool_plan: '', tool_calls: [], citations: [] };
  // Only the first event has an id.
  const start = { id: uuidOf(asked.ask.hash), type: 'message-start', delta: { message: empty } };
  yield eventFrame(start);
  let index = 0;
  if (thought !== undefined) {
    yield eventFrame({
      type: 'content-start',
      index,
      delta: { message: { content: { type: 'thinking', thinking: '' } } },
    });
    for (const { piece } of piecesOf(thought.text, false)) {
      yield eventFrame({ type: 'content-delta', index, delta: { message: { content: { thinking: piece } } } });
    }
    yield eventFrame({ type: 'content-end', index: index++ });
  }
  if (text !== null && toolCalls.length === 0) {
    yield eventFrame({ type: 'content-start', index, delta: { message: { content: { type: 'text', text: '' } } } });
    let position = 0;
    for (const { piece } of piecesOf(text, behaviour.inOnePiece)) {
      const [rated] = asked.logprobs ? logprobsOf(piece, position++) : [];
      const logprobs = rated === undefined ? {} : { logprobs: rated };
      yield eventFrame({ type: 'content-delta', index, delta: { message: { content: { text: piece } } }, ...logprobs });
    }
    yield eventFrame({ type: 'content-end', index });
  }
  if (toolCalls.length > 0) yield* toolFrames(generation, asked);
  const usage = behaviour.omitUsage === true ? {} : { usage: usageOf(answer) };
  yield eventFrame({ type: 'message-end', delta: { finish_reason: finishReasons[generation.finish], ...usage } });
}

function* toolFrames(generation: Generation, asked: Asked): Generator<string> {
  for (const piece of splitTokens(planOf(generation))) {
    yield eventFrame({ type: 'tool-plan-delta', delta: { message: { tool_plan: piece } } });
  }
  for (const [index, call] of callsOf(generation, asked).entries()) {
    const begun = { ...call, function: { name: call.function.name, arguments: '' } };
    yield eventFrame({ type: 'tool-call-start', index, delta: { message: { tool_calls: begun } } });
    for (const piece of splitTokens(call.function.arguments)) {
      const tool_calls = { function: { arguments: piece } };
      yield eventFrame({ type: 'tool-call-delta', index, delta: { message: { tool_calls } } });
    }
    yield eventFrame({ type: 'tool-call-end', index });
  }
}

function planOf({ toolCalls }: Generation): string {
  return `I will use ${toolCalls.map(({ name }) => name).join(' and ')}.`;
}

function callsOf({ toolCalls }: Generation, { ask }: Asked) {
  return toolCalls.map(({ name, input }, index) => ({
    id: `${name}_${hexOf(mixHash(ask.hash, index), 12)}`,
    type: 'function',
    function: { name, arguments: input },
  }));
}

// Cohere has no finish reason for an answer that was filtered or declined.
const finishReasons: Record<FinishReason, string> = {
  stop: 'COMPLETE',
  length: 'MAX_TOKENS',
  tool_calls: 'TOOL_CALL',
  content_filter: 'ERROR',
  refusal: 'COMPLETE',
};

// Tokens that the service adds to a prompt: they are counted but not billed.
const preambleTokens = 495;

function usageOf({ promptTokens, cachedTokens, completionTokens }: Answer) {
  return {
    billed_units: { input_tokens: promptTokens, output_tokens: completionTokens },
    tokens: { input_tokens: promptTokens + preambleTokens, output_tokens: completionTokens },
    cached_tokens: cachedTokens,
  };
}

function logprobsOf(text: string, position: number) {
  return splitTokens(text).map((token, index) => ({
    token_ids: [hashText(token) % 255_000],
    text: token,
    logprobs: [rateToken(token, position + index, 0).logprob],
  }));
}

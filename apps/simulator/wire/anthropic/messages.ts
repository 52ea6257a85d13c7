import {
  generate,
  onlyGeneration,
  type Answer,
  type Behaviour,
  type FinishReason,
  type Generation,
} from '../../model/generate.ts';
import { hexOf, mixHash } from '../../model/hash.ts';
import { piecesOf } from '../../model/pieces.ts';
import { splitTokens } from '../../model/tokens.ts';
import type { Call, Received } from '../wire-format.ts';
import { signatureOf } from './turns.ts';
import { decodeMessages, type Addressed, type Asked } from './decode-messages.ts';

/** POST /v1/messages. */
export function messagesCall(received: Received, addressed = received.json as Addressed): Call {
  const asked = decodeMessages(received, addressed);
  return {
    model: asked.model,
    hash: asked.ask.hash,
    user: asked.user,
    stream: asked.stream,
    body: (behaviour) => JSON.stringify(messageOf(asked, generate(asked.ask, behaviour), behaviour)),
    frames: (behaviour) => messageFrames(asked, generate(asked.ask, behaviour), behaviour),
  };
}

/** POST /v1/messages/count_tokens. */
export function countCall(received: Received): Call {
  const { model, user, ask } = decodeMessages(received, received.json as Addressed);
  const body = (): string => JSON.stringify({ input_tokens: ask.promptTokens });
  return { model, hash: ask.hash, user, stream: false, body, frames: () => [] };
}

/** One event: its name and its data, whose type repeats the name. */
export function eventFrame(data: { type: string; [member: string]: unknown }): string {
  return `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
}

function messageOf(asked: Asked, answer: Answer, behaviour: Behaviour) {
  const generation = onlyGeneration(answer);
  const refused = generation.finish === 'refusal';
  return {
    ...startOf(asked, behaviour),
    content: refused ? [] : blocksOf(generation, asked),
    ...stopOf(generation, asked, behaviour),
    ...(behaviour.omitUsage === true ? {} : { usage: usageOf(answer, answer.completionTokens) }),
  };
}

function startOf({ ask, model }: Asked, behaviour: Behaviour) {
  return {
    model: behaviour.answersAs ?? model,
    id: `msg_01${hexOf(ask.hash, 22)}`,
    type: 'message',
    role: 'assistant',
  };
}

function* messageFrames(asked: Asked, answer: Answer, behaviour: Behaviour): Generator<string> {
  const generation = onlyGeneration(answer);
  const refused = generation.finish === 'refusal';
  const usage = behaviour.omitUsage === true ? {} : { usage: usageOf(answer, 1) };
  const begin = { ...startOf(asked, behaviour), content: [], stop_reason: null, stop_sequence: null, ...usage };
  yield eventFrame({ type: 'message_start', message: begin });
  let index = 0;
  for (const block of refused ? [] : blocksOf(generation, asked)) {
    yield* blockFrames(block, index++, behaviour);
  }
  if (index === 0) yield pingFrame;
  const stop = stopOf(generation, asked, behaviour);
  const { input_tokens, cache_creation_input_tokens, cache_read_input_tokens, output_tokens } = usageOf(
    answer,
    answer.completionTokens,
  );
  const total = { input_tokens, cache_creation_input_tokens, cache_read_input_tokens, output_tokens };
  const end = { type: 'message_delta', delta: stop, ...(behaviour.omitUsage === true ? {} : { usage: total }) };
  yield eventFrame(end);
  yield eventFrame({ type: 'message_stop' });
}

const pingFrame = eventFrame({ type: 'ping' });

type AnswerBlock =
  | { type: 'thinking'; thinking: string; signature: string }
  | { type: 'text'; text: string }
  | { type: 'tool_use'; id: string; name: string; input: unknown };

function* blockFrames(block: AnswerBlock, index: number, behaviour: Behaviour): Generator<string> {
  const start = (content_block: unknown): string => eventFrame({ type: 'content_block_start', index, content_block });
  const delta = (delta: unknown): string => eventFrame({ type: 'content_block_delta', index, delta });
  switch (block.type) {
    case 'thinking':
      yield start({ type: 'thinking', thinking: '', signature: '' });
      if (index === 0) yield pingFrame;
      for (const { piece } of piecesOf(block.thinking, false)) yield delta({ type: 'thinking_delta', thinking: piece });
      yield delta({ type: 'signature_delta', signature: block.signature });
      break;
    case 'text':
      yield start({ type: 'text', text: '' });
      if (index === 0) yield pingFrame;
      for (const { piece } of piecesOf(block.text, behaviour.inOnePiece))
        yield delta({ type: 'text_delta', text: piece });
      break;
    case 'tool_use': {
      yield start({ ...block, input: {} });
      if (index === 0) yield pingFrame;
      yield delta({ type: 'input_json_delta', partial_json: '' });
      const input = JSON.stringify(block.input);
      for (const fragment of input === '{}' ? [] : splitTokens(input)) {
        yield delta({ type: 'input_json_delta', partial_json: fragment });
      }
      break;
    }
  }
  yield eventFrame({ type: 'content_block_stop', index });
}

function blocksOf({ text, toolCalls, thought }: Generation, { ask, omitThoughts }: Asked): AnswerBlock[] {
  const blocks: AnswerBlock[] = [];
  if (thought !== undefined) {
    const thinking = omitThoughts ? '' : thought.text;
    blocks.push({ type: 'thinking', thinking, signature: signatureOf(thinking) });
  }
  if (text !== null && text !== '') blocks.push({ type: 'text', text });
  for (const [index, { name, input }] of toolCalls.entries()) {
    const id = `toolu_01${hexOf(mixHash(ask.hash, index), 22)}`;
    blocks.push({ type: 'tool_use', id, name, input: JSON.parse(input) as unknown });
  }
  return blocks;
}

/** Finds the stop sequence that ended the text; the model does not return it otherwise. */
function stopSequence({ finish, text }: Generation, { ask, stop }: Asked, behaviour: Behaviour): string | null {
  if (finish !== 'stop' || stop.length === 0 || text === null) return null;
  const unlimited = onlyGeneration(generate({ ...ask, stop: [], tokensMax: undefined }, behaviour)).text ?? '';
  return stop.find((sequence) => unlimited.startsWith(sequence, text.length) && unlimited.length > text.length) ?? null;
}

function stopOf(generation: Generation, asked: Asked, behaviour: Behaviour) {
  const sequence = stopSequence(generation, asked, behaviour);
  const stop_reason = sequence === null ? stopReasons[generation.finish] : 'stop_sequence';
  const details = generation.finish === 'refusal' ? { stop_details: refusalDetails } : {};
  return { stop_reason, ...details, stop_sequence: sequence };
}

const stopReasons: Record<FinishReason, string> = {
  stop: 'end_turn',
  length: 'max_tokens',
  tool_calls: 'tool_use',
  content_filter: 'refusal',
  refusal: 'refusal',
};

const refusalDetails = {
  type: 'refusal',
  category: 'cyber',
  explanation: 'This request triggered restrictions on violative cyber content and was blocked.',
  recommended_model: 'sim-text',
};

/** `input_tokens` excludes tokens that were read from the cache or written to it, which is how the service counts. */
function usageOf({ promptTokens, cachedTokens }: Answer, outputTokens: number) {
  const created = cachedTokens > 0 ? Math.floor((promptTokens - cachedTokens) / 2) : 0;
  return {
    input_tokens: promptTokens - cachedTokens - created,
    cache_creation_input_tokens: created,
    cache_read_input_tokens: cachedTokens,
    cache_creation: { ephemeral_5m_input_tokens: created, ephemeral_1h_input_tokens: 0 },
    output_tokens: outputTokens,
    service_tier: 'standard',
    inference_geo: 'not_available',
  };
}

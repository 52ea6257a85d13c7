import type { Answer, Behaviour, Generation, ToolCall } from '../../model/generate.ts';
import { piecesOf } from '../../model/pieces.ts';
import { tokenEnd } from '../../model/tokens.ts';
import type { ChatRequest } from './decode-chat.ts';
import {
  chatLogprobs,
  chatId,
  chatUsage,
  createdAt,
  doneFrame,
  finishReason,
  frame,
  systemFingerprint,
  takeTurns,
} from './shapes.ts';

// Random-looking padding, which the real service adds so that texts cannot be guessed from packet sizes.
const padding = 'Qup1BsQ3xV7mKd0aZrT9LwYc';

/**
 * The events of a streamed chat answer: for every choice a role chunk, its deltas and a finish chunk, alternating between
 * choices; then usage, if requested, and [DONE]. `extra` is added to the first chunk.
 */
export function* chatFrames(
  request: ChatRequest,
  answer: Answer,
  behaviour: Behaviour,
  extra: string,
): Generator<string> {
  const { hash } = request.ask;
  const model = JSON.stringify(behaviour.answersAs ?? request.model);
  const includeUsage = request.includeUsage && behaviour.omitUsage !== true;
  const head = `{"id":"${chatId(hash)}","object":"chat.completion.chunk","created":${createdAt(hash)},"model":${model},"service_tier":${JSON.stringify(request.serviceTier)},"system_fingerprint":"${systemFingerprint}","choices":`;
  const nullUsage = includeUsage ? ',"usage":null' : '';
  let count = 0;
  const tail = (): string => {
    const at = count++ % 16;
    return `${nullUsage}${request.obfuscate ? `,"obfuscation":"${padding.slice(at, at + 4 + (at % 5))}"` : ''}`;
  };
  let first = extra;
  const turns = answer.generations.map((generation, index) => choiceDeltas(request, behaviour, generation, index));
  for (const item of takeTurns(turns)) {
    yield frame(`${head}[${item}]${tail()}${first}}`);
    first = '';
  }
  if (includeUsage)
    yield frame(`${head}[],"usage":${chatUsage(answer)}${request.obfuscate ? ',"obfuscation":""' : ''}}`);
  yield doneFrame;
}

/** The `choices` items of one choice, in order. */
function* choiceDeltas(
  request: ChatRequest,
  behaviour: Behaviour,
  generation: Generation,
  index: number,
): Generator<string> {
  const item = (delta: string, logprobs = 'null', finish = 'null'): string =>
    `{"index":${index},"delta":${delta},"logprobs":${logprobs},"finish_reason":${finish}}`;
  const { toolCalls, thought } = generation;
  const refused = generation.finish === 'refusal';
  const text = refused ? null : generation.text;
  yield item(`{"role":"assistant","content":${text === null ? 'null' : '""'},"refusal":null}`);
  if (thought !== undefined) {
    for (const { piece } of piecesOf(thought.text, false)) yield item(`{"reasoning_content":${JSON.stringify(piece)}}`);
  }
  if (refused) yield item(`{"refusal":${JSON.stringify(generation.text)}}`);
  if (text !== null) {
    let position = 0;
    for (const { piece } of piecesOf(text, behaviour.inOnePiece)) {
      yield item(`{"content":${JSON.stringify(piece)}}`, chatLogprobs(piece, position++, request.topLogprobs));
    }
  }
  for (const [callIndex, call] of toolCalls.entries()) {
    for (const delta of callDeltas(call, callIndex, request.legacyFunctions)) yield item(delta);
  }
  yield item('{}', 'null', `"${finishReason(generation.finish, request.legacyFunctions)}"`);
}

/** The ID and name are sent once, with empty arguments; then the arguments, one token per fragment. */
function* callDeltas({ id, kind, name, input }: ToolCall, index: number, legacy: boolean): Generator<string> {
  const field = kind === 'custom' ? 'input' : 'arguments';
  const begin = { name, [field]: '' };
  yield JSON.stringify(legacy ? { function_call: begin } : { tool_calls: [{ index, id, type: kind, [kind]: begin }] });
  for (let start = 0; start < input.length;) {
    const end = tokenEnd(input, start);
    const fragment = { [field]: input.slice(start, end) };
    yield JSON.stringify(legacy ? { function_call: fragment } : { tool_calls: [{ index, [kind]: fragment }] });
    start = end;
  }
}

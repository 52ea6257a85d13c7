import { generate, onlyGeneration, type Answer, type Behaviour, type Generation } from '../../../model/generate.ts';
import { hexOf, mixHash } from '../../../model/hash.ts';
import { piecesOf } from '../../../model/pieces.ts';
import { createdAt } from '../shapes.ts';
import type { Call, Received } from '../../wire-format.ts';
import { decodeResponses, type Asked } from './decode-responses.ts';

type Item = Record<string, unknown> & { id: string; type: string };

/** POST /v1/responses. */
export function responsesCall(received: Received): Call {
  const asked = decodeResponses(received);
  return {
    model: asked.model,
    hash: asked.ask.hash,
    user: asked.user,
    stream: asked.stream,
    body: (behaviour) => {
      const answer = generate(asked.ask, behaviour);
      return JSON.stringify(responseOf(asked, answer, behaviour, itemsOf(onlyGeneration(answer), asked)));
    },
    frames: (behaviour) => responseFrames(asked, behaviour),
  };
}

function responseOf(asked: Asked, answer: Answer, behaviour: Behaviour, output: readonly Item[] | undefined) {
  const { finish } = onlyGeneration(answer);
  const cut = { length: 'max_output_tokens', content_filter: 'content_filter' }[finish as string];
  const status = output === undefined ? 'in_progress' : cut === undefined ? 'completed' : 'incomplete';
  const usage = {
    input_tokens: answer.promptTokens,
    input_tokens_details: { cached_tokens: answer.cachedTokens },
    output_tokens: answer.completionTokens,
    output_tokens_details: { reasoning_tokens: answer.reasoningTokens },
    total_tokens: answer.promptTokens + answer.completionTokens,
  };
  return {
    id: `resp_${hexOf(asked.ask.hash, 48)}`,
    object: 'response',
    created_at: createdAt(asked.ask.hash),
    status,
    background: false,
    error: null,
    incomplete_details: output === undefined || cut === undefined ? null : { reason: cut },
    ...asked.echoed,
    model: behaviour.answersAs ?? asked.model,
    output: output ?? [],
    usage: output === undefined || behaviour.omitUsage === true ? null : usage,
  };
}

function itemsOf({ text, toolCalls, thought, finish }: Generation, { ask }: Asked): Item[] {
  const items: Item[] = [];
  const id = (prefix: string): string => `${prefix}_${hexOf(mixHash(ask.hash, items.length + 100), 48)}`;
  if (thought !== undefined) {
    items.push({ id: id('rs'), type: 'reasoning', summary: [{ type: 'summary_text', text: thought.text }] });
  }
  if (text !== null) {
    const part =
      finish === 'refusal'
        ? { type: 'refusal', refusal: text }
        : { type: 'output_text', annotations: [], logprobs: [], text };
    const status = finish === 'length' || finish === 'content_filter' ? 'incomplete' : 'completed';
    items.push({ id: id('msg'), type: 'message', status, content: [part], role: 'assistant' });
  }
  for (const { id: callId, name, input } of toolCalls) {
    items.push({ id: id('fc'), type: 'function_call', status: 'completed', arguments: input, call_id: callId, name });
  }
  return items;
}

function* responseFrames(asked: Asked, behaviour: Behaviour): Generator<string> {
  const answer = generate(asked.ask, behaviour);
  const items = itemsOf(onlyGeneration(answer), asked);
  let number = 0;
  const event = (type: string, members: object): string =>
    `event: ${type}\ndata: ${JSON.stringify({ type, sequence_number: number++, ...members })}\n\n`;
  const begun = responseOf(asked, answer, behaviour, undefined);
  yield event('response.created', { response: begun });
  yield event('response.in_progress', { response: begun });
  for (const [output_index, item] of items.entries()) {
    const place = { item_id: item.id, output_index };
    yield event('response.output_item.added', { output_index, item: beginningOf(item) });
    if (item.type === 'function_call') {
      const whole = String(item['arguments']);
      for (const { piece } of piecesOf(whole, false)) {
        yield event('response.function_call_arguments.delta', { ...place, delta: piece });
      }
      yield event('response.function_call_arguments.done', { ...place, arguments: whole });
    } else if (item.type === 'message') {
      yield* partEvents(item, place, event, behaviour);
    }
    yield event('response.output_item.done', { output_index, item });
  }
  const response = responseOf(asked, answer, behaviour, items);
  yield event(`response.${response.status}`, { response });
}

type EventOf = (type: string, members: object) => string;

function* partEvents({ content }: Item, place: object, event: EventOf, behaviour: Behaviour): Generator<string> {
  const [part] = content as [{ type: string; text?: string; refusal?: string }];
  const at = { ...place, content_index: 0 };
  const refusal = part.type === 'refusal';
  const whole = part.text ?? part.refusal ?? '';
  const empty = refusal ? { type: 'refusal', refusal: '' } : { ...part, text: '' };
  yield event('response.content_part.added', { ...at, part: empty });
  const kind = refusal ? 'response.refusal' : 'response.output_text';
  const logprobs = refusal ? {} : { logprobs: [] };
  for (const { piece } of piecesOf(whole, behaviour.inOnePiece))
    yield event(`${kind}.delta`, { ...at, delta: piece, ...logprobs });
  yield event(`${kind}.done`, { ...at, [refusal ? 'refusal' : 'text']: whole, ...logprobs });
  yield event('response.content_part.done', { ...at, part });
}

/** An item when it is added, still empty. */
function beginningOf(item: Item): object {
  if (item.type === 'reasoning') return { ...item, summary: [] };
  const empty = item.type === 'message' ? { content: [] } : { arguments: '' };
  return { ...item, status: 'in_progress', ...empty };
}

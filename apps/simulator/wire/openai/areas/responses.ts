import { generate, onlyGeneration, type Answer, type Behaviour, type Generation } from '../../../model/generate.ts';
import { hexOf, mixHash } from '../../../model/hash.ts';
import { piecesOf } from '../../../model/pieces.ts';
import { createdAt } from '../shapes.ts';
import type { Call, Received, StreamForm } from '../../wire-format.ts';
import { decodeResponses, type Asked } from './decode-responses.ts';

/** Errors after the status: a failed response, or the bare event of an error. */
const streamForm: StreamForm = {
  contentType: 'text/event-stream; charset=utf-8',
  errorFrame: ({ message, code }) => {
    const error = { code: code ?? 'server_error', message };
    const response = { object: 'response', status: 'failed', error, output: [], usage: null };
    return `event: response.failed\ndata: ${JSON.stringify({ type: 'response.failed', sequence_number: 2, response })}\n\n`;
  },
  strayErrorFrame: ({ message, code, param }) => {
    const error = { type: 'error', code: code ?? null, message, param: param ?? null, sequence_number: 2 };
    return `event: error\ndata: ${JSON.stringify(error)}\n\n`;
  },
  brokenFrame: 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":\n\n',
  idleFrame: ': keep-alive\n\n',
};

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
    form: streamForm,
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
  for (const { id: callId, kind, name, input } of toolCalls) {
    const call = { status: 'completed', call_id: callId, name };
    items.push(
      kind === 'custom'
        ? { id: id('ctc'), type: 'custom_tool_call', ...call, input }
        : { id: id('fc'), type: 'function_call', ...call, arguments: input },
    );
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
      yield* inputEvents('response.function_call_arguments', 'arguments', item, place, event);
    } else if (item.type === 'custom_tool_call') {
      yield* inputEvents('response.custom_tool_call_input', 'input', item, place, event);
    } else if (item.type === 'reasoning') {
      yield* summaryEvents(item, place, event);
    } else if (item.type === 'message') {
      yield* partEvents(item, place, event, behaviour);
    }
    yield event('response.output_item.done', { output_index, item });
  }
  const response = responseOf(asked, answer, behaviour, items);
  yield event(`response.${response.status}`, { response });
}

type EventOf = (type: string, members: object) => string;

function* inputEvents(kind: string, member: string, item: Item, place: object, event: EventOf): Generator<string> {
  const whole = String(item[member]);
  for (const { piece } of piecesOf(whole, false)) yield event(`${kind}.delta`, { ...place, delta: piece });
  yield event(`${kind}.done`, { ...place, [member]: whole });
}

function* summaryEvents({ summary }: Item, place: object, event: EventOf): Generator<string> {
  const [part] = summary as [{ text: string }];
  const at = { ...place, summary_index: 0 };
  yield event('response.reasoning_summary_part.added', { ...at, part: { ...part, text: '' } });
  for (const { piece } of piecesOf(part.text, false)) {
    yield event('response.reasoning_summary_text.delta', { ...at, delta: piece });
  }
  yield event('response.reasoning_summary_text.done', { ...at, text: part.text });
  yield event('response.reasoning_summary_part.done', { ...at, part });
}

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
  const empty =
    item.type === 'message' ? { content: [] } : item.type === 'custom_tool_call' ? { input: '' } : { arguments: '' };
  return { ...item, status: 'in_progress', ...empty };
}

import { asNumber, asText, type Json, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { restTurns, type BrokenStreams, type PayloadShown, type Shown, type StreamJoin } from '../turns/stream-join.ts';

const openings: ReadonlySet<unknown> = new Set(['response.created', 'response.in_progress', 'response.queued']);
const shownByItem: Readonly<Record<string, Shown>> = { message: 'nothing', reasoning: 'reasoning' };

/** What an event shows. */
function readShownResponse(payload: string): PayloadShown {
  const { type, item, delta } = toRecord(parseJson(payload));
  const name = asText(type) ?? '';
  if (name === 'response.output_text.delta') return { shown: 'text', text: asText(delta) ?? '' };
  if (name.startsWith('response.reasoning')) return { shown: 'reasoning', text: '' };
  if (name.startsWith('response.output_item.')) {
    return { shown: shownByItem[String(toRecord(item)['type'])] ?? 'other', text: '' };
  }
  const isFrame = openings.has(name) || /^(?:keepalive|response\.(?:output_text\.done|content_part\..*))$/.test(name);
  return { shown: isFrame ? 'nothing' : 'other', text: '' };
}

/**
 * Joins streams of responses: the second one has no start; its items and numbers follow those of the first one, whose ID it
 * gets. The last event has the items of both.
 */
function joinResponseEvents(sent: readonly string[]): StreamJoin {
  const first = new BrokenResponse();
  for (const payload of sent) first.read(toRecord(parseJson(payload)));
  const ends = first.end();
  let { number } = first;
  const { response, items } = first;
  const { id, created_at } = response;
  return {
    ends,
    push: (payload) => {
      const { response: whole, output_index: index, ...event } = JSON.parse(payload) as Json;
      if (openings.has(event['type'])) return [];
      number += 1;
      const place = typeof index === 'number' ? { output_index: index + items.length } : {};
      const output = [...items, ...toRecords(toRecord(whole)['output'])];
      const joined = whole === undefined ? {} : { response: { ...toRecord(whole), id, created_at, output } };
      return [JSON.stringify({ ...event, sequence_number: number, ...place, ...joined })];
    },
  };
}

/** The first stream: its items as far as they came. */
class BrokenResponse {
  response: Json = {};
  number = -1;
  readonly items: Json[] = [];
  /** The pieces of the item that is open, and the place of its last piece. */
  #pieces: string[] = [];
  #place: Json = {};
  #openIndex: number | null = null;

  read({ type, sequence_number: number, response, item, output_index, delta, ...place }: Json): void {
    this.number = asNumber(number) ?? this.number;
    if (response !== undefined) this.response = toRecord(response);
    const index = asNumber(output_index);
    if (index === undefined) return;
    if (item !== undefined) {
      this.items[index] = toRecord(item);
      this.#openIndex = type === 'response.output_item.done' ? null : index;
      this.#pieces = [];
    } else if (typeof delta === 'string') {
      this.#pieces.push(delta);
      this.#place = { ...place, output_index: index };
    }
  }

  /** The events that end the open item, which is incomplete. */
  end(): string[] {
    const index = this.#openIndex;
    const open = index === null ? undefined : this.items[index];
    if (index === null || open === undefined) return [];
    const text = this.#pieces.join('');
    const { item_id, content_index = 0, summary_index = 0 } = this.#place;
    const isMessage = open['type'] === 'message';
    const part = isMessage
      ? { type: 'output_text', text, annotations: [], logprobs: [] }
      : { type: 'summary_text', text };
    const at = { item_id, output_index: index, ...(isMessage ? { content_index } : { summary_index }) };
    const item = isMessage
      ? { ...open, status: 'incomplete', content: text === '' ? [] : [part] }
      : { ...open, summary: text === '' ? [] : [part] };
    this.items[index] = item;
    const name = isMessage ? 'output_text' : 'reasoning_summary_text';
    const ended = isMessage ? 'content_part' : 'reasoning_summary_part';
    return [
      ...(text === ''
        ? []
        : [this.#event(`${name}.done`, { ...at, text }), this.#event(`${ended}.done`, { ...at, part })]),
      this.#event('output_item.done', { output_index: index, item }),
    ];
  }

  #event(type: string, members: Json): string {
    this.number += 1;
    return JSON.stringify({ type: `response.${type}`, sequence_number: this.number, ...members });
  }
}

/** Streams of the Responses API that break off. */
export const brokenResponses: BrokenStreams = {
  readShown: readShownResponse,
  join: joinResponseEvents,
  askForRest: ({ input }, text) => {
    const before = typeof input === 'string' ? [{ role: 'user', content: input }] : toRecords(input);
    return { input: [...before, ...restTurns(text, (role, content) => ({ role, content }))] };
  },
};

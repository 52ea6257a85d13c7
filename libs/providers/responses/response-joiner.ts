import { asCount, asText, type Json, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { StreamJoiner } from '../turns/stream-joiner.ts';

const openings: ReadonlySet<unknown> = new Set(['response.created', 'response.in_progress', 'response.queued']);
/** Events that repeat what others have shown, or show nothing. */
const frame = /^(?:keepalive|response\.(?:output_text\.done|content_part\.\w+))$/;

/** An item that has begun, its text, and the place of its last piece. */
type OpenItem = { item: Json; pieces: string[]; place: Json };

/**
 * Joins streams of the Responses API. The answer has the ID of the first one; items and events of all streams are counted
 * together, and the last event has all items.
 */
export class ResponseJoiner extends StreamJoiner {
  #identity: Json = {};
  #number = -1;
  #offset = 0;
  readonly #items: Json[] = [];
  #open: OpenItem | null = null;

  read(payload: string): number {
    const event = toRecord(parseJson(payload));
    const { type, sequence_number: number, response, item, output_index: index, delta } = event;
    const name = asText(type) ?? '';
    if (number !== undefined) this.#number = asCount(number);
    if (openings.has(name)) {
      const { id, created_at } = toRecord(response);
      this.#identity = { id, created_at };
      return 0;
    }
    if (name === 'response.output_item.added') this.#add(index, toRecord(item));
    else if (name === 'response.output_item.done') this.#complete(index, toRecord(item));
    else if (name === 'response.output_text.delta') return this.#addPiece(event) + this.show('text', asText(delta));
    else if (name.startsWith('response.reasoning')) {
      this.show('reasoning');
      return typeof delta === 'string' ? this.#addPiece(event) : 0;
    } else if (!frame.test(name)) this.show('other');
    return item === undefined ? 0 : payload.length;
  }

  /** Items follow each other. Anything else cannot be joined. */
  #add(index: unknown, item: Json): void {
    const isNext = this.#open === null && index === this.#items.length;
    if (item['type'] === 'reasoning') this.show('reasoning');
    if (!isNext || (item['type'] !== 'reasoning' && item['type'] !== 'message')) this.show('other');
    else this.#open = { item, pieces: [], place: {} };
  }

  #complete(index: unknown, item: Json): void {
    if (this.#open === null || index !== this.#items.length) this.show('other');
    else this.#items.push(item);
    this.#open = null;
  }

  #addPiece({ delta, item_id, content_index, summary_index }: Json): number {
    const piece = asText(delta) ?? '';
    if (this.#open === null) return 0;
    this.#open.pieces.push(piece);
    this.#open.place = { item_id, content_index, summary_index };
    return piece.length;
  }

  startNext(): readonly string[] {
    const ends = this.#open === null ? [] : this.#endItem(this.#open);
    this.#open = null;
    this.#offset = this.#items.length;
    return ends;
  }

  rewrite(payload: string): string | null {
    const { response, output_index: index, ...event } = JSON.parse(payload) as Json;
    if (openings.has(event['type'])) return null;
    this.#number += 1;
    const place = index === undefined ? {} : { output_index: asCount(index) + this.#offset };
    const joined = response === undefined ? {} : { response: this.#withItems(toRecord(response)) };
    return JSON.stringify({ ...event, sequence_number: this.#number, ...place, ...joined });
  }

  #withItems(response: Json): Json {
    const output = [...this.#items.slice(0, this.#offset), ...toRecords(response['output'])];
    return { ...response, ...this.#identity, output };
  }

  /** Ends an item as incomplete. */
  #endItem({ item, pieces, place }: OpenItem): string[] {
    const text = pieces.join('');
    const { item_id, content_index = 0, summary_index = 0 } = place;
    const isMessage = item['type'] === 'message';
    const part = isMessage
      ? { type: 'output_text', text, annotations: [], logprobs: [] }
      : { type: 'summary_text', text };
    const output_index = this.#items.length;
    const at = { item_id, output_index, ...(isMessage ? { content_index } : { summary_index }) };
    const parts = text === '' ? [] : [part];
    const ended = isMessage ? { ...item, status: 'incomplete', content: parts } : { ...item, summary: parts };
    this.#items.push(ended);
    const [piece, whole] = isMessage
      ? ['output_text', 'content_part']
      : ['reasoning_summary_text', 'reasoning_summary_part'];
    return [
      ...parts.flatMap(() => [
        this.#event(`${piece}.done`, { ...at, text }),
        this.#event(`${whole}.done`, { ...at, part }),
      ]),
      this.#event('output_item.done', { output_index, item: ended }),
    ];
  }

  #event(type: string, members: Json): string {
    this.#number += 1;
    return JSON.stringify({ type: `response.${type}`, sequence_number: this.#number, ...members });
  }
}

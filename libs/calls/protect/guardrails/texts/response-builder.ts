import { asRecord } from '#libs/calls/upstream/answers/usage.ts';

type Item = Readonly<Record<string, unknown>>;

const itemBytes = 512;
const pieceBytes = 64;
const charBytes = 2;

/**
 * Assembles the events of the Responses API into the response that they are pieces of. Servers differ in which events repeat
 * the content, so everything that a client could read counts: finished items, pieces without one, and items that only the
 * last event has.
 */
export class ResponseBuilder {
  readonly #charsMax: number;
  readonly #items = new Map<unknown, Item>();
  readonly #pieces = new Map<unknown, string[]>();
  #response: Item = {};
  #chars = 0;

  constructor(charsMax: number) {
    this.#charsMax = charsMax;
  }

  get isTooLong(): boolean {
    return this.#chars > this.#charsMax;
  }

  add(payload: string): number {
    const { type, output_index: index, item, delta, response } = asRecord(JSON.parse(payload));
    if (typeof delta === 'string') return this.#append(index, delta);
    if (type === 'response.output_item.done') {
      this.#items.set(index, asRecord(item));
      return this.#count(payload);
    }
    if (response === undefined) return 0;
    this.#response = asRecord(response);
    return this.#count(payload);
  }

  eventWith(members: object): string {
    return JSON.stringify({ type: 'response.gateway', ...members });
  }

  body(): Buffer {
    const { output, ...response } = this.#response;
    const items = [...this.#items.values()];
    const known = new Set(items.map(({ id }) => id));
    const others = (Array.isArray(output) ? output : []).map(asRecord).filter(({ id }) => !known.has(id));
    return Buffer.from(JSON.stringify({ ...response, output: [...items, ...this.#unfinished(), ...others] }));
  }

  /** The pieces of items that did not end, or that ended with less. */
  #unfinished(): Item[] {
    return [...this.#pieces].flatMap(([index, pieces]) => {
      const text = pieces.join('');
      const item = this.#items.get(index);
      if (item !== undefined && JSON.stringify(item).length >= text.length) return [];
      return [{ type: 'message', role: 'assistant', content: [{ type: 'output_text', text }] }];
    });
  }

  #append(index: unknown, piece: string): number {
    const pieces = this.#pieces.get(index);
    if (pieces === undefined) this.#pieces.set(index, [piece]);
    else pieces.push(piece);
    this.#chars += piece.length;
    return pieceBytes + charBytes * piece.length;
  }

  #count(payload: string): number {
    this.#chars += payload.length;
    return itemBytes + charBytes * payload.length;
  }
}

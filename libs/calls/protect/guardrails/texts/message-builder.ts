import { asRecord } from '#libs/calls/upstream/answers/usage.ts';

type Block = { start: Readonly<Record<string, unknown>>; pieces: Map<string, string[]> };

/** The member of a block that the pieces of each member of a delta are part of. */
const membersOfPieces = { text: 'text', thinking: 'thinking', partial_json: 'input' } as const;

const blockBytes = 512;
const pieceBytes = 64;

/** Assembles the events of Anthropic's Messages API into the message that they are pieces of. */
export class MessageBuilder {
  readonly #charsMax: number;
  readonly #blocks = new Map<unknown, Block>();
  #message: Readonly<Record<string, unknown>> = {};
  #chars = 0;

  constructor(charsMax: number) {
    this.#charsMax = charsMax;
  }

  get isTooLong(): boolean {
    return this.#chars > this.#charsMax;
  }

  add(payload: string): number {
    const { type, index, message, content_block: block, delta } = asRecord(JSON.parse(payload));
    if (type === 'content_block_delta') return this.#append(this.#blocks.get(index), asRecord(delta));
    if (type === 'message_start') this.#message = asRecord(message);
    else if (type === 'message_delta') this.#message = { ...this.#message, ...asRecord(delta) };
    else if (type === 'content_block_start') this.#blocks.set(index, { start: asRecord(block), pieces: new Map() });
    else return 0;
    this.#chars += payload.length;
    return blockBytes + 2 * payload.length;
  }

  eventWith(members: object): string {
    return JSON.stringify({ type: 'gateway', ...members });
  }

  body(): Buffer {
    const content = [...this.#blocks.values()].map(({ start, pieces }) => ({
      ...start,
      ...Object.fromEntries([...pieces].map(([member, texts]) => [member, this.#join(member, texts)])),
    }));
    return Buffer.from(JSON.stringify({ ...this.#message, content }));
  }

  #append(block: Block | undefined, delta: Readonly<Record<string, unknown>>): number {
    let bytes = 0;
    for (const [piece, member] of Object.entries(membersOfPieces)) {
      const text = delta[piece];
      if (typeof text !== 'string' || block === undefined) continue;
      const texts = block.pieces.get(member);
      if (texts === undefined) block.pieces.set(member, [text]);
      else texts.push(text);
      this.#chars += text.length;
      bytes += 2 * text.length + pieceBytes;
    }
    return bytes;
  }

  /** The arguments of a call arrive as pieces of JSON. If they are not valid, their text is what can be checked. */
  #join(member: string, texts: readonly string[]): unknown {
    const text = texts.join('');
    if (member !== 'input') return text;
    try {
      return JSON.parse(text) as unknown;
    } catch {
      return text;
    }
  }
}

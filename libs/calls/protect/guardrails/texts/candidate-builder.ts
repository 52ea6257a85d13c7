import { asRecord } from '#libs/calls/upstream/answers/usage.ts';

type Body = Readonly<Record<string, unknown>>;
/** Texts of one kind that follow each other are one part. */
type Piece = { thought: boolean; texts: string[] } | { part: Body };
type Candidate = { pieces: Piece[]; rest: Record<string, unknown> };

const candidateBytes = 512;
const pieceBytes = 64;

/** Assembles the payloads of Google's streamGenerateContent into the answer that they are pieces of. */
export class CandidateBuilder {
  readonly #charsMax: number;
  readonly #candidates = new Map<number, Candidate>();
  #head: Body = {};
  #chars = 0;

  constructor(charsMax: number) {
    this.#charsMax = charsMax;
  }

  get isTooLong(): boolean {
    return this.#chars > this.#charsMax;
  }

  add(payload: string): number {
    const { candidates, modelVersion, responseId, usageMetadata } = asRecord(JSON.parse(payload));
    this.#head = { modelVersion, responseId, usageMetadata };
    let bytes = 0;
    for (const candidate of Array.isArray(candidates) ? candidates : [])
      bytes += this.#addCandidate(asRecord(candidate));
    return bytes;
  }

  eventWith(members: object): string {
    const { modelVersion, responseId } = this.#head;
    return JSON.stringify({ candidates: [], modelVersion, responseId, ...members });
  }

  body(): Buffer {
    const candidates = [...this.#candidates]
      .toSorted(([a], [b]) => a - b)
      .map(([index, { pieces, rest }]) => {
        const parts = pieces.map((piece) => {
          if ('part' in piece) return piece.part;
          return { text: piece.texts.join(''), ...(piece.thought ? { thought: true } : {}) };
        });
        return { content: { parts, role: 'model' }, ...rest, index };
      });
    return Buffer.from(JSON.stringify({ candidates, ...this.#head }));
  }

  #addCandidate({ index, content, finishReason, finishMessage }: Body): number {
    const key = typeof index === 'number' ? index : 0;
    let bytes = 0;
    let candidate = this.#candidates.get(key);
    if (candidate === undefined) {
      this.#candidates.set(key, (candidate = { pieces: [], rest: {} }));
      bytes += candidateBytes;
    }
    for (const [name, value] of Object.entries({ finishReason, finishMessage })) {
      if (typeof value !== 'string') continue;
      candidate.rest[name] = value;
      bytes += this.#count(value.length);
    }
    const { parts } = asRecord(content);
    for (const part of Array.isArray(parts) ? parts : []) bytes += this.#addPart(candidate, asRecord(part));
    return bytes;
  }

  #addPart({ pieces }: Candidate, part: Body): number {
    const { text, thought = false } = part;
    // Images are not read by guardrails.
    if (part['inlineData'] !== undefined) return 0;
    if (typeof text !== 'string') {
      pieces.push({ part });
      return this.#count(JSON.stringify(part).length);
    }
    if (text === '') return 0;
    const last = pieces.at(-1);
    if (last !== undefined && 'texts' in last && last.thought === (thought === true)) last.texts.push(text);
    else pieces.push({ thought: thought === true, texts: [text] });
    return this.#count(text.length);
  }

  #count(chars: number): number {
    this.#chars += chars;
    return pieceBytes + 2 * chars;
  }
}

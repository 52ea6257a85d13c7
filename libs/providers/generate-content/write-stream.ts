import { GatewayError } from '#libs/kernel/errors.ts';
import type {
  AnswerHead,
  CalledTool,
  ChoiceWriter,
  FinishReason,
  StreamWriter,
  Thought,
  TokenCounts,
} from '../turns/answer.ts';
import type { Json } from '../turns/json-value.ts';
import { encodeCall, encodeFinish, encodeHead, encodeImage, encodeThought, encodeUsage } from './encode-answer.ts';
import { writeHidden, writePartSignature } from './part-signature.ts';
import { geminiSigner } from '../gemini/decode.ts';

/** How many characters of calls and refusals one stream can collect. */
const collectedCharsMax = 4 * 1_024 * 1_024;
/** A call takes memory in addition to its texts. */
const callChars = 200;

type Memory = { charsLeft: number };

/**
 * Writes one stream of streamGenerateContent. Each payload is a small answer; the last one has the finish reasons and the
 * usage. Google's clients expect a call as one part, so the arguments are collected.
 */
export class GenerateWriter implements StreamWriter {
  readonly #head: AnswerHead;
  readonly #memory: Memory = { charsLeft: collectedCharsMax };
  readonly #choices = new Map<number, Candidate>();
  #counts: TokenCounts | null = null;

  constructor(head: AnswerHead) {
    this.#head = head;
  }

  choice(index = 0): ChoiceWriter {
    let candidate = this.#choices.get(index);
    if (candidate === undefined) {
      candidate = new Candidate(this.#head, index, this.#memory);
      this.#choices.set(index, candidate);
    }
    return candidate;
  }

  usage(counts: TokenCounts): string[] {
    this.#counts = counts;
    return [];
  }

  end(): string[] {
    const ends = [...this.#choices.values()].map((candidate) => candidate.ending());
    if (ends.length === 0 || ends.includes(null)) return [];
    const usage = this.#counts === null ? {} : { usageMetadata: encodeUsage(this.#counts) };
    return [JSON.stringify({ candidates: ends, ...usage, ...encodeHead(this.#head) })];
  }
}

type OpenCall = Omit<CalledTool, 'arguments'> & { pieces: string[] };

class Candidate implements ChoiceWriter {
  readonly #head: AnswerHead;
  readonly #index: number;
  readonly #memory: Memory;
  /** The calls that are not written yet. */
  readonly #open = new Map<string | number, OpenCall>();
  #hasCalls = false;
  /** The block of reasoning whose author is not written yet. */
  #thinking: number | null = null;
  #refusal = '';
  #reason: FinishReason | null = null;
  #logprobs: unknown;

  constructor(head: AnswerHead, index: number, memory: Memory) {
    this.#head = head;
    this.#index = index;
    this.#memory = memory;
  }

  start(): string[] {
    return [];
  }

  text(text: string, _block?: number, signature?: string): string[] {
    if (text === '' && signature === undefined) return [];
    const { signer } = this.#head;
    const signed = signature === undefined ? {} : { thoughtSignature: writePartSignature(signer, signature) };
    return [...this.#endThought(), this.#part({ text, ...signed })];
  }

  thought({ thinking = '', signature, data }: Thought, block: number): string[] {
    const { signer } = this.#head;
    if (data !== undefined) {
      const hidden = this.#part({ text: '', thought: true, thoughtSignature: writeHidden(signer, data) });
      return [...this.#endThought(), hidden];
    }
    const ended = this.#thinking === block ? [] : this.#endThought();
    this.#thinking = signature === undefined ? block : null;
    if (signature !== undefined) return [...ended, this.#part(encodeThought(thinking, signer, signature))];
    return thinking === '' ? ended : [...ended, this.#part({ text: thinking, thought: true })];
  }

  image(url: string, _block: number, signature?: string): string[] {
    return [...this.#endThought(), this.#part(encodeImage(url, this.#head.signer, signature))];
  }

  refusal(text: string): string[] {
    this.#take(text.length);
    this.#refusal += text;
    return [];
  }

  extension(): string[] {
    return [];
  }

  toolCall(
    key: string | number,
    { arguments: written = '', ...call }: Omit<CalledTool, 'arguments'> & { arguments?: string },
  ): string[] {
    this.#hasCalls = true;
    this.#take(callChars + call.id.length + call.name.length);
    this.#open.set(key, { ...call, pieces: [] });
    this.#collect(key, written);
    return this.#endThought();
  }

  toolArguments(key: string | number, fragment: string): string[] {
    this.#collect(key, fragment);
    return [];
  }

  hasToolCalls(): boolean {
    return this.#hasCalls;
  }

  finish(reason: FinishReason, logprobs?: unknown): string[] {
    this.#reason = reason;
    this.#logprobs = logprobs ?? this.#logprobs;
    const calls = [...this.#open.values()].flatMap(({ pieces, ...call }) =>
      encodeCall({ ...call, arguments: pieces.join('') }, reason),
    );
    this.#open.clear();
    return [...this.#endThought(), ...(calls.length === 0 ? [] : [this.#payload(calls)])];
  }

  /** The candidate of the last payload; null if it has not finished. */
  ending(): Json | null {
    if (this.#reason === null) return null;
    const finish = encodeFinish(this.#reason, this.#refusal, this.#logprobs);
    return { content: { parts: [{ text: '' }], role: 'model' }, ...finish, index: this.#index };
  }

  /** Names the author of reasoning that ended without a signature. */
  #endThought(): string[] {
    const { signer } = this.#head;
    const isUnnamed = this.#thinking !== null && signer !== undefined && signer !== geminiSigner;
    this.#thinking = null;
    return isUnnamed ? [this.#part(encodeThought('', signer, undefined))] : [];
  }

  #collect(key: string | number, fragment: string): void {
    const call = this.#open.get(key);
    if (call === undefined || fragment === '') return;
    this.#take(fragment.length);
    call.pieces.push(fragment);
  }

  /** Throws provider_failed if the calls and refusals of the answer are too long to collect. */
  #take(chars: number): void {
    this.#memory.charsLeft -= chars;
    if (this.#memory.charsLeft >= 0) return;
    const problem = `The provider sent calls and refusals of more than ${collectedCharsMax} characters in one answer.`;
    throw new GatewayError('provider_failed', 'upstream_invalid_response', problem);
  }

  #part(part: Json): string {
    return this.#payload([part]);
  }

  #payload(parts: readonly Json[]): string {
    const candidate = { content: { parts, role: 'model' }, index: this.#index };
    return JSON.stringify({ candidates: [candidate], ...encodeHead(this.#head) });
  }
}

import type { CallOperation } from '#libs/calls/call.ts';
import { asRecord } from '#libs/calls/upstream/answers/usage.ts';
import { CandidateBuilder } from './candidate-builder.ts';
import { MessageBuilder } from './message-builder.ts';
import { ResponseBuilder } from './response-builder.ts';

type Choice = {
  texts: Map<string, string[]>;
  calls: Map<number, Map<string, string[]>>;
  rest: Record<string, unknown>;
};

/** The same limit as for whole answers: guardrails do not read beyond it. */
const charsMax = 16_777_216;
/**
 * A text takes two bytes per character if one of its characters is wide. Each piece of a text, choice and call takes
 * some more.
 */
const charBytes = 2;
const pieceBytes = 64;
const partBytes = 512;

/** Assembles the events of a stream into the answer that they are pieces of, as far as guardrails read it. */
export type StreamAnswerBuilder = {
  /** Whether the answer is too long for guardrails to check. */
  readonly isTooLong: boolean;
  /** Reads one event. Returns approximately how many bytes the retained part takes. */
  add(payload: string): number;
  /** Returns an event of the same stream without content, with these members. */
  eventWith(members: object): string;
  /** Returns the answer as JSON. */
  body(): Buffer;
};

/** The builders of operations whose events are not chunks of completions. */
const builders: Readonly<Partial<Record<CallOperation, () => StreamAnswerBuilder>>> = {
  messages: () => new MessageBuilder(charsMax),
  responses: () => new ResponseBuilder(charsMax),
  generate_content: () => new CandidateBuilder(charsMax),
};

export const buildStreamAnswer = (operation: CallOperation): StreamAnswerBuilder =>
  builders[operation]?.() ?? new CompletionBuilder(operation === 'chat');

/** Of chat or completions: the text of each choice, in any member, and its tool calls. */
class CompletionBuilder implements StreamAnswerBuilder {
  readonly #isChat: boolean;
  readonly #choices = new Map<number, Choice>();
  #head: Readonly<Record<string, unknown>> = {};
  #chars = 0;
  #bytes = 0;

  constructor(isChat: boolean) {
    this.#isChat = isChat;
  }

  get isTooLong(): boolean {
    return this.#chars > charsMax;
  }

  add(payload: string): number {
    const before = this.#bytes;
    const { choices, usage: _usage, ...head } = asRecord(JSON.parse(payload));
    if (this.#head['id'] === undefined) this.#head = head;
    if (Array.isArray(choices)) for (const choice of choices) this.#addChoice(asRecord(choice));
    return this.#bytes - before;
  }

  eventWith(members: object): string {
    const { id, object, created, model } = this.#head;
    return JSON.stringify({ id, object, created, model, choices: [], ...members });
  }

  body(): Buffer {
    const isChat = this.#isChat;
    const { id, created, model } = this.#head;
    const choices = [...this.#choices]
      .toSorted(([a], [b]) => a - b)
      .map(([index, { texts, calls, rest }]) => {
        const said = joined(texts);
        if (!isChat) return { index, ...rest, ...said };
        const toolCalls = [...calls.values()].map((call) => ({ type: 'function', function: joined(call) }));
        const called = toolCalls.length === 0 ? {} : { tool_calls: toolCalls };
        return { index, ...rest, message: { role: 'assistant', content: null, ...said, ...called } };
      });
    const object = isChat ? 'chat.completion' : 'text_completion';
    return Buffer.from(JSON.stringify({ id, object, created, model, choices }));
  }

  #addChoice({ index, delta, text, finish_reason: reason }: Readonly<Record<string, unknown>>): void {
    const key = typeof index === 'number' ? index : 0;
    let choice = this.#choices.get(key);
    if (choice === undefined) {
      this.#choices.set(key, (choice = { texts: new Map(), calls: new Map(), rest: {} }));
      this.#bytes += partBytes;
    }
    if (typeof reason === 'string') choice.rest['finish_reason'] = reason;
    if (typeof text === 'string') this.#append(choice.texts, 'text', text);
    const { tool_calls: toolCalls, function_call: called, audio, ...said } = asRecord(delta);
    for (const [member, value] of Object.entries(said)) {
      if (typeof value === 'string' && member !== 'role') this.#append(choice.texts, member, value);
      if (member !== 'content' || !Array.isArray(value)) continue;
      for (const { text: part } of value.map(asRecord)) {
        if (typeof part === 'string') this.#append(choice.texts, member, part);
      }
    }
    const { transcript } = asRecord(audio);
    if (typeof transcript === 'string') this.#append(choice.texts, 'transcript', transcript);
    if (called !== undefined) this.#addCall(choice, -1, asRecord(called));
    for (const [position, call] of (Array.isArray(toolCalls) ? toolCalls : []).map(asRecord).entries()) {
      const { index: of, function: given, custom } = call;
      this.#addCall(choice, typeof of === 'number' ? of : position, { ...asRecord(given), ...asRecord(custom) });
    }
  }

  #addCall({ calls }: Choice, index: number, pieces: Readonly<Record<string, unknown>>): void {
    let call = calls.get(index);
    if (call === undefined) {
      calls.set(index, (call = new Map()));
      this.#bytes += partBytes;
    }
    const { name, arguments: given, input } = pieces;
    if (typeof name === 'string') this.#append(call, 'name', name);
    for (const piece of [given, input]) if (typeof piece === 'string') this.#append(call, 'arguments', piece);
  }

  #append(texts: Map<string, string[]>, member: string, piece: string): void {
    if (piece === '') return;
    const pieces = texts.get(member);
    if (pieces === undefined) texts.set(member, [piece]);
    else pieces.push(piece);
    this.#chars += piece.length;
    this.#bytes += charBytes * piece.length + (pieces === undefined ? partBytes : pieceBytes);
  }
}

const joined = (texts: ReadonlyMap<string, string[]>): Record<string, string> =>
  Object.fromEntries([...texts].map(([member, pieces]) => [member, pieces.join('')]));

import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import type { AnswerHead, ChoiceWriter, FinishReason, StreamWriter, Thought, TokenCounts } from '../turns/answer.ts';
import type { Json } from '../turns/json-value.ts';
import {
  encodeCall,
  encodeHead,
  encodeImage,
  encodeSaid,
  encodeStatus,
  encodeUsage,
  refusalPart,
  textPart,
} from './encode-answer.ts';
import { deltaEvent, EventNumbers, type Place, wholeEvent } from './item-events.ts';
import { encodeReasoning, newId } from './reasoning.ts';
import { readTools, unwrapInput, type Tools } from './tool-names.ts';

/** The last event repeats the whole answer. No model writes so much. */
const charsMax = 8_388_608;
const charBytes = 2;
/** The members of an item in addition to its content. */
const itemChars = 200;

type Part = { kind: 'text' | 'refusal'; block: number | undefined; pieces: string[] };
type OpenMessage = { kind: 'message'; place: Place; done: Json[]; part: Part | null };
type OpenThought = { kind: 'thought'; place: Place; block: number; pieces: string[]; signature: string; data?: string };
type OpenCall = { place: Place; item: Json; isCustom: boolean; pieces: string[] };

/**
 * Writes one stream of the Responses API. Text and reasoning end when something else follows; calls end with the answer,
 * because a provider can continue each of them until then. The content is charged to the call, because the last event
 * repeats it.
 */
export class ResponseWriter implements StreamWriter, ChoiceWriter {
  readonly #head: AnswerHead;
  readonly #call: Call;
  readonly #response: Json;
  readonly #tools: Tools;
  readonly #numbers = new EventNumbers();
  readonly #output: Json[] = [];
  readonly #calls = new Map<string | number, OpenCall>();
  #items = 0;
  #chars = 0;
  #started = false;
  #open: OpenMessage | OpenThought | null = null;
  #hasRefusal = false;
  #reason: FinishReason | null = null;
  #counts: TokenCounts | null = null;

  constructor(head: AnswerHead, call: Call) {
    const body = call.json();
    this.#head = head;
    this.#call = call;
    this.#response = encodeHead(head, body);
    this.#tools = readTools(body);
  }

  /** A response has one choice; requests cannot ask for more. */
  choice(): ChoiceWriter {
    return this;
  }

  start(): string[] {
    if (this.#started) return [];
    this.#started = true;
    const members = { response: this.#response };
    return [this.#numbers.event('created', members), this.#numbers.event('in_progress', members)];
  }

  text(text: string, block?: number): string[] {
    return text === '' ? [] : this.#say('text', text, block);
  }

  refusal(text: string): string[] {
    this.#hasRefusal = true;
    return this.#say('refusal', text, undefined);
  }

  thought({ thinking = '', signature = '', data }: Thought, block: number): string[] {
    const payloads = this.#enterThought(block);
    const open = this.#open as OpenThought;
    open.signature += signature;
    if (data !== undefined) open.data = data;
    this.#retain(thinking.length + signature.length + (data?.length ?? 0));
    if (thinking === '') return payloads;
    const at = { ...open.place, summary_index: 0 };
    if (open.pieces.length === 0) {
      payloads.push(this.#numbers.event('reasoning_summary_part.added', { ...at, part: summaryPart('') }));
    }
    open.pieces.push(thinking);
    payloads.push(deltaEvent(this.#numbers, 'summary', at, thinking));
    return payloads;
  }

  image(url: string): string[] {
    const payloads = [...this.start(), ...this.#leave()];
    const item = encodeImage(url);
    this.#retain(url.length);
    const place = this.#place(String(item['id']));
    const empty = { ...item, status: 'in_progress', result: null };
    return [...payloads, this.#added(place, empty), this.#done(place, item)];
  }

  extension(): string[] {
    return [];
  }

  toolCall(key: string | number, call: { id: string; name: string; arguments?: string }): string[] {
    const payloads = [...this.start(), ...this.#leave()];
    const item = encodeCall(this.#tools, { ...call, arguments: '' }, 'in_progress');
    this.#retain(call.id.length + call.name.length);
    const place = this.#place(String(item['id']));
    this.#calls.set(key, { place, item, isCustom: item['type'] === 'custom_tool_call', pieces: [] });
    return [...payloads, this.#added(place, item), ...this.toolArguments(key, call.arguments ?? '')];
  }

  /** The input of a custom tool is written when it is whole, because its pieces are JSON. */
  toolArguments(key: string | number, fragment: string): string[] {
    const open = this.#calls.get(key);
    if (open === undefined || fragment === '') return [];
    this.#retain(fragment.length);
    open.pieces.push(fragment);
    return open.isCustom ? [] : [deltaEvent(this.#numbers, 'function_call', open.place, fragment)];
  }

  hasToolCalls(): boolean {
    return this.#calls.size > 0;
  }

  finish(reason: FinishReason): string[] {
    this.#reason = reason;
    return this.start();
  }

  usage(counts: TokenCounts): string[] {
    this.#counts = counts;
    return [];
  }

  end(): string[] {
    const reason = this.#reason;
    if (reason === null) return [];
    this.#reason = null;
    const ending = encodeStatus(reason, this.#hasRefusal);
    const status = String(ending['status']);
    const payloads = [...this.start(), ...this.#leave(status)];
    for (const call of this.#calls.values()) payloads.push(...this.#endCall(call, status));
    const response = { ...this.#response, ...ending, output: this.#output, usage: encodeUsage(this.#counts) };
    payloads.push(this.#numbers.event(status, { response }));
    return payloads;
  }

  #say(kind: Part['kind'], text: string, block: number | undefined): string[] {
    const payloads = this.#open?.kind === 'message' ? [] : this.#enterMessage();
    const open = this.#open as OpenMessage;
    let { part } = open;
    if (part !== null && (part.kind !== kind || (block !== undefined && part.block !== block))) {
      payloads.push(...this.#endPart(open));
      part = null;
    }
    if (part === null) {
      part = open.part = { kind, block, pieces: [] };
      const empty = kind === 'text' ? textPart('') : refusalPart('');
      payloads.push(this.#numbers.event('content_part.added', { ...placeOfPart(open), part: empty }));
    }
    this.#retain(text.length);
    part.pieces.push(text);
    payloads.push(deltaEvent(this.#numbers, kind, placeOfPart(open), text));
    return payloads;
  }

  #enterMessage(): string[] {
    const payloads = [...this.start(), ...this.#leave()];
    const place = this.#place(newId('msg'));
    this.#open = { kind: 'message', place, done: [], part: null };
    payloads.push(this.#added(place, encodeSaid(place.item_id, 'in_progress', [])));
    return payloads;
  }

  #enterThought(block: number): string[] {
    if (this.#open?.kind === 'thought' && this.#open.block === block) return [];
    const payloads = [...this.start(), ...this.#leave()];
    const place = this.#place(newId('rs'));
    this.#open = { kind: 'thought', place, block, pieces: [], signature: '' };
    payloads.push(this.#added(place, encodeReasoning(place.item_id, this.#head.signer, {})));
    return payloads;
  }

  /** Ends the open message or reasoning. */
  #leave(status = 'completed'): string[] {
    const open = this.#open;
    if (open === null) return [];
    this.#open = null;
    if (open.kind === 'message') {
      const payloads = this.#endPart(open);
      payloads.push(this.#done(open.place, encodeSaid(open.place.item_id, status, open.done)));
      return payloads;
    }
    const { place, pieces, signature, data } = open;
    const payloads: string[] = [];
    const thinking = pieces.join('');
    if (thinking !== '') {
      const at = { ...place, summary_index: 0 };
      payloads.push(wholeEvent(this.#numbers, 'summary', at, thinking));
      payloads.push(this.#numbers.event('reasoning_summary_part.done', { ...at, part: summaryPart(thinking) }));
    }
    const signed = { thinking, signature, ...(data === undefined ? {} : { data }) };
    payloads.push(this.#done(place, encodeReasoning(place.item_id, this.#head.signer, signed)));
    return payloads;
  }

  #endPart(open: OpenMessage): string[] {
    const { part } = open;
    if (part === null) return [];
    const at = placeOfPart(open);
    const whole = part.pieces.join('');
    const done = part.kind === 'text' ? textPart(whole) : refusalPart(whole);
    open.done.push(done);
    open.part = null;
    return [
      wholeEvent(this.#numbers, part.kind, at, whole),
      this.#numbers.event('content_part.done', { ...at, part: done }),
    ];
  }

  #endCall({ place, item, isCustom, pieces }: OpenCall, status: string): string[] {
    const written = pieces.join('');
    if (!isCustom) {
      const whole = written === '' ? '{}' : written;
      return [
        wholeEvent(this.#numbers, 'function_call', place, whole),
        this.#done(place, { ...item, status, arguments: whole }),
      ];
    }
    const input = unwrapInput(written);
    return [
      ...(input === '' ? [] : [deltaEvent(this.#numbers, 'custom_tool_call', place, input)]),
      wholeEvent(this.#numbers, 'custom_tool_call', place, input),
      this.#done(place, { ...item, status, input }),
    ];
  }

  #place(id: string): Place {
    this.#retain(itemChars + id.length);
    this.#items += 1;
    return { item_id: id, output_index: this.#items - 1 };
  }

  #added({ output_index }: Place, item: Json): string {
    return this.#numbers.event('output_item.added', { output_index, item });
  }

  #done({ output_index }: Place, item: Json): string {
    this.#output[output_index] = item;
    return this.#numbers.event('output_item.done', { output_index, item });
  }

  /** Throws provider_failed for an answer that is too large, and the error of the memory that has no room for it. */
  #retain(chars: number): void {
    this.#chars += chars;
    if (this.#chars > charsMax) {
      const problem = `The provider sent an answer with more than ${charsMax} characters, which cannot be streamed as a response.`;
      throw new GatewayError('provider_failed', 'upstream_response_too_large', problem);
    }
    this.#call.retain?.(charBytes * chars);
  }
}

const placeOfPart = ({ place, done }: OpenMessage): Json => ({ ...place, content_index: done.length });

const summaryPart = (text: string): Json => ({ type: 'summary_text', text });

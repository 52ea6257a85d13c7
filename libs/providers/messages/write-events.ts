import { GatewayError } from '#libs/kernel/errors.ts';
import { claudeSigner } from '../anthropic/decode.ts';
import type { AnswerHead, ChoiceWriter, FinishReason, StreamWriter, Thought, TokenCounts } from '../turns/answer.ts';
import type { Json } from '../turns/json-value.ts';
import { wrapSignature } from '../turns/signatures.ts';
import { callIdFor, encodeHead, encodeImage, encodeStop, encodeUsage } from './encode-answer.ts';

type Block = { key: string; kind: 'text' | 'thinking' | 'tool_use'; isSigned: boolean };

/**
 * Writes one stream of Anthropic's Messages API (platform.claude.com/docs, "Streaming messages"): blocks follow each other, and
 * the reason why the answer ended comes with its usage, last.
 */
export class MessageWriter implements StreamWriter, ChoiceWriter {
  readonly #head: AnswerHead;
  #started = false;
  #blocks = 0;
  #open: Block | null = null;
  #calls = 0;
  #refusal = '';
  #reason: FinishReason | null = null;
  #counts: TokenCounts | null = null;

  constructor(head: AnswerHead) {
    this.#head = head;
  }

  /** A message has one choice; requests cannot ask for more. */
  choice(): ChoiceWriter {
    return this;
  }

  start(): string[] {
    if (this.#started) return [];
    this.#started = true;
    return [JSON.stringify({ type: 'message_start', message: encodeHead(this.#head) })];
  }

  text(text: string, block?: number): string[] {
    if (text === '') return [];
    const key = block === undefined && this.#open?.kind === 'text' ? this.#open.key : `text ${block}`;
    return [...this.#enter(key, 'text', { type: 'text', text: '' }), this.#delta({ type: 'text_delta', text })];
  }

  thought({ thinking, signature, data }: Thought, block: number): string[] {
    const { signer } = this.#head;
    if (data !== undefined) {
      return this.#whole({ type: 'redacted_thinking', data: wrapSignature(claudeSigner, signer, data) });
    }
    const payloads = this.#enter(`thinking ${block}`, 'thinking', { type: 'thinking', thinking: '', signature: '' });
    if (thinking !== undefined && thinking !== '') payloads.push(this.#delta({ type: 'thinking_delta', thinking }));
    if (signature !== undefined) payloads.push(this.#sign(signature));
    return payloads;
  }

  image(url: string): string[] {
    return this.#whole(encodeImage(url));
  }

  refusal(text: string): string[] {
    this.#refusal += text;
    return [];
  }

  extension(): string[] {
    return [];
  }

  toolCall(key: string | number, call: { id: string; name: string; arguments?: string }): string[] {
    this.#calls += 1;
    const start = { type: 'tool_use', id: callIdFor(call.id), name: call.name, input: {} };
    return [...this.#enter(`call ${key}`, 'tool_use', start), ...this.toolArguments(key, call.arguments ?? '')];
  }

  /** Throws provider_failed for the arguments of a call that another one followed, because its block has ended. */
  toolArguments(key: string | number, fragment: string): string[] {
    if (fragment === '') return [];
    if (this.#open?.key === `call ${key}`) {
      return [this.#delta({ type: 'input_json_delta', partial_json: fragment })];
    }
    const problem = 'The provider continued a tool call after other content had followed it.';
    throw new GatewayError('provider_failed', 'upstream_invalid_response', problem);
  }

  hasToolCalls(): boolean {
    return this.#calls > 0;
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
    const delta = encodeStop(reason, this.hasToolCalls(), this.#refusal);
    return [
      ...this.start(),
      ...this.#leave(),
      JSON.stringify({ type: 'message_delta', delta, usage: encodeUsage(this.#counts) }),
      JSON.stringify({ type: 'message_stop' }),
    ];
  }

  /** Begins a block, unless it is the one that is open. */
  #enter(key: string, kind: Block['kind'], start: Json): string[] {
    if (this.#open?.key === key) return [];
    const payloads = [...this.start(), ...this.#leave(), this.#startBlock(start)];
    this.#open = { key, kind, isSigned: false };
    return payloads;
  }

  #leave(): string[] {
    if (this.#open === null) return [];
    const { kind, isSigned } = this.#open;
    // Reasoning without a signature still has an author, who alone gets it back.
    const payloads = kind === 'thinking' && !isSigned && this.#head.signer !== claudeSigner ? [this.#sign('')] : [];
    this.#open = null;
    payloads.push(this.#endBlock());
    return payloads;
  }

  #whole(block: Json): string[] {
    return [...this.start(), ...this.#leave(), this.#startBlock(block), this.#endBlock()];
  }

  #sign(text: string): string {
    if (this.#open) this.#open.isSigned = true;
    return this.#delta({ type: 'signature_delta', signature: wrapSignature(claudeSigner, this.#head.signer, text) });
  }

  #startBlock(block: Json): string {
    this.#blocks += 1;
    return JSON.stringify({ type: 'content_block_start', index: this.#blocks - 1, content_block: block });
  }

  #endBlock(): string {
    return JSON.stringify({ type: 'content_block_stop', index: this.#blocks - 1 });
  }

  #delta(delta: Json): string {
    return JSON.stringify({ type: 'content_block_delta', index: this.#blocks - 1, delta });
  }
}

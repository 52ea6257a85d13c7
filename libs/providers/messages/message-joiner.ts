import { claudeSigner } from '../anthropic/decode.ts';
import { asCount, asText, type Json, parseJson, toRecord } from '../turns/json-value.ts';
import { wrapSignature } from '../turns/signatures.ts';
import { type Shown, StreamJoiner } from '../turns/stream-joiner.ts';

/** Reasoning that broke off has no signature. This signer is not a model, so the reasoning is never sent to one. */
const brokenSigner = 'broken';

const shownByDelta: Readonly<Record<string, Shown>> = {
  text_delta: 'text',
  thinking_delta: 'reasoning',
  signature_delta: 'reasoning',
};
const shownByBlock: Readonly<Record<string, Shown>> = {
  text: 'nothing',
  thinking: 'reasoning',
  redacted_thinking: 'reasoning',
};

/** Joins streams of Anthropic's Messages API. There is one `message_start`, and the blocks of all streams are counted together. */
export class MessageJoiner extends StreamJoiner {
  #blocks = 0;
  #offset = 0;
  #open: { index: number; isUnsigned: boolean } | null = null;

  read(payload: string): number {
    const { type, index, delta, content_block: block } = toRecord(parseJson(payload));
    switch (type) {
      case 'message_start':
      case 'ping':
        return 0;
      case 'content_block_start':
        return this.#startBlock(asCount(index), toRecord(block));
      case 'content_block_delta':
        return this.#readDelta(toRecord(delta));
      case 'content_block_stop':
        this.#open = null;
        return 0;
      default:
        return this.show('other');
    }
  }

  #startBlock(index: number, { type, text }: Json): number {
    this.#blocks = Math.max(this.#blocks, index + 1);
    this.#open = { index, isUnsigned: type === 'thinking' };
    const first = asText(text) ?? '';
    return first === '' ? this.show(shownByBlock[String(type)] ?? 'other') : this.show('text', first);
  }

  #readDelta({ type, text }: Json): number {
    if (type === 'signature_delta' && this.#open !== null) this.#open.isUnsigned = false;
    return this.show(shownByDelta[String(type)] ?? 'other', asText(text));
  }

  startNext(): readonly string[] {
    this.#offset = this.#blocks;
    if (this.#open === null) return [];
    const { index, isUnsigned } = this.#open;
    this.#open = null;
    const end = JSON.stringify({ type: 'content_block_stop', index });
    if (!isUnsigned) return [end];
    const delta = { type: 'signature_delta', signature: wrapSignature(claudeSigner, brokenSigner, '') };
    return [JSON.stringify({ type: 'content_block_delta', index, delta }), end];
  }

  rewrite(payload: string): string | null {
    const event = JSON.parse(payload) as Json;
    if (event['type'] === 'message_start') return null;
    if (event['index'] === undefined) return payload;
    return JSON.stringify({ ...event, index: asCount(event['index']) + this.#offset });
  }
}

import type { Usage } from '#libs/prices/usage.ts';
import { mergeCounts, readMessageUsage } from '#libs/providers/messages/message-usage.ts';
import { asRecord } from '../usage.ts';
import { RepeatedShape } from './repeated-shape.ts';
import type { PayloadView, StreamMeter } from './stream-meter.ts';

/** Meters one stream of Anthropic's Messages API. A class because one is made for every such call. */
export class MessageMeter implements StreamMeter {
  #counts: Readonly<Record<string, unknown>> = {};
  #model: string | null = null;
  #stopReason: string | null = null;
  #chars = 0;
  readonly #shape = new RepeatedShape();

  read(payload: string): PayloadView {
    const repeated = this.#shape.findText(payload);
    if (repeated !== null) {
      this.#chars += repeated.length;
      return 'chunk';
    }
    let parsed: unknown;
    try {
      parsed = JSON.parse(payload);
    } catch {
      return 'unreadable';
    }
    const { type, message, delta, usage } = asRecord(parsed);
    if (typeof type !== 'string') return 'unreadable';
    if (type === 'error') return 'error';
    if (type === 'message_start') {
      const { model, usage: counts } = asRecord(message);
      if (typeof model === 'string') this.#model = model;
      this.#counts = mergeCounts(this.#counts, counts);
    } else if (type === 'content_block_delta') {
      const { text, thinking, partial_json: json } = asRecord(delta);
      for (const piece of [text, thinking, json]) if (typeof piece === 'string') this.#chars += piece.length;
      if (typeof text === 'string' && thinking === undefined && json === undefined) this.#shape.learn(payload, text);
    } else if (type === 'message_delta') {
      const { stop_reason: reason } = asRecord(delta);
      if (typeof reason === 'string') this.#stopReason = reason;
      this.#counts = mergeCounts(this.#counts, usage);
    }
    return 'chunk';
  }

  /** null until the end: the counts at the start have no output. */
  usage(): Usage | null {
    return this.#stopReason === null ? null : readMessageUsage(this.#counts);
  }

  model(): string | null {
    return this.#model;
  }

  finishReason(): string | null {
    return this.#stopReason;
  }

  allFinished(): boolean {
    return this.#stopReason !== null;
  }

  chars(): number {
    return this.#chars;
  }

  missingUsageChunk(): null {
    return null;
  }
}

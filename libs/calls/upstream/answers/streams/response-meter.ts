import type { Usage } from '#libs/prices/usage.ts';
import { asRecord, readAnswerUsage, readResponseEnd } from '../usage.ts';
import type { PayloadView, StreamMeter } from './stream-meter.ts';

/** The events that end a stream. Both have the whole response. */
const lastEvents: ReadonlySet<unknown> = new Set(['response.completed', 'response.incomplete']);

/** Meters one stream of the Responses API. A class because one is made for every such call. */
export class ResponseMeter implements StreamMeter {
  #usage: Usage | null = null;
  #model: string | null = null;
  #end: string | null = null;
  #chars = 0;

  read(payload: string): PayloadView {
    let parsed: unknown;
    try {
      parsed = JSON.parse(payload);
    } catch {
      return 'unreadable';
    }
    const { type, response, delta } = asRecord(parsed);
    if (typeof type !== 'string') return 'unreadable';
    if (type === 'error' || type === 'response.failed') return 'error';
    if (typeof delta === 'string') this.#chars += delta.length;
    if (response === undefined) return 'chunk';
    const whole = asRecord(response);
    if (typeof whole['model'] === 'string') this.#model = whole['model'];
    if (lastEvents.has(type)) {
      this.#usage = readAnswerUsage(whole);
      this.#end = readResponseEnd(whole) ?? type;
    }
    return 'chunk';
  }

  usage(): Usage | null {
    return this.#usage;
  }

  model(): string | null {
    return this.#model;
  }

  finishReason(): string | null {
    return this.#end;
  }

  allFinished(): boolean {
    return this.#end !== null;
  }

  chars(): number {
    return this.#chars;
  }

  missingUsageChunk(): null {
    return null;
  }
}

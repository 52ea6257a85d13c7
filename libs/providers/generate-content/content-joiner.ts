import { type Json, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { StreamJoiner } from '../turns/stream-joiner.ts';

/** Joins streams of Gemini's API, whose pieces are complete answers. All have the ID of the first one. */
export class ContentJoiner extends StreamJoiner {
  #identity: Json | null = null;

  read(payload: string): number {
    const { candidates, promptFeedback, responseId } = toRecord(parseJson(payload));
    this.#identity ??= responseId === undefined ? {} : { responseId };
    if (promptFeedback !== undefined) this.show('other');
    return toRecords(candidates).reduce((retained, candidate) => retained + this.#readCandidate(candidate), 0);
  }

  #readCandidate({ index = 0, content, finishReason }: Json): number {
    if (index !== 0 || finishReason !== undefined) return this.show('other');
    return toRecords(toRecord(content)['parts']).reduce((retained, part) => retained + this.#readPart(part), 0);
  }

  #readPart({ text, thought, thoughtSignature: _signature, ...rest }: Json): number {
    if (typeof text !== 'string' || Object.keys(rest).length > 0) return this.show('other');
    if (thought === true) return this.show('reasoning');
    return text === '' ? 0 : this.show('text', text);
  }

  startNext(): readonly string[] {
    return [];
  }

  rewrite(payload: string): string {
    return JSON.stringify({ ...(JSON.parse(payload) as Json), ...this.#identity });
  }
}

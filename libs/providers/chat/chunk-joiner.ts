import { asCount, asText, type Json, parseJson, toRecord, toRecords } from '../turns/json-value.ts';
import { StreamJoiner } from '../turns/stream-joiner.ts';

/** How providers name the pieces of reasoning. */
const reasoningMembers: ReadonlySet<string> = new Set([
  'reasoning_content',
  'reasoning',
  'reasoning_details',
  'content_blocks',
]);
const isEmpty = (value: unknown): boolean =>
  value === null || value === '' || (Array.isArray(value) && value.length === 0);

/** Joins streams of chat completions. All chunks have the ID, the time and the model of the first one (SSE-2). */
export class ChunkJoiner extends StreamJoiner {
  #frame: Json | null = null;
  #blocks = 0;
  #offset = 0;

  read(payload: string): number {
    const { id, created, model, choices } = toRecord(parseJson(payload));
    this.#frame ??= { id, created, model };
    return toRecords(choices).reduce((retained, choice) => retained + this.#readChoice(choice), 0);
  }

  #readChoice({ index, delta, finish_reason: reason }: Json): number {
    if ((index ?? 0) !== 0 || !isEmpty(reason ?? null)) return this.show('other');
    let retained = 0;
    for (const [name, value] of Object.entries(toRecord(delta))) {
      if (name === 'role' || isEmpty(value)) continue;
      if (name === 'content') retained += this.show('text', asText(value));
      else this.show(reasoningMembers.has(name) ? 'reasoning' : 'other');
      if (name === 'content_blocks') {
        for (const block of toRecords(value)) this.#blocks = Math.max(this.#blocks, asCount(block['index']) + 1);
      }
    }
    return retained;
  }

  startNext(): readonly string[] {
    this.#offset = this.#blocks;
    return [];
  }

  rewrite(payload: string): string | null {
    const chunk: Json = { ...(JSON.parse(payload) as Json), ...this.#frame };
    const all = toRecords(chunk['choices']);
    const choices = all.flatMap((choice) => this.#rewriteChoice(choice));
    return all.length > 0 && choices.length === 0 ? null : JSON.stringify({ ...chunk, choices });
  }

  /** Empty for a choice that has only the role, because the first stream had it. */
  #rewriteChoice(choice: Json): Json[] {
    const { role: _role, content_blocks: blocks, ...delta } = toRecord(choice['delta']);
    const isOver = asText(choice['finish_reason']) !== undefined;
    if (blocks === undefined) return isOver || !Object.values(delta).every(isEmpty) ? [{ ...choice, delta }] : [];
    const moved = toRecords(blocks).map((block) => ({ ...block, index: asCount(block['index']) + this.#offset }));
    return [{ ...choice, delta: { ...delta, content_blocks: moved } }];
  }
}

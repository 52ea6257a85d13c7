/** A JSON string of these characters stands for itself: there is nothing to unescape, and nothing that could end it. */
const plain = /^[ !#-[\]-\uffff]*$/;
const textMember = /"(?:content|text)":\s*"$/;
/** Random text with which OpenAI hides the lengths of its chunks. */
const paddingMember = /"obfuscation":\s*"/;
/** After this many shapes, the chunks of a stream are parsed: they differ in more than their text. */
const shapesMax = 8;

/**
 * Most chunks of a stream are the same JSON text around another piece of the answer. Such a chunk is recognised by
 * comparing texts, and need not be parsed: a stream of 43 events costs about 4 % less that way.
 */
export class RepeatedShape {
  #before = '';
  #between = '';
  #after = '';
  #shapes = 0;

  /** Remembers a chunk. `text`: the only string in it that other chunks change, apart from the padding. */
  learn(chunk: string, text: string): void {
    if (this.#shapes === shapesMax || text === '' || !plain.test(text)) return;
    const token = `"${text}"`;
    const at = chunk.indexOf(token) + 1;
    if (at === 0 || chunk.indexOf(token, at) !== -1) return;
    const before = chunk.slice(0, at);
    if (!textMember.test(before)) return;
    this.#shapes += 1;
    const rest = chunk.slice(at + text.length);
    const padding = paddingMember.exec(rest);
    const paddingAt = padding === null ? 0 : padding.index + padding[0].length;
    this.#before = copy(before);
    this.#between = copy(rest.slice(0, paddingAt));
    this.#after = copy(padding === null ? rest : rest.slice(rest.indexOf('"', paddingAt)));
  }

  /** The text of a chunk that is equal to the remembered one apart from its text and its padding; null for others. */
  findText(chunk: string): string | null {
    const { length } = this.#before;
    // Comparing a slice takes half the time of startsWith.
    if (length === 0 || chunk.slice(0, length) !== this.#before) return null;
    const textEnd = chunk.indexOf('"', length);
    let at = textEnd;
    if (this.#between !== '') {
      const padding = textEnd + this.#between.length;
      if (chunk.slice(textEnd, padding) !== this.#between) return null;
      at = chunk.indexOf('"', padding);
      if (!plain.test(chunk.slice(padding, at))) return null;
    }
    if (at === -1 || chunk.slice(at) !== this.#after) return null;
    const text = chunk.slice(length, textEnd);
    return plain.test(text) ? text : null;
  }
}

/** A slice keeps the whole text alive from which it was cut, here all bytes that came with the chunk. */
const copy = (text: string): string => Buffer.from(text).toString();

/**
 * A string of a JSON text, or everything between two strings (`value` is null). `text` is its source text; `path` is
 * the location of a string.
 */
export type JsonToken = { text: string; value: string | null; isName: boolean; path: string };

/**
 * Divides a valid JSON text into tokens, which can be joined to the text again. Any depth is allowed, and no member is
 * lost.
 */
export function* tokenizeJson(json: string): Generator<JsonToken> {
  /** The open objects and arrays: the current name of an object, null for an array. */
  const path: (string | null)[] = [];
  let at = 0;
  while (at < json.length) {
    const found = json.indexOf('"', at);
    const start = found === -1 ? json.length : found;
    if (start > at) {
      const text = json.slice(at, start);
      for (const [bracket] of text.matchAll(/[[\]{}]/g)) {
        if (bracket === '{') path.push('');
        else if (bracket === '[') path.push(null);
        else path.pop();
      }
      yield { text, value: null, isName: false, path: '' };
    }
    at = start === json.length ? start : endOfString(json, start);
    if (at === start) return;
    const text = json.slice(start, at);
    const value = text.includes('\\') ? (JSON.parse(text) as string) : text.slice(1, -1);
    const isName = isColonNext(json, at);
    if (isName) path[path.length - 1] = value;
    yield { text, value, isName, path: path.length > pathMax ? '' : path.join('/') };
  }
}

/** Strings that are nested deeper have the same path. */
const pathMax = 50;

/** The position after the closing quote of the string that begins at `start`. */
function endOfString(json: string, start: number): number {
  for (let end = json.indexOf('"', start + 1); end !== -1; end = json.indexOf('"', end + 1)) {
    let backslashes = 0;
    while (json[end - 1 - backslashes] === '\\') backslashes += 1;
    if (backslashes % 2 === 0) return end + 1;
  }
  return json.length;
}

function isColonNext(json: string, at: number): boolean {
  let next = at;
  while (json[next] === ' ' || json[next] === '\n' || json[next] === '\r' || json[next] === '\t') next += 1;
  return json[next] === ':';
}

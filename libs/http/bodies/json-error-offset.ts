import { endOfString, jsonBytes, skipSpace } from '#libs/kernel/json/json-scan.ts';

const { backslash, closeBrace, closeBracket, colon, comma, openBrace, openBracket, quote } = jsonBytes;

const scalar = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.+-])/y;
const escape = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;

type Expectation = 'value' | 'first value' | 'key' | 'first key' | 'colon' | 'end';

/**
 * Returns the offset of the first byte at which the text stops being valid JSON, or its length if it ends too early or
 * is valid. Only used for the error message of a text that the parser rejected. The caller bounds its nesting and size.
 * Inside a string, it also names the exact byte (a raw line break, an invalid escape), where jsonc-parser only names
 * the string's start.
 */
export function jsonErrorOffset(bytes: Buffer): number {
  const text = bytes.toString('latin1'); // One character per byte, so that offsets agree.
  const open: number[] = [];
  let expects = 'value' as Expectation;
  let index = 0;
  for (;;) {
    index = skipSpace(bytes, index);
    const byte = bytes[index];
    if (byte === undefined) return bytes.length;
    const container = open.at(-1);
    if (expects === 'colon') {
      if (byte !== colon) return index;
      expects = 'value';
      index += 1;
    } else if (
      (byte === closeBrace && expects === 'first key') ||
      (byte === closeBracket && expects === 'first value')
    ) {
      open.pop();
      expects = 'end';
      index += 1;
    } else if (expects === 'end') {
      if (container === openBrace && byte === comma) expects = 'key';
      else if (container === openBracket && byte === comma) expects = 'value';
      else if (
        (container === openBrace && byte === closeBrace) ||
        (container === openBracket && byte === closeBracket)
      ) {
        open.pop();
      } else return index;
      index += 1;
    } else if (byte === quote) {
      const end = endOfString(bytes, index);
      const bad = badInString(text, index + 1, end);
      if (bad !== -1) return bad;
      if (end === bytes.length) return end;
      index = end + 1;
      expects = expects === 'key' || expects === 'first key' ? 'colon' : 'end';
    } else if (expects === 'key' || expects === 'first key') {
      return index;
    } else if (byte === openBrace || byte === openBracket) {
      open.push(byte);
      expects = byte === openBrace ? 'first key' : 'first value';
      index += 1;
    } else {
      scalar.lastIndex = index;
      if (!scalar.test(text)) return index;
      index = scalar.lastIndex;
      expects = 'end';
    }
  }
}

/** Offset of a raw control character or an invalid escape between `start` and `end`, or -1. */
function badInString(text: string, start: number, end: number): number {
  for (let index = start; index < end; index += 1) {
    const code = text.charCodeAt(index);
    if (code < 0x20) return index;
    if (code !== backslash) continue;
    escape.lastIndex = index;
    if (!escape.test(text)) return index;
    index = escape.lastIndex - 1;
  }
  return -1;
}

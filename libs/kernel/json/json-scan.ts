// Walks JSON text in its bytes without parsing values. Measuring, editing and searching a text all use this scanner.

/**
 * The bytes that give a text its structure (RFC 8259 section 2). Destructure them where they are used: an imported
 * constant is loaded again for every byte.
 */
export const jsonBytes = {
  quote: 0x22,
  comma: 0x2c,
  colon: 0x3a,
  openBracket: 0x5b,
  backslash: 0x5c,
  closeBracket: 0x5d,
  openBrace: 0x7b,
  closeBrace: 0x7d,
} as const;
const { quote, backslash } = jsonBytes;

/** The bytes at which `nextMark` stops: structure, and the characters of fractions. */
const isMark = new Uint8Array(256);
for (const mark of '",:[]{}.eE') isMark[mark.charCodeAt(0)] = 1;

/**
 * The index of the next mark at or after `from`, or the length of the bytes if there is none. At a quote, the scan has to
 * continue after `endOfString`.
 */
export function nextMark(bytes: Buffer, from: number): number {
  const { length } = bytes;
  let at = from;
  // Never reads beyond the end: a single such read makes the whole loop three times as slow.
  while (at < length && isMark[bytes[at] as number] === 0) at += 1;
  return at;
}

/** The index of the first byte at or after `from` that is not whitespace, or the length of the bytes. */
export function skipSpace(bytes: Buffer, from: number): number {
  const { length } = bytes;
  let at = from;
  for (; at < length; at += 1) {
    const byte = bytes[at];
    if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) break;
  }
  return at;
}

/**
 * Shorter strings are skipped byte by byte. The runtime's search is much faster, but starting it costs as much as this.
 */
const nearBytes = 64;

/** Index of the closing quote of the string that starts at `start`, or the length of the bytes if there is none. */
export function endOfString(bytes: Buffer, start: number): number {
  const { length } = bytes;
  let at = start + 1;
  for (let nearMax = nearBytes; ; nearMax *= 2) {
    const near = Math.min(length, at + nearMax);
    for (; at < near; at += 1) {
      const byte = bytes[at];
      if (byte === quote) return at;
      if (byte === backslash) at += 1;
    }
    const end = bytes.indexOf(quote, at);
    if (end === -1) return length;
    let slashes = 0;
    while (end - 1 - slashes >= at && bytes[end - 1 - slashes] === backslash) slashes += 1;
    if (slashes % 2 === 0) return end;
    // A string with one escaped quote can have millions, and a search for each would take ten times as long as this
    // loop.
    at = end + 1;
  }
}

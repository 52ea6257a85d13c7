import { isAscii } from 'node:buffer';

export type JsonMeasure = {
  /** The first limit that the text exceeds. It is read no further then, and the other figures are for what was read. */
  excess: 'depth' | 'members' | 'bytes' | 'work' | null;
  /** The deepest nesting of objects and arrays. */
  depth: number;
  /** Members of all objects together. */
  members: number;
  /** All values: objects, arrays, strings, numbers, literals. An upper bound, as an empty object or array counts as two. */
  values: number;
  /** Memory of the text as a JavaScript string, needed while it is parsed. */
  textBytes: number;
  /** Memory of the parsed value. */
  valueBytes: number;
};

// What each byte means outside strings (RFC 8259 section 2). All others are 0.
const quote = 1;
const comma = 2;
const colon = 3;
const openBracket = 4;
const openBrace = 5;
const close = 6;
const fraction = 7;
const kinds = new Uint8Array(256);
kinds[0x22] = quote;
kinds[0x2c] = comma;
kinds[0x3a] = colon;
kinds[0x5b] = openBracket;
kinds[0x7b] = openBrace;
kinds[0x5d] = close;
kinds[0x7d] = close;
for (const sign of '.eE') kinds[sign.charCodeAt(0)] = fraction;

const quoteByte = 0x22;
const backslash = 0x5c;

// The size of values in V8's heap on 64-bit machines without pointer compression, calibrated against JSON.parse of Node 24
// (measure-json.test.ts measures it again). Arrays of one kind of number, and objects of one shape, take less. Objects whose
// keys all differ take somewhat more, because each has a shape or dictionary of its own.
const objectBytes = 64;
const arrayBytes = 48;
const memberBytes = 80;
const elementBytes = 8;
const stringBytes = 24;
const fractionBytes = 8;
/** For each byte outside strings, because numbers with many digits are objects. */
const plainByteShare = 0.75;

/** Shorter strings are skipped byte by byte. The runtime's search is much faster, but starting it costs as much as this. */
const nearBytes = 64;

export type JsonLimits = {
  depthMax: number;
  membersMax: number;
  /** Memory of objects and arrays alone, which is enough to stop early. Default: no limit. */
  valueBytesMax?: number;
  /**
   * Time to parse and check the value. The unit is one number in an array, which takes 0.05 to 0.1 µs. Default: no limit.
   */
  workMax?: number;
};

/** An object or array takes as long as five numbers, and a member as seven, because its name may be new each time. */
const workOf = (commas: number, containers: number, members: number): number => commas + 5 * containers + 6 * members;

/**
 * Measures JSON bytes before they are parsed, in one pass and without recursion: nesting, members, values, and the memory
 * that `toString` and `JSON.parse` will take. The estimate of memory is at most about a third too low for any bytes, and at
 * most about three times too high for ordinary chats. Bytes that are not JSON are not rejected here but by the parser.
 */
export function measureJson(bytes: Buffer, limits: JsonLimits): JsonMeasure {
  const { length } = bytes;
  const { depthMax, membersMax, valueBytesMax = Number.POSITIVE_INFINITY, workMax = Number.POSITIVE_INFINITY } = limits;
  let excess: JsonMeasure['excess'] = null;
  let depth = 0;
  let deepest = 0;
  let members = 0;
  let objects = 0;
  let arrays = 0;
  let commas = 0;
  let strings = 0;
  let inStrings = 0;
  let fractions = 0;
  for (let index = 0; index < length; index += 1) {
    const kind = kinds[bytes[index] as number] as number;
    if (kind === 0) continue;
    if (kind === quote) {
      const end = endOfString(bytes, index);
      strings += 1;
      inStrings += end - index;
      index = end;
    } else if (kind === comma) {
      commas += 1;
    } else if (kind === colon) {
      members += 1;
      if (members > membersMax) {
        excess = 'members';
        break;
      }
    } else if (kind === close) {
      depth -= 1;
    } else if (kind === fraction) {
      fractions += 1;
    } else {
      if (kind === openBrace) objects += 1;
      else arrays += 1;
      // A part of the final sum, and enough to stop early.
      if (objects * objectBytes + arrays * arrayBytes > valueBytesMax) {
        excess = 'bytes';
        break;
      }
      if (workOf(commas, objects + arrays, members) > workMax) {
        excess = 'work';
        break;
      }
      depth += 1;
      if (depth > deepest) {
        deepest = depth;
        if (depth > depthMax) {
          excess = 'depth';
          break;
        }
      }
    }
  }
  if (workOf(commas, objects + arrays, members) > workMax) excess ??= 'work';
  const ascii = isAscii(bytes);
  // One character beyond Latin-1 makes a whole string two bytes wide. Escapes in ASCII can produce such characters.
  const stringWidth = ascii && !bytes.includes('\\u') ? 1 : 2;
  return {
    excess,
    depth: deepest,
    members,
    values: commas + objects + arrays + 1,
    textBytes: ascii ? length : 2 * length,
    valueBytes:
      objects * objectBytes +
      arrays * arrayBytes +
      members * (memberBytes - stringBytes) +
      commas * elementBytes +
      strings * stringBytes +
      inStrings * stringWidth +
      fractions * fractionBytes +
      Math.ceil((length - inStrings) * plainByteShare),
  };
}

/** Index of the closing quote of the string that starts at `start`, or the length of the bytes if there is none. */
export function endOfString(bytes: Buffer, start: number): number {
  const { length } = bytes;
  let at = start + 1;
  for (let nearMax = nearBytes; ; nearMax *= 2) {
    const near = Math.min(length, at + nearMax);
    for (; at < near; at += 1) {
      const byte = bytes[at];
      if (byte === quoteByte) return at;
      if (byte === backslash) at += 1;
    }
    const end = bytes.indexOf(quoteByte, at);
    if (end === -1) return length;
    let slashes = 0;
    while (end - 1 - slashes >= at && bytes[end - 1 - slashes] === backslash) slashes += 1;
    if (slashes % 2 === 0) return end;
    // A string with one escaped quote may have millions, and a search for each would take ten times as long as this loop.
    at = end + 1;
  }
}

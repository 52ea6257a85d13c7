import { isAscii } from 'node:buffer';

export type JsonMeasure = {
  /** The first limit that the text breaks. It is read no further then: the other figures are those up to there. */
  excess: 'depth' | 'members' | 'bytes' | 'work' | null;
  /** The deepest nesting of objects and arrays. */
  depth: number;
  /** Members of all objects together. */
  members: number;
  /** All values: objects, arrays, strings, numbers, literals. An upper bound: an empty object or array counts as two. */
  values: number;
  /** Of the text as a JavaScript string, which is alive while it is parsed. */
  textBytes: number;
  /** Of the parsed value. */
  valueBytes: number;
};

// RFC 8259 section 2. What a byte outside of strings is; other bytes are 0.
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

// What values take in V8's heap on 64-bit machines without pointer compression, calibrated against JSON.parse of Node 24
// (measure-json.test.ts measures it again). Lists of one kind of number, and objects of one shape, take less than this; objects
// whose keys are all different take somewhat more, because each then has a shape, or a dictionary, of its own.
const objectBytes = 64;
const arrayBytes = 48;
const memberBytes = 80;
const elementBytes = 8;
const stringBytes = 24;
const fractionBytes = 8;
/** For each byte that is in no string: numbers of many digits are objects. */
const plainByteShare = 0.75;

/** Shorter strings are skipped byte by byte: the runtime's search is faster by far, but costs as much to begin. */
const nearBytes = 64;

export type JsonLimits = {
  depthMax: number;
  membersMax: number;
  /** Of objects and arrays alone: enough to break off early. Default: any number. */
  valueBytesMax?: number;
  /**
   * How long the value takes to parse and to check, in numbers of a list: such a number takes 0.05 to 0.1 µs. Default: any
   * time.
   */
  workMax?: number;
};

/** An object or array takes as long as five numbers, and a member, whose name may be new each time, as seven. */
const workOf = (commas: number, containers: number, members: number): number => commas + 5 * containers + 6 * members;

/**
 * Measures JSON bytes before they are parsed, in one pass and without recursion: nesting, members, values, and the bytes of
 * memory that `toString` and `JSON.parse` will take. The estimate is at most about a third too low, whatever the bytes are;
 * for ordinary chats it is at most about three times too high. Bytes that are not JSON may pass; the parser refuses those.
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
      // Enough of the sum to end early: what is there of so many is not to be parsed.
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
  // One character beyond Latin-1 makes a whole string two bytes wide; escapes make such characters of ASCII.
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

/** Index of the quote that ends the string that starts at `start`; the length of the bytes when none does. */
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
    // A string with one escaped quote may have millions: a search for each of them would take ten times as long.
    at = end + 1;
  }
}

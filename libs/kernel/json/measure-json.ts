import { isAscii } from 'node:buffer';
import type { JsonOutline } from './json-outline.ts';
import { endOfString, jsonBytes, nextMark } from './json-scan.ts';

const { closeBrace, closeBracket, colon, comma, openBrace, openBracket, quote } = jsonBytes;

export type JsonMeasure = {
  /**
   * The first limit that the text exceeds. The rest of the text is not read in that case, and the other figures cover
   * only the part before.
   */
  excess: 'depth' | 'members' | 'bytes' | 'work' | null;
  /** The deepest nesting of objects and arrays. */
  depth: number;
  /** Members of all objects together. */
  members: number;
  /**
   * All values: objects, arrays, strings, numbers, literals. An upper bound, as an empty object or array counts as two.
   */
  values: number;
  /** Memory of the text as a JavaScript string, needed while it is parsed. */
  textBytes: number;
  /** Memory of the parsed value. */
  valueBytes: number;
};

// The size of values in V8's heap on 64-bit machines without pointer compression, calibrated against JSON.parse of Node
// 26 (measure-json.test.ts measures it again). Arrays of one kind of number, and objects of one shape, take less.
// Objects whose keys all differ take somewhat more, because each has a separate shape or dictionary.
const objectBytes = 64;
const arrayBytes = 48;
const memberBytes = 80;
const elementBytes = 8;
const stringBytes = 24;
const fractionBytes = 8;
/** For each byte outside strings, because numbers with many digits are objects. */
const plainByteShare = 0.75;

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

/**
 * An object or array takes as long as five numbers, and a member as long as seven, because its name can be new each
 * time.
 */
const workOf = (commas: number, containers: number, members: number): number => commas + 5 * containers + 6 * members;

/**
 * Measures JSON bytes before they are parsed, in one pass and without recursion: nesting, members, values, and the
 * memory that `toString` and `JSON.parse` will take. The estimate of memory is at most about a third too low for any
 * bytes, and at most about three times too high for ordinary chats. Bytes that are not valid JSON are rejected by the
 * parser, not here. An `outline` is filled in the same pass.
 */
export function measureJson(bytes: Buffer, limits: JsonLimits, outline: JsonOutline | null = null): JsonMeasure {
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
  for (let at = nextMark(bytes, 0); at < length; at = nextMark(bytes, at + 1)) {
    const byte = bytes[at];
    if (byte === quote) {
      const end = outline === null ? endOfString(bytes, at) : outline.endOfString(at);
      strings += 1;
      inStrings += end - at;
      at = end;
    } else if (byte === comma) {
      commas += 1;
      // A part of the work, so that a long list is not read to its end.
      if (commas > workMax) {
        excess = 'work';
        break;
      }
      if (outline !== null && depth === 1) outline.endOfValue(at);
    } else if (byte === colon) {
      members += 1;
      outline?.colon(at, depth);
      if (members > membersMax) {
        excess = 'members';
        break;
      }
    } else if (byte === closeBrace || byte === closeBracket) {
      depth -= 1;
      if (outline !== null && depth === 0) outline.endOfValue(at);
    } else if (byte === openBrace || byte === openBracket) {
      if (byte === openBrace) objects += 1;
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
    } else {
      fractions += 1;
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

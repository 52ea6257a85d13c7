import { readUnits, units, unitsMax } from './read-units.ts';

/**
 * A 53-bit hash of a text (cyrb53): not cryptographic, but the same on every machine and fast enough for the hot path. All
 * random choices in the simulator derive from it, so that the same request always gets the same answer.
 */
export function hashText(text: string, seed = 0): number {
  let high = 0xdeadbeef ^ seed;
  let low = 0x41c6ce57 ^ seed;
  for (let start = 0; start < text.length; start += unitsMax) {
    const count = readUnits(text, start);
    for (let index = 0; index < count; index++) {
      const unit = units[index] ?? 0;
      high = Math.imul(high ^ unit, 2654435761);
      low = Math.imul(low ^ unit, 1597334677);
    }
  }
  return finishHash(high, low);
}

/** Derives a new hash from a hash and a number, for the n-th choice, call or attempt of one request. */
export function mixHash(hash: number, number: number): number {
  const seed = (hash % 4294967296) ^ Math.imul(Math.floor(hash / 4294967296) + number + 1, 0x9e3779b1);
  return finishHash(0xdeadbeef ^ seed, 0x41c6ce57 ^ seed);
}

function finishHash(high: number, low: number): number {
  const mixed = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909);
  const upper = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(mixed ^ (mixed >>> 13), 3266489909);
  return 4294967296 * (2097151 & upper) + (mixed >>> 0);
}

const hexDigits = Buffer.from('0123456789abcdef');
const digitsOfPart = 13;

/** `length` hex digits derived from the hash: the part of an ID that looks unique. */
export function hexOf(hash: number, length: number): string {
  const digits = Buffer.allocUnsafe(length + digitsOfPart);
  // The lower 52 bits of each part. Number.prototype.toString is twenty times slower for numbers of this size.
  for (let part = 0, at = 0; at < length; part++) {
    const mixed = mixHash(hash, part);
    const lower = mixed >>> 0;
    const upper = (mixed - lower) / 4294967296;
    for (let shift = 16; shift >= 0; shift -= 4) digits[at++] = hexDigits[(upper >>> shift) & 15] ?? 0;
    for (let shift = 28; shift >= 0; shift -= 4) digits[at++] = hexDigits[(lower >>> shift) & 15] ?? 0;
  }
  return digits.toString('latin1', 0, length);
}

/** A repeatable sequence of numbers in [0, 1) (mulberry32). */
export function createRandom(hash: number): () => number {
  let state = ((hash % 4294967296) ^ Math.floor(hash / 4294967296)) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

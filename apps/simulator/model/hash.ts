/**
 * A 53-bit hash of a text (cyrb53): not cryptographic, but the same everywhere and fast enough for the hot path.
 * Everything the simulator "decides" comes from it, so that the same request always has the same answer.
 */
export function hashText(text: string, seed = 0): number {
  let high = 0xdeadbeef ^ seed;
  let low = 0x41c6ce57 ^ seed;
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index);
    high = Math.imul(high ^ unit, 2654435761);
    low = Math.imul(low ^ unit, 1597334677);
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909);
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909);
  return 4294967296 * (2097151 & low) + (high >>> 0);
}

/** A new hash of a hash and a number, for the n-th choice, call or attempt of one request. */
export function mixHash(hash: number, number: number): number {
  return hashText('', (hash % 4294967296) ^ Math.imul(Math.floor(hash / 4294967296) + number + 1, 0x9e3779b1));
}

/** `length` hex digits that follow from the hash: the unique-looking part of an id. */
export function hexOf(hash: number, length: number): string {
  let hex = '';
  for (let part = 0; hex.length < length; part++) hex += mixHash(hash, part).toString(16).padStart(14, '0').slice(-13);
  return hex.slice(0, length);
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

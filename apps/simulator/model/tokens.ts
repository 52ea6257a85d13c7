import { readUnits, units } from './read-units.ts';

// The single tokenizer for everything (prompts, answers, stream pieces, limits), so that every count can be checked against
// the text. A token has up to six UTF-16 units and ends before white space. English has about four units per token.
const tokenLengthMax = 6;

/** Returns the end of the token that begins at `start`. It is never between the two halves of a surrogate pair. */
export function tokenEnd(text: string, start: number): number {
  const limit = Math.min(start + tokenLengthMax, text.length);
  let end = start + 1;
  while (end < limit) {
    const unit = text.charCodeAt(end);
    if (unit === 0x20 || unit === 0x0a) break;
    end++;
  }
  return endOfCharacter(text, end);
}

/** Returns `end`, or `end` plus one if it would split a surrogate pair. */
export function endOfCharacter(text: string, end: number): number {
  const last = text.charCodeAt(end - 1);
  return last >= 0xd800 && last <= 0xdbff && end < text.length ? end + 1 : end;
}

/** The number of pieces into which `splitTokens` splits the text. */
export function countTokens(text: string): number {
  let count = 0;
  for (let start = 0; start < text.length;) {
    const read = readUnits(text, start);
    // A token that begins near the end of the units that were read can continue beyond them, except at the end of the text.
    const end = start + read === text.length ? read : read - tokenLengthMax;
    let at = 0;
    for (; at < end; count++) {
      at += tokenLength(at);
      if (((units[at - 1] ?? 0) & 0xfc00) === 0xd800) at++; // The same rule as in `endOfCharacter`.
    }
    start += at;
  }
  return count;
}

const breaks = new Uint8Array(65_536);
breaks[0x20] = breaks[0x0a] = 1;

/**
 * The length of the token that begins at `at` in `units`. It is computed without branches, because the ends of words cannot
 * be predicted.
 */
function tokenLength(at: number): number {
  const ends =
    (breakAt(at + 1) << 5) |
    (breakAt(at + 2) << 4) |
    (breakAt(at + 3) << 3) |
    (breakAt(at + 4) << 2) |
    (breakAt(at + 5) << 1) |
    1;
  return Math.clz32(ends) - 25;
}

/** Returns 1 if a token ends before this unit. */
function breakAt(at: number): number {
  return breaks[units[at] ?? 0] ?? 0;
}

export function splitTokens(text: string): string[] {
  const tokens: string[] = [];
  for (let start = 0; start < text.length;) {
    const end = tokenEnd(text, start);
    tokens.push(text.slice(start, end));
    start = end;
  }
  return tokens;
}

/** The first `count` tokens of the text. */
export function firstTokens(text: string, count: number): string {
  let end = 0;
  for (let taken = 0; taken < count && end < text.length; taken++) end = tokenEnd(text, end);
  return text.slice(0, end);
}

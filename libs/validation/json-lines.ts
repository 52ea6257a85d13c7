const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const space = 0x20;
const tab = 0x09;

/**
 * Walks the lines of `bytes`, which begins at the start of a line. `onLine` gets the line's range without its line
 * feed (a carriage return before it is whitespace of JSON and stays) and whether it is blank. What follows the last
 * line feed is a line when it is not empty. Returns the number of lines, blank ones counted.
 *
 * The definition of a line for all of Sluice: a line ends at LF only; a line of nothing but spaces, tabs and CR is
 * blank. Blank lines are no requests but count in the numbers that errors show.
 */
export function forEachLine(bytes: Buffer, onLine: (start: number, end: number, blank: boolean) => void): number {
  let lines = 0;
  let start = 0;
  while (start < bytes.length) {
    const found = bytes.indexOf(lineFeed, start);
    const end = found < 0 ? bytes.length : found;
    onLine(start, end, isBlank(bytes, start, end));
    lines += 1;
    start = end + 1;
  }
  return lines;
}

function isBlank(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at += 1) {
    const byte = bytes[at];
    if (byte !== space && byte !== tab && byte !== carriageReturn) return false;
  }
  return true;
}

/** The length of a line that counts against the limit: without a carriage return at its end. */
export function lineLength(bytes: Buffer, start: number, end: number): number {
  return end > start && bytes[end - 1] === carriageReturn ? end - start - 1 : end - start;
}

/** One request of a batch: `line` is its 1-based ordinal among the file's requests, `bytes` a view without LF. */
export type RequestLine = { line: number; bytes: Buffer };

/**
 * Splits the byte range of a chunk (as validation cut it) into its requests. `firstLine` is the chunk's own; ordinals
 * count requests only, so they are the same whoever splits the range, and equal the numbers of the file's lines when
 * it has no blank ones.
 */
export function splitChunk(bytes: Buffer, firstLine: number): RequestLine[] {
  const requests: RequestLine[] = [];
  forEachLine(bytes, (start, end, blank) => {
    if (!blank) requests.push({ line: firstLine + requests.length, bytes: bytes.subarray(start, end) });
  });
  return requests;
}

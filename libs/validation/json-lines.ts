const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const space = 0x20;
const tab = 0x09;

/**
 * Calls `onLine` for each line of `bytes`, which begins at the start of a line, with the line's range without its line
 * feed (a carriage return before it is JSON whitespace and stays) and whether it is blank. The bytes after the last
 * line feed are a line if there are any. Returns the number of lines, including blank ones.
 *
 * This is the definition of a line in all of Sluice: a line ends at LF only, and a line of only spaces, tabs and CR is
 * blank. Blank lines are not requests, but they count in the line numbers of errors.
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

/** Whether a range of bytes has only the white space that makes a line blank. */
export function isBlank(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at += 1) {
    const byte = bytes[at];
    if (byte !== space && byte !== tab && byte !== carriageReturn) return false;
  }
  return true;
}

/** The length of a line as it counts towards the limit: without a carriage return at its end. */
export function lineLength(bytes: Buffer, start: number, end: number): number {
  return end > start && bytes[end - 1] === carriageReturn ? end - start - 1 : end - start;
}

/** One request of a batch: `line` is its 1-based number among the file's requests, `bytes` a view of it without LF. */
export type RequestLine = { line: number; bytes: Buffer };

/**
 * Splits the byte range of a chunk, as cut by validation, into its requests. `firstLine` is the number of its first request.
 * Only requests are counted, so the numbers equal the file's line numbers if it has no blank lines.
 */
export function splitChunk(bytes: Buffer, firstLine: number): RequestLine[] {
  const requests: RequestLine[] = [];
  forEachLine(bytes, (start, end, blank) => {
    if (!blank) requests.push({ line: firstLine + requests.length, bytes: bytes.subarray(start, end) });
  });
  return requests;
}

/**
 * Reads a file once and yields the lines that begin at these byte offsets (ascending), without their line feeds. Uses
 * memory for one line and one buffer of the source.
 */
export async function* readLinesAt(
  source: AsyncIterable<Buffer>,
  offsets: readonly number[],
): AsyncGenerator<{ offset: number; bytes: Buffer }> {
  const wanted = [...offsets];
  let parts: Buffer[] = []; // The pieces of the first wanted line.
  let position = 0;
  for await (const buffer of source) {
    for (let offset = wanted[0]; offset !== undefined && offset < position + buffer.length; offset = wanted[0]) {
      const from = Math.max(0, offset - position);
      const found = buffer.indexOf(lineFeed, from);
      parts.push(buffer.subarray(from, found < 0 ? buffer.length : found));
      if (found < 0) break;
      yield { offset, bytes: Buffer.concat(parts) };
      parts = [];
      wanted.shift();
    }
    if (wanted.length === 0) return;
    position += buffer.length;
  }
  const [last] = wanted;
  if (last !== undefined && parts.length > 0) yield { offset: last, bytes: Buffer.concat(parts) };
}

/** The lines of a file, without their line feeds. Uses memory for one line and one buffer of the source. */
export async function* readAllLines(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let parts: Buffer[] = [];
  for await (const buffer of source) {
    let from = 0;
    for (let end = buffer.indexOf(lineFeed); end !== -1; end = buffer.indexOf(lineFeed, from)) {
      parts.push(buffer.subarray(from, end));
      yield Buffer.concat(parts);
      parts = [];
      from = end + 1;
    }
    if (from < buffer.length) parts.push(buffer.subarray(from));
  }
  if (parts.length > 0) yield Buffer.concat(parts);
}

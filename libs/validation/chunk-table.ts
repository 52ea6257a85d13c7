/**
 * A part of a batch that one job works off: a byte range of the input file that begins with a request and ends with
 * one, without the last line feed. `firstLine` is the 1-based ordinal of its first request; `lines` counts requests.
 */
export type Chunk = { offset: number; length: number; firstLine: number; lines: number };

/** Cuts requests, given in file order, into chunks of at most `linesPerChunk` lines and, but for one line, bytes. */
export function createChunkTable({ linesPerChunk, chunkBytesMax }: { linesPerChunk: number; chunkBytesMax: number }) {
  const chunks: Chunk[] = [];
  let open: Chunk | undefined;
  let lineCount = 0;
  return {
    /** `start` and `end`: byte offsets of the line in the file, its line feed left out. */
    add(start: number, end: number): void {
      lineCount += 1;
      if (open !== undefined && open.lines < linesPerChunk && end - open.offset <= chunkBytesMax) {
        open.length = end - open.offset;
        open.lines += 1;
        return;
      }
      open = { offset: start, length: end - start, firstLine: lineCount, lines: 1 };
      chunks.push(open);
    },
    chunks: (): Chunk[] => chunks,
    lineCount: (): number => lineCount,
  };
}

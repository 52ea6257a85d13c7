/**
 * A part of a batch that one job runs: a byte range of the input file that begins and ends with a request, without the
 * last line feed. `firstLine` is the 1-based number of its first request; `lines` counts requests.
 */
export type Chunk = { offset: number; length: number; firstLine: number; lines: number };

/** Groups requests, given in file order, into chunks of at most `linesPerChunk` lines and, unless it is one line, bytes. */
export function createChunkTable({ linesPerChunk, chunkBytesMax }: { linesPerChunk: number; chunkBytesMax: number }) {
  const chunks: Chunk[] = [];
  let open: Chunk | undefined;
  let lineCount = 0;
  return {
    /** `start` and `end`: byte offsets of the line in the file, without its line feed. */
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

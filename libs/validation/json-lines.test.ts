import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createChunkTable } from './chunk-table.ts';
import { sliceFile, type FileSlice } from './file-slices.ts';
import { forEachLine, isBlank, lineLength, readAllLines, readLinesAt, splitChunk } from './json-lines.ts';

const requestsOf = (text: string) =>
  splitChunk(Buffer.from(text), 1).map(({ line, bytes }) => [line, bytes.toString()]);

test('blank lines are not requests, and CRLF and a missing last line feed are accepted', () => {
  expect(requestsOf('a\n\n \t\r\nb\r\nc')).toEqual([
    [1, 'a'],
    [2, 'b\r'],
    [3, 'c'],
  ]);
  expect(requestsOf('')).toEqual([]);
  expect(requestsOf('\n\r\n  ')).toEqual([]);
});

test('every line is numbered, and the end of the file does not start another one', () => {
  const lines = (text: string) => forEachLine(Buffer.from(text), () => undefined);
  expect([lines(''), lines('\n'), lines('a'), lines('a\n'), lines('a\n\n'), lines('a\nb')]).toEqual([0, 1, 1, 1, 2, 2]);
});

test('the length of a line does not include its carriage return', () => {
  const bytes = Buffer.from('ab\r\n');
  expect(lineLength(bytes, 0, 3)).toBe(2);
  expect(lineLength(bytes, 0, 2)).toBe(2);
});

/** The bytes as buffers that end at these offsets. */
async function* cutAt(bytes: Buffer, places: number[]): AsyncGenerator<Buffer> {
  const ends = [...new Set(places.map((place) => place % (bytes.length + 1)))].sort((left, right) => left - right);
  let from = 0;
  for (const end of [...ends, bytes.length]) {
    if (end > from) yield bytes.subarray(from, end);
    from = Math.max(from, end);
  }
}

const file = fc
  .array(fc.constantFrom('\n', '\n', '\r\n', ' ', 'a', 'bc', '{"x":1}', '\u00e9', '\ud83d\ude00', 'y'.repeat(20)), {
    maxLength: 40,
  })
  .map((parts) => Buffer.from(parts.join('')));
const places = fc.array(fc.nat(400), { maxLength: 12 });

test('slices cover any file exactly, end at line ends, and only drop lines that are too long', async () => {
  await fc.assert(
    fc.asyncProperty(
      file,
      places,
      fc.integer({ min: 1, max: 30 }),
      fc.integer({ min: 1, max: 30 }),
      async (bytes, cuts, sliceBytes, lineBytesMax) => {
        let position = 0;
        for await (const slice of sliceFile(cutAt(bytes, cuts), { sliceBytes, lineBytesMax })) {
          expect(slice.offset).toBe(position);
          position += checkSlice(slice, bytes, lineBytesMax);
        }
        expect(position).toBe(bytes.length);
      },
    ),
    { numRuns: 500 },
  );
});

/** How many bytes of the file the slice covers. */
function checkSlice(slice: FileSlice, bytes: Buffer, lineBytesMax: number): number {
  const lengthBytes = slice.kind === 'lines' ? slice.bytes.length : slice.lengthBytes;
  const end = slice.offset + lengthBytes;
  const text = bytes.subarray(slice.offset, end);
  if (slice.kind === 'lines') {
    if (!text.equals(slice.bytes) || (end < bytes.length && bytes[end - 1] !== 0x0a)) throw new Error('a wrong slice');
    return lengthBytes;
  }
  if (text.includes('\n') || lineLength(bytes, slice.offset, end) <= lineBytesMax) throw new Error('dropped too much');
  return end < bytes.length ? lengthBytes + 1 : lengthBytes;
}

test('chunks of any file split into exactly its requests', () => {
  fc.assert(
    fc.property(
      file,
      fc.integer({ min: 1, max: 5 }),
      fc.integer({ min: 1, max: 60 }),
      (bytes, linesPerChunk, chunkBytesMax) => {
        const table = createChunkTable({ linesPerChunk, chunkBytesMax });
        forEachLine(bytes, (start, end, blank) => {
          if (!blank) table.add(start, end);
        });
        const again = table.chunks().flatMap(({ offset, length, firstLine, lines }) => {
          const requests = splitChunk(bytes.subarray(offset, offset + length), firstLine);
          if (requests.length !== lines || lines > linesPerChunk || (lines > 1 && length > chunkBytesMax))
            throw new Error('a wrong chunk');
          return requests;
        });
        expect(again).toEqual(splitChunk(bytes, 1));
        expect(table.lineCount()).toBe(again.length);
      },
    ),
    { numRuns: 500 },
  );
});

test('lines are read at their offsets, however the source is split', async () => {
  await fc.assert(
    fc.asyncProperty(file, places, fc.nat(2), async (bytes, cuts, keep) => {
      const wanted: { offset: number; bytes: Buffer }[] = [];
      forEachLine(bytes, (start, end) => {
        if (end > start && start % 3 <= keep) wanted.push({ offset: start, bytes: bytes.subarray(start, end) });
      });
      const read: { offset: number; bytes: Buffer }[] = [];
      for await (const line of readLinesAt(
        cutAt(bytes, cuts),
        wanted.map(({ offset }) => offset),
      ))
        read.push(line);
      expect(read).toEqual(wanted);
    }),
    { numRuns: 300 },
  );
});

test('all lines of a file are read, however the source is split', async () => {
  await fc.assert(
    fc.asyncProperty(file, places, async (bytes, cuts) => {
      const read: string[] = [];
      for await (const line of readAllLines(cutAt(bytes, cuts)))
        if (!isBlank(line, 0, line.length)) read.push(line.toString());
      expect(read).toEqual(splitChunk(bytes, 1).map((line) => line.bytes.toString()));
    }),
    { numRuns: 300 },
  );
});

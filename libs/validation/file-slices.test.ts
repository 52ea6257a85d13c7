import { expect, test } from 'vitest';
import { createSharedBuffers, sliceFile } from './file-slices.ts';

const sizes = { sliceBytes: 1_000, lineBytesMax: 600_000 };

async function* source(lineBytes: number, lines: number): AsyncGenerator<Buffer> {
  const file = Buffer.from(`${'x'.repeat(lineBytes)}\n`.repeat(lines));
  for (let from = 0; from < file.length; from += 65_536) yield file.subarray(from, from + 65_536);
}

test.each([10, 999, 1_000, 1_001, 300_000, 599_999, 600_000])(
  'slices of lines of %i bytes are kept in the same memory, one after the other',
  async (lineBytes) => {
    const buffers = createSharedBuffers(sizes);
    const used = new Set<ArrayBufferLike>();
    let slices = 0;
    const allocate = (sizeBytes: number): Uint8Array => buffers.take(sizeBytes);
    for await (const slice of sliceFile(source(lineBytes, Math.max(20, 200_000 / lineBytes)), { ...sizes, allocate })) {
      if (slice.kind !== 'lines') throw new Error('a line of an allowed length was dropped');
      slices += 1;
      used.add(slice.bytes.buffer);
      buffers.recycle(slice.bytes);
    }
    expect(slices).toBeGreaterThan(1);
    expect(used.size).toBe(1);
  },
);

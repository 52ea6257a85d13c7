const lineFeed = 0x0a;

/**
 * A part of a file, in order: whole lines, or one line that is longer than allowed, which is represented only by its
 * length.
 */
export type FileSlice =
  | { kind: 'lines'; offset: number; bytes: Uint8Array }
  | { kind: 'long_line'; offset: number; lengthBytes: number };

type SliceOptions = {
  /** A slice is yielded when it has this size. */
  sliceBytes: number;
  /** The bytes of a line that is longer than this are dropped. */
  lineBytesMax: number;
  /** Allocates memory for a slice. Default: shared memory, which threads read without a copy. */
  allocate?: (sizeBytes: number) => Uint8Array;
};

const allocateShared = (sizeBytes: number): Uint8Array => new Uint8Array(new SharedArrayBuffer(sizeBytes));

/**
 * Cuts a stream of bytes into slices at line ends. It only searches for line feeds and creates no object per line. Uses
 * at most `sliceBytes + lineBytesMax` and one buffer of the source. The last slice can end without a line feed.
 */
export async function* sliceFile(source: AsyncIterable<Buffer>, options: SliceOptions): AsyncGenerator<FileSlice> {
  const { sliceBytes, lineBytesMax, allocate = allocateShared } = options;
  let pending: Buffer[] = [];
  let pendingBytes = 0;
  let wholeBytes = 0; // The pending bytes up to the last line feed.
  let offset = 0; // The offset of the first pending byte in the file.
  let skipped: { offset: number; lengthBytes: number } | null = null;

  const take = (sizeBytes: number): FileSlice => {
    const bytes = allocate(sizeBytes);
    let filled = 0;
    while (filled < sizeBytes) {
      const first = pending[0];
      if (first === undefined) throw new Error('fewer bytes pending than counted');
      const part = first.subarray(0, sizeBytes - filled);
      bytes.set(part, filled);
      filled += part.length;
      if (part.length === first.length) pending.shift();
      else pending[0] = first.subarray(part.length);
    }
    const slice: FileSlice = { kind: 'lines', offset, bytes };
    offset += sizeBytes;
    pendingBytes -= sizeBytes;
    wholeBytes = 0;
    return slice;
  };

  for await (const buffer of source) {
    // A source can yield very large buffers. They are split to get slices of the usual size.
    for (let from = 0; from < buffer.length; from += sliceBytes) {
      let part = buffer.subarray(from, from + sliceBytes);
      if (skipped !== null) {
        const found = part.indexOf(lineFeed);
        skipped.lengthBytes += found < 0 ? part.length : found;
        if (found < 0) continue;
        yield { kind: 'long_line', ...skipped };
        offset = skipped.offset + skipped.lengthBytes + 1;
        skipped = null;
        part = part.subarray(found + 1);
        if (part.length === 0) continue;
      }
      pending.push(part);
      pendingBytes += part.length;
      const last = part.lastIndexOf(lineFeed);
      if (last >= 0) wholeBytes = pendingBytes - part.length + last + 1;
      // The one additional byte can be the carriage return of a line with exactly the allowed length.
      const tooLong = pendingBytes - wholeBytes > lineBytesMax + 1;
      if (wholeBytes > 0 && (pendingBytes >= sliceBytes || tooLong)) yield take(wholeBytes);
      if (tooLong) {
        skipped = { offset, lengthBytes: pendingBytes };
        pending = [];
        pendingBytes = 0;
      }
    }
  }
  if (skipped !== null) yield { kind: 'long_line', ...skipped };
  else if (pendingBytes > 0) yield take(pendingBytes);
}

// The maximum by which a slice can exceed the limits: the rest of the source's buffer with which it became full.
const overhangBytes = 256 * 1_024;
// A small file is a single small slice. Allocating a full-sized buffer would take longer than checking it.
const smallPart = 1 / 16;

/**
 * Memory for slices that is shared with threads and reused. Otherwise every megabyte of a file would be a new allocation that
 * only the garbage collector frees. Each buffer is large enough for any slice, because a file whose lines are all longer than
 * `sliceBytes` has only large ones; pages that are never written take no memory.
 */
export function createSharedBuffers({ sliceBytes, lineBytesMax }: { sliceBytes: number; lineBytesMax: number }) {
  const capacity = sliceBytes + lineBytesMax + overhangBytes;
  const free: SharedArrayBuffer[] = [];
  return {
    take(sizeBytes: number): Uint8Array {
      const isUsual = sizeBytes > sliceBytes * smallPart && sizeBytes <= capacity;
      const reused = isUsual ? (free.pop() ?? new SharedArrayBuffer(capacity)) : undefined;
      return new Uint8Array(reused ?? new SharedArrayBuffer(sizeBytes), 0, sizeBytes);
    },
    recycle(bytes: Uint8Array): void {
      if (bytes.buffer instanceof SharedArrayBuffer && bytes.buffer.byteLength === capacity) free.push(bytes.buffer);
    },
  };
}

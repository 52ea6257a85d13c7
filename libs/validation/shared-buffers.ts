// What a slice may have beyond its lines: the rest of the buffer of the source in which it was found to be full.
const overhangBytes = 256 * 1_024;
// A small file is one slice: to set up as much memory as for any would take longer than to check it.
const smallPart = 1 / 16;

/**
 * Memory for slices, shared with threads and used again: without that, every megabyte of a file would be a new
 * allocation that only the garbage collector gives back. Each is large enough for any slice, as only what was written to
 * takes real memory: a file whose lines are all longer than `sliceBytes` has no other slices.
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

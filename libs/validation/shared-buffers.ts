// What a slice may have beyond its size: the rest of the buffer of the source in which it was found to be full.
const overhangBytes = 256 * 1_024;

/**
 * Memory for slices, shared with threads and used again: without that, every megabyte of a file would be a new
 * allocation that only the garbage collector gives back.
 */
export function createSharedBuffers(sliceBytes: number) {
  const capacity = sliceBytes + overhangBytes;
  const free: SharedArrayBuffer[] = [];
  return {
    take(sizeBytes: number): Uint8Array {
      const reused = sizeBytes <= capacity ? (free.pop() ?? new SharedArrayBuffer(capacity)) : undefined;
      return new Uint8Array(reused ?? new SharedArrayBuffer(sizeBytes), 0, sizeBytes);
    },
    giveBack(bytes: Uint8Array): void {
      if (bytes.buffer instanceof SharedArrayBuffer && bytes.buffer.byteLength === capacity) free.push(bytes.buffer);
    },
  };
}

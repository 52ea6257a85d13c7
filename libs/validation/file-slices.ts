const lineFeed = 0x0a;

/** A piece of a file, in order: whole lines, or one line that is longer than allowed and was not kept. */
export type FileSlice =
  | { kind: 'lines'; offset: number; bytes: Uint8Array }
  | { kind: 'long_line'; offset: number; lengthBytes: number };

type SliceOptions = {
  /** Size at which a slice is handed out. */
  sliceBytes: number;
  /** A line that grows past this is dropped up to its end. */
  lineBytesMax: number;
  /** Memory for a slice; by default shared memory, which threads read without a copy. */
  allocate?: (sizeBytes: number) => Uint8Array;
};

const allocateShared = (sizeBytes: number): Uint8Array => new Uint8Array(new SharedArrayBuffer(sizeBytes));

/**
 * Cuts a stream of bytes into slices at line ends, looking for line feeds only: no object per line. Holds at most
 * `sliceBytes + lineBytesMax` and one buffer of the source. The last slice may lack its line feed.
 */
export async function* sliceFile(source: AsyncIterable<Buffer>, options: SliceOptions): AsyncGenerator<FileSlice> {
  const { sliceBytes, lineBytesMax, allocate = allocateShared } = options;
  let pending: Buffer[] = [];
  let pendingBytes = 0;
  let wholeBytes = 0; // of the pending ones, those up to the last line feed
  let offset = 0; // of the first pending byte in the file
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
    // A source may hand out very large buffers; in parts, they make slices of the usual size.
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
      // One byte more may be the carriage return of a line of just the allowed length.
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

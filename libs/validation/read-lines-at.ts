/**
 * Reads a file once and gives the lines that begin at these byte offsets (ascending), without their line feeds. Holds
 * one line and one buffer of the source.
 */
export async function* readLinesAt(
  source: AsyncIterable<Buffer>,
  offsets: readonly number[],
): AsyncGenerator<{ offset: number; bytes: Buffer }> {
  const wanted = [...offsets];
  let parts: Buffer[] = []; // of the first wanted line
  let position = 0;
  for await (const buffer of source) {
    for (let offset = wanted[0]; offset !== undefined && offset < position + buffer.length; offset = wanted[0]) {
      const from = Math.max(0, offset - position);
      const found = buffer.indexOf(0x0a, from);
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

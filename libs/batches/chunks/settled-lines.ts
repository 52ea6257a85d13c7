// Which lines of a chunk have a result: one bit for each, from the chunk's first line on.

type Range = { first_line: number; line_count: number };
type Bits = { first_line: number; settled: Buffer };

/** The bits of a chunk without results. */
export const noneSettled = (lineCount: number): Buffer => Buffer.alloc(Math.ceil(lineCount / 8));

const bitOf = (index: number): number => 0x80 >> (index & 7);

export function isSettled({ first_line: first, settled }: Bits, line: number): boolean {
  const index = line - first;
  return ((settled[index >> 3] as number) & bitOf(index)) !== 0;
}

/** The bits of a chunk of which every line was possibly called before. */
export const allRepeated = (lineCount: number): Buffer => Buffer.alloc(Math.ceil(lineCount / 8), 0xff);

/** Whether a line was possibly called before, without a result. */
export const isRepeated = ({ repeated, ...range }: Range & { repeated: Buffer | null }, line: number): boolean =>
  repeated !== null && isSettled({ ...range, settled: repeated }, line);

/** The bits of the lines that were possibly called before, with further ones. */
export function withRepeated(
  { repeated, ...range }: Range & { repeated: Buffer | null },
  lines: readonly number[],
): Buffer | null {
  if (lines.length === 0) return repeated;
  const bits = { ...range, settled: repeated === null ? noneSettled(range.line_count) : Buffer.from(repeated) };
  for (const line of lines) settle(bits, line);
  return bits.settled;
}

/** Sets the bit of a line. */
export function settle({ first_line: first, settled }: Bits, line: number): void {
  const index = line - first;
  settled[index >> 3] = (settled[index >> 3] as number) | bitOf(index);
}

export function countSettled(settled: Buffer): number {
  let count = 0;
  for (let byte of settled) for (; byte !== 0; byte &= byte - 1) count += 1;
  return count;
}

/** The lines of a chunk without a result, in order. */
export function unsettledLines(chunk: Range & { settled: Buffer }): number[] {
  const lines: number[] = [];
  for (let line = chunk.first_line; line < chunk.first_line + chunk.line_count; line += 1)
    if (!isSettled(chunk, line)) lines.push(line);
  return lines;
}

/** The bits of a part of a chunk. */
export function settledOfPart(chunk: Range & { settled: Buffer }, part: Range): Buffer {
  const bits = { ...part, settled: noneSettled(part.line_count) };
  for (let line = part.first_line; line < part.first_line + part.line_count; line += 1)
    if (isSettled(chunk, line)) settle(bits, line);
  return bits.settled;
}

/** Lines with a result, in the form of events. `settled`: base64 of their bits from `first_line` on. */
export type SettledBits = { first_line: number; settled: string };

/** The bits of some lines of one chunk, sorted by number and at least one. */
export function bitsOfLines(lines: readonly number[]): SettledBits {
  const first = lines[0] as number;
  const bits = { first_line: first, settled: noneSettled((lines.at(-1) as number) - first + 1) };
  for (const line of lines) settle(bits, line);
  return { first_line: first, settled: bits.settled.toString('base64') };
}

/** The same lines as inclusive ranges. */
export function rangesOfBits({ first_line: first, settled }: SettledBits): [first: number, last: number][] {
  const bits = Buffer.from(settled, 'base64');
  const ranges: [number, number][] = [];
  for (let line = first; line < first + bits.length * 8; line += 1) {
    if (!isSettled({ first_line: first, settled: bits }, line)) continue;
    const last = ranges.at(-1);
    if (last?.[1] === line - 1) last[1] = line;
    else ranges.push([line, line]);
  }
  return ranges;
}

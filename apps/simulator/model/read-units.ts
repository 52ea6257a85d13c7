import { endianness } from 'node:os';

/** How many units of a text are looked at together. */
export const unitsMax = 4_096;
// Whoever looks ahead from the last of them, by a token's length, still looks into the array.
const beyond = 8;

/**
 * The UTF-16 units that `readUnits` read last. To ask a text for its units one by one costs several times as much: V8
 * looks again, for each of them, at how the text is kept.
 */
export const units = new Uint16Array(unitsMax + beyond);

const bytes = Buffer.from(units.buffer);
const bigEndian = endianness() === 'BE';

/** Copies the units from `start` on, at most `unitsMax` of them, into `units`; returns how many there were. */
export function readUnits(text: string, start: number): number {
  const count = Math.min(text.length - start, unitsMax);
  bytes.write(count === text.length ? text : text.slice(start, start + count), 'utf16le');
  if (bigEndian) bytes.swap16();
  return count;
}

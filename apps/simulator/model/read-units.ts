import { endianness } from 'node:os';

/** The maximum number of units of a text that are read in one step. */
export const unitsMax = 4_096;
// Looking ahead by one token's length from the last unit stays inside the array.
const beyond = 8;

/**
 * The UTF-16 units that `readUnits` read last. Reading them one by one from the string is several times slower, because V8
 * checks the string's representation for each of them.
 */
export const units = new Uint16Array(unitsMax + beyond);

const bytes = Buffer.from(units.buffer);
const bigEndian = endianness() === 'BE';

/** Copies the units from `start` on, up to `unitsMax` of them, into `units`; returns their number. */
export function readUnits(text: string, start: number): number {
  const count = Math.min(text.length - start, unitsMax);
  bytes.write(count === text.length ? text : text.slice(start, start + count), 'utf16le');
  if (bigEndian) bytes.swap16();
  return count;
}

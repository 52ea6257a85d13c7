/** The number of a command-line option. Throws an Error that names the range. */
export function readCount(name: string, text: string, max: number): number {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw new Error(`--${name} must be a whole number from 1 to ${max}`);
}

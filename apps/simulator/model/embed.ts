import { createRandom } from './hash.ts';

/**
 * A unit vector that is derived from the hash. Numbers have at most eight decimals and are the same in both encodings:
 * the base64 form contains exactly the float32 nearest to the printed decimal.
 */
export function embed(hash: number, dimensions: number): number[] {
  const random = createRandom(hash);
  const vector: number[] = [];
  let squares = 0;
  for (let index = 0; index < dimensions; index++) {
    const value = random() + random() + random() - 1.5; // This is close enough to a normal distribution.
    vector.push(value);
    squares += value * value;
  }
  const scale = 1 / Math.sqrt(squares || 1);
  for (let index = 0; index < dimensions; index++) {
    vector[index] = Math.round((vector[index] ?? 0) * scale * 1e8) / 1e8;
  }
  return vector;
}

/** OpenAI's base64 form: the little-endian float32 bytes. */
export function toBase64(vector: readonly number[]): string {
  const bytes = Buffer.allocUnsafe(vector.length * 4);
  for (const [index, value] of vector.entries()) bytes.writeFloatLE(value, index * 4);
  return bytes.toString('base64');
}

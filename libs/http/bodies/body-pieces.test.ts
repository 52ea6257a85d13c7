import fc from 'fast-check';
import { expect, test } from 'vitest';
import { BodyPieces } from './body-pieces.ts';

const mebibyte = 1_048_576;

function collect(pieces: readonly Buffer[], announcedBytes: number): Buffer[] {
  const body = new BodyPieces(announcedBytes);
  for (const piece of pieces) body.push(piece);
  return body.take();
}

const memoryOf = (pieces: readonly Buffer[]): number => pieces.reduce((sum, { buffer }) => sum + buffer.byteLength, 0);

test('a body is its pieces in their order, whether or not its length is known', () => {
  const piece = fc.nat(200_000).chain((size) => fc.nat(255).map((byte) => Buffer.alloc(size, byte)));
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 12 }), fc.boolean(), (pieces, isKnown) => {
      const whole = Buffer.concat(pieces);
      const taken = collect(pieces, isKnown ? whole.length : 0);
      expect(Buffer.concat(taken).equals(whole)).toBe(true);
      expect(taken.length <= 1 || whole.length > mebibyte).toBe(true);
    }),
    { numRuns: 50 },
  );
});

test('a body in one piece is not copied', () => {
  const piece = Buffer.alloc(1_000);
  expect(collect([piece], 1_000)[0]).toBe(piece);
  expect(collect([piece], 0)[0]).toBe(piece);
});

test('only a sender that has sent a quarter of a body gets memory for all of it', () => {
  const pieces = Array.from({ length: 4 }, () => Buffer.alloc(50_000));
  expect(memoryOf(collect(pieces, 800_001))).toBe(200_000);
  expect(memoryOf(collect(pieces, 800_000))).toBe(800_000);
});

test('a body above 1 MiB stays in pieces, which nothing was added to', () => {
  const pieces = Array.from({ length: 30 }, () => Buffer.alloc(65_536));
  expect(collect(pieces, 30 * 65_536)).toEqual(pieces);
  expect(memoryOf(collect(pieces, 0))).toBeLessThanOrEqual(3 * mebibyte);
});

import fc from 'fast-check';
import { expect, test } from 'vitest';
import { BodyPieces } from './body-pieces.ts';

const collect = (pieces: readonly Buffer[], announcedBytes: number): Buffer => {
  const body = new BodyPieces(announcedBytes);
  for (const piece of pieces) body.push(piece);
  return body.take();
};

test('a body is its pieces in their order, whether or not its length is known', () => {
  const piece = fc.nat(100_000).chain((size) => fc.nat(255).map((byte) => Buffer.alloc(size, byte)));
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 12 }), fc.boolean(), (pieces, isKnown) => {
      const whole = Buffer.concat(pieces);
      expect(collect(pieces, isKnown ? whole.length : 0).equals(whole)).toBe(true);
    }),
    { numRuns: 50 },
  );
});

test('a body in one piece is not copied', () => {
  const piece = Buffer.alloc(1_000);
  expect(collect([piece], 1_000)).toBe(piece);
  expect(collect([piece], 0)).toBe(piece);
});

test('only a sender that has sent a quarter of a body gets memory for all of it', () => {
  const pieces = Array.from({ length: 4 }, () => Buffer.alloc(100_000));
  expect(collect(pieces, 1_600_001).buffer.byteLength).toBe(400_000);
  expect(collect(pieces, 1_600_000).buffer.byteLength).toBe(1_600_000);
});

test('the memory of a body of unknown length is at most twice its size when it is extended', () => {
  const pieces = Array.from({ length: 30 }, () => Buffer.alloc(65_536));
  expect(collect(pieces, 0).buffer.byteLength).toBeLessThanOrEqual(4 * 1_048_576);
});

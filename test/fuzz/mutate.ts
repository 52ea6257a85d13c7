import fc from 'fast-check';

/**
 * Bytes that a text becomes after a few random edits: bytes are removed, repeated or inserted anywhere. Unlike generated
 * text, most of the result still has the shape that a parser expects, so the edits reach its inner states.
 *
 * @param words What is inserted, besides single random bytes.
 */
export function mutated(text: fc.Arbitrary<string>, words: readonly string[]): fc.Arbitrary<Buffer> {
  const inserted = fc.oneof(
    { weight: 3, arbitrary: fc.constantFrom(...words).map((word) => Buffer.from(word)) },
    { weight: 1, arbitrary: fc.uint8Array({ minLength: 1, maxLength: 3 }).map((bytes) => Buffer.from(bytes)) },
  );
  const edit = fc.record({
    place: fc.nat(),
    removed: fc.nat(6),
    inserted: fc.option(inserted, { nil: Buffer.alloc(0) }),
  });
  return fc.tuple(text, fc.array(edit, { maxLength: 6 })).map(([source, edits]) =>
    edits.reduce<Buffer>((bytes, { place, removed, inserted: word }) => {
      const at = place % (bytes.length + 1);
      return Buffer.concat([bytes.subarray(0, at), word, bytes.subarray(at + removed)]);
    }, Buffer.from(source)),
  );
}

/** The pieces that a connection delivers of some bytes, cut at these places. Empty pieces are among them. */
export function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const ends = [...places.map((place) => place % (bytes.length + 1)), bytes.length].toSorted((a, b) => a - b);
  return ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end));
}

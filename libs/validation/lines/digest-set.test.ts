import { hash } from 'node:crypto';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createDigestSet } from './digest-set.ts';

test('it agrees with a set of strings, even when slots collide', () => {
  // There are few different words, so that many digests share a shard and slot.
  const word = fc.constantFrom(0, 1, 2, 256, 2 ** 31, 2 ** 32 - 1);
  const digest = fc.tuple(word, word, word, word).filter((words) => words.some((value) => value !== 0));
  fc.assert(
    fc.property(fc.array(digest, { maxLength: 300 }), (digests) => {
      const set = createDigestSet();
      const model = new Set<string>();
      for (const words of digests) {
        const key = words.join();
        const array = Uint32Array.of(9, ...words);
        expect(set.has(array, 1)).toBe(model.has(key));
        expect(set.add(array, 1)).toBe(!model.has(key));
        model.add(key);
      }
      expect(set.size).toBe(model.size);
    }),
  );
});

test('it distinguishes 200,000 digests while its shards grow', () => {
  const set = createDigestSet();
  const digests = new Uint32Array(4 * 200_000);
  for (let index = 0; index < 200_000; index += 1) {
    const digest = hash('sha256', String(index), 'buffer');
    for (let word = 0; word < 4; word += 1) digests[4 * index + word] = digest.readUInt32LE(4 * word);
  }
  for (let at = 0; at < digests.length; at += 4) if (!set.add(digests, at)) throw new Error(`lost at ${at}`);
  for (let at = 0; at < digests.length; at += 4) if (set.add(digests, at)) throw new Error(`forgot ${at}`);
  expect(set.size).toBe(200_000);
});

test('a digest of zeros is rejected', () => {
  expect(() => createDigestSet().add(new Uint32Array(4), 0)).toThrow('zeros');
});

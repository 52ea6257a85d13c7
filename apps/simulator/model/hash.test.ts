import { expect, test } from 'vitest';
import { hashText, hexOf, mixHash } from './hash.ts';

// Whoever recorded an answer of the simulator relies on these.
test('hashes and ids are what they were in every release', () => {
  expect(hashText('')).toBe(3_338_908_027_751_811);
  expect(hashText('', 7)).toBe(3_303_188_273_399_753);
  expect(hashText('sim-small\n\n[{"role":"user","content":"Hello"}]')).toBe(6_450_585_670_307_202);
  expect(hashText('Zürich, 世界 🙂 \ud800')).toBe(4_598_931_391_053_745);
  expect(hashText('lorem ipsum é '.repeat(1_000), 3)).toBe(8_225_281_293_091_514);
  expect(mixHash(hashText('a'), 2)).toBe(7_938_618_834_921_216);
  expect(hexOf(hashText('a'), 29)).toBe('7e75e59548421ab9dbb8c1966fc34');
  expect(hexOf(hashText('b'), 96)).toBe(
    '75755046e702a2f69b6e6801e9392df07a0785f080b82582351605ca7171e9af530eccbf1ddb2ab2d4be7064cb02e9f9',
  );
});

test('a text longer than what is read at a time differs by each of its units', () => {
  const text = 'a'.repeat(10_000);
  const changed = [0, 4_095, 4_096, 8_191, 8_192, 9_999].map((at) =>
    hashText(`${text.slice(0, at)}b${text.slice(at + 1)}`),
  );
  expect(new Set([hashText(text), ...changed]).size).toBe(7);
});

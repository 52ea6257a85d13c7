import fc from 'fast-check';
import { expect, test } from 'vitest';
import { countTokens, firstTokens, splitTokens } from './tokens.ts';

const texts = fc.string({ unit: 'grapheme', maxLength: 200 });

test('tokens joined are the text, and none of them splits a surrogate pair', () => {
  fc.assert(
    fc.property(texts, (text) => {
      const tokens = splitTokens(text);
      expect(tokens.join('')).toBe(text);
      expect(countTokens(text)).toBe(tokens.length);
      for (const token of tokens) expect(token.isWellFormed()).toBe(true);
    }),
  );
});

test('the first n tokens count n', () => {
  fc.assert(
    fc.property(texts, fc.nat(50), (text, count) => {
      const kept = firstTokens(text, count);
      expect(text.startsWith(kept)).toBe(true);
      expect(countTokens(kept)).toBe(Math.min(count, countTokens(text)));
    }),
  );
});

test('English comes to about four characters a token', () => {
  const text = 'The committee does not contradict a budget of twelve hundred, although exceptions exist.';
  expect(text.length / countTokens(text)).toBeGreaterThan(3.5);
  expect(text.length / countTokens(text)).toBeLessThan(5);
});

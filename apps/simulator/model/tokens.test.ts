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

test('texts of any length and any units are counted as they are split', () => {
  const pieces = fc.constantFrom('a', 'word', ' ', '\n', '\ud83d', '\ude42', '🙂', '世', '\u2020', 'x'.repeat(7));
  const short = fc.array(pieces, { maxLength: 60 });
  const padding = fc.integer({ min: 4_080, max: 4_100 });
  fc.assert(
    fc.property(short, padding, short, (before, length, after) => {
      for (const text of [
        before.join(''),
        before.join('') + 'lorem ipsum '.repeat(700).slice(0, length) + after.join(''),
      ]) {
        expect(countTokens(text)).toBe(splitTokens(text).length);
      }
    }),
  );
});

test('English comes to about four characters a token', () => {
  const text = 'The committee does not contradict a budget of twelve hundred, although exceptions exist.';
  expect(text.length / countTokens(text)).toBeGreaterThan(3.5);
  expect(text.length / countTokens(text)).toBeLessThan(5);
});

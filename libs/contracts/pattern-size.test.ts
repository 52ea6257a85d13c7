import { RE2JS } from 're2js';
import { expect, test } from 'vitest';
import { patternSize } from './pattern-size.ts';

test.each([
  ['secret', 6],
  ['^\\d{3}-\\d{4}$', 10],
  ['(ab{3}){10}', 50],
  ['[a-z0-9]{2,64}@', 65],
  ['a{5,}', 5],
  ['x{not a count}', 14],
  ['[]{9}]{2}', 2],
  ['\\{9\\}', 3],
  ['\\p{L}{3}', 103],
  ['[^\\pL\\pN]', 201],
  ['\\Q[(\\Ea{3}', 5],
  ['\\Qab\\E{3}', 4],
  ['a\\Q[{9}', 5],
])('%s has a size of about %i', (rule, size) => {
  expect(patternSize(rule)).toBe(size);
});

test.each([
  ['many repetitions', 'a{1000}'.repeat(142)],
  ['a long group a thousand times', `(${'a'.repeat(900)}){1000}`],
  ['a long group of alternatives a thousand times', `(${'ab|cd?'.repeat(100)}){1000}`],
  ['repetitions in each other', '((a?){10}){100}'],
  ['more repetitions in each other', '(((x{10}){10}){9}y)'],
  ['an expression that explodes elsewhere', '^(a+)+$'],
  ['an address', '(?i)[a-z]+@[a-z]+\\.com'],
  ['alternatives', `${'a|'.repeat(499)}b`],
  ['repetitions after a bracket that is quoted', `\\Q[\\E${'(?:a?){100}'.repeat(50)}`],
  ['operators', '(?:x*y+z?){50}'],
])('RE2 makes no program of %s that is three times as large', (_what, rule) => {
  expect(RE2JS.compile(rule).programSize()).toBeLessThan(3 * patternSize(rule) + 10);
});

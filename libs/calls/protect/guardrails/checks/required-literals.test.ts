import { RE2JS } from 're2js';
import { expect, test } from 'vitest';
import { createRandom } from '#test/faults/random.ts';
import { requiredLiterals } from './required-literals.ts';

test.each([
  ['forbidden-[0-9]+', ['forbidden-']],
  [String.raw`\b\d{3}-\d{2}-\d{4}\b`, ['-']],
  [String.raw`[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}`, ['@']],
  ['secret|to+ken|(?:a|b)pass?wo', ['secret', 'ken', 'pas']],
  [String.raw`\$\{x\}colou?r`, ['${x}colo']],
  ['^(a|b)+$', null],
  ['a?', null],
  ['secret|(token)', null],
  ['(?i)secret', null],
  [String.raw`\x41B|[[:alpha:]B]B`, null],
  [String.raw`\Qa|b\E`, null],
  ['a{b|c}xyz', null],
])('a match of %s has one of %o', (rule, literals) => {
  expect(requiredLiterals(rule)).toEqual(literals);
});

test('a text without the literals of an expression never matches it', () => {
  const random = createRandom(7);
  const parts = String.raw`a b ab - \. \d \x61 \pL [ab] [^a] []a] [[:alpha:]b] ( (?: (?i) ) | | ? * + {2} {0,1} {0} { } . ^ $ \b \Qa|b\E`;
  const some = (choices: readonly string[], most: number): string =>
    Array.from({ length: random.between(1, most) }, () => random.pick(choices)).join('');
  let compared = 0;
  for (let round = 0; round < 30_000; round += 1) {
    const rule = some(parts.split(' '), 7);
    const literals = requiredLiterals(rule);
    if (literals === null) continue;
    let regex: RE2JS;
    try {
      regex = RE2JS.compile(rule);
    } catch {
      continue;
    }
    compared += 1;
    for (let tries = 0; tries < 5; tries += 1) {
      const text = some('a b A B . - { } | 1 ] :'.split(' '), 6);
      const isFound = literals.some((literal) => text.includes(literal));
      if (!isFound && regex.test(text))
        throw new Error(`${rule} matches ${text}, without any of ${literals.join(' ')}`);
    }
  }
  expect(compared).toBeGreaterThan(2_000);
});

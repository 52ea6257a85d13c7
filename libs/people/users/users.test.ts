import { expect, test } from 'vitest';
import { email } from '#libs/contracts/people/people.ts';
import { emailLookup } from './users.ts';

test('no address outside ASCII is taken for one in ASCII, or accepted in a form that looks like one', () => {
  const confused: string[] = [];
  for (let code = 0x80; code <= 0x10_ff_ff; code += 1) {
    if (code >= 0xd8_00 && code <= 0xdf_ff) continue;
    const letter = String.fromCodePoint(code);
    if (!emailLookup(`${letter}@b.c`).includes(letter)) confused.push(letter);
    const isAscii = /^[!-~]+$/.test(letter.normalize('NFKC'));
    if (isAscii && email().safeParse(`a${letter}@b.c`).success) confused.push(letter);
  }
  expect(confused).toEqual([]);
  expect(emailLookup('Ada@Example.org')).toBe(emailLookup('aDA@example.ORG'));
  expect(email().safeParse('müller@example.org').success).toBe(true);
});

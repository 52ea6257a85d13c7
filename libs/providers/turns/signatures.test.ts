import { expect, test } from 'vitest';
import { readSignature, wrapSignature } from './signatures.ts';

test('a signature of the dialect’s own vendor stays as it is', () => {
  expect(wrapSignature('claude', 'claude', 'EqQB==')).toBe('EqQB==');
  expect(readSignature('claude', 'EqQB==')).toEqual({ signer: 'claude', signature: 'EqQB==' });
});

test('any other signature names its signer, even if it is empty', () => {
  for (const signature of ['', 'a.b', 'sluice.x.y', 'line\nbreak']) {
    const wrapped = wrapSignature('claude', 'gemini', signature);
    expect(wrapped).toBe(`sluice.gemini.${signature}`);
    expect(readSignature('claude', wrapped)).toEqual({ signer: 'gemini', signature });
  }
});

test('reasoning of an unknown author never becomes the vendor’s', () => {
  expect(readSignature('claude', wrapSignature('claude', undefined, ''))).toEqual({ signer: 'unknown', signature: '' });
});

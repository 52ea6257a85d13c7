import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { createDownloadLinks } from './download-links.ts';
import { parseMasterKeys } from './master-key.ts';

const newKey = (): string => randomBytes(32).toString('hex');
const [oldKey, key] = [newKey(), newKey()];
const links = createDownloadLinks(parseMasterKeys(key));
const token = links.sign('export_1', 60_999);

test('a token is accepted for its subject until it expires', () => {
  expect(links.accepts('export_1', token, 59_999)).toBe(true);
  expect(links.accepts('export_1', token, 60_000)).toBe(false);
  expect(links.accepts('export_2', token, 0)).toBe(false);
});

test('a token whose expiry or signature was changed is refused', () => {
  const [expiry = '', signature = ''] = token.split('.');
  const changed = signature.startsWith('A') ? `B${signature.slice(1)}` : `A${signature.slice(1)}`;
  for (const wrong of ['', '.', `99999.${signature}`, `0${expiry}.${signature}`, `${expiry}.${changed}`, expiry]) {
    expect({ wrong, isAccepted: links.accepts('export_1', wrong, 0) }).toEqual({ wrong, isAccepted: false });
  }
});

test('while the master key is replaced, tokens by the old one still work; by a foreign one never', () => {
  const older = createDownloadLinks(parseMasterKeys(oldKey)).sign('export_1', 60_000);
  expect(createDownloadLinks(parseMasterKeys(`${key},${oldKey}`)).accepts('export_1', older, 0)).toBe(true);
  expect(links.accepts('export_1', older, 0)).toBe(false);
});

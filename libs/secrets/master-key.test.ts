import { randomBytes } from 'node:crypto';
import { inspect } from 'node:util';
import { expect, test } from 'vitest';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { parseMasterKeys } from './master-key.ts';

const bytes = randomBytes(32);

test('base64, base64url and hex of the same bytes are the same key', () => {
  const ids = [
    bytes.toString('base64'),
    bytes.toString('base64').replace('=', ''),
    bytes.toString('base64url'),
    bytes.toString('hex'),
    bytes.toString('hex').toUpperCase(),
    ` ${bytes.toString('base64')}\n`,
  ].map((text) => parseMasterKeys(text)[0].id);
  expect(new Set(ids).size).toBe(1);
  expect(parseMasterKeys(randomBytes(32).toString('hex'))[0].id).not.toBe(ids[0]);
});

test.each([
  ['empty', ''],
  ['31 bytes', randomBytes(31).toString('base64')],
  ['33 bytes', randomBytes(33).toString('base64')],
  ['63 hex digits', bytes.toString('hex').slice(1)],
  ['zero bytes', Buffer.alloc(32).toString('base64')],
  ['zero bytes in hex', '0'.repeat(64)],
  ['one repeated byte', Buffer.alloc(32, 7).toString('hex')],
  ['a passphrase', 'correct horse battery staple correct horse'],
])('%s is refused without being quoted', (_what, text) => {
  expect(() => parseMasterKeys(text)).toThrow(ConfigurationError);
  expect(() => parseMasterKeys(text)).toThrow(
    /^SLUICE_MASTER_KEY (must be 32 bytes|is one repeated byte).* rand -base64 32$/,
  );
});

test('a master key does not print', () => {
  const masterKey = parseMasterKeys(bytes.toString('hex'));
  const shown = `${inspect(masterKey, { depth: 5 })}${JSON.stringify(masterKey)}`;
  expect(shown).not.toContain(bytes.toString('hex'));
  expect(shown).not.toContain(bytes.toString('base64'));
});

test('several keys are read in their order, however they are separated', () => {
  const texts = [randomBytes(32).toString('base64'), randomBytes(32).toString('hex'), randomBytes(32).toString('hex')];
  const ids = texts.map((text) => parseMasterKeys(text)[0].id);
  for (const separator of [',', ', ', '\n', ' ,\n ']) {
    expect(parseMasterKeys(texts.join(separator)).map(({ id }) => id)).toEqual(ids);
  }
  expect(() => parseMasterKeys([texts[0], 'not a key'].join(','))).toThrow(ConfigurationError);
  expect(() => parseMasterKeys(Array(6).fill(texts[0]).join(','))).toThrow('at most 5 keys');
});

import { inspect } from 'node:util';
import { expect, test } from 'vitest';
import { memberSecret, textSecret } from './fetched-secret.ts';

const keyFile = { type: 'service_account', private_key: '-----BEGIN' };

test.each([
  [textSecret('s', 'sk-1'), null, 'string', 'sk-1'],
  [textSecret('s', '{"key":"sk-1"}'), 'key', 'string', 'sk-1'],
  [textSecret('s', JSON.stringify(keyFile)), null, 'json', JSON.stringify(keyFile)],
  [memberSecret('s', { key: 'sk-1', other: 'x' }), 'key', 'string', 'sk-1'],
  [memberSecret('s', keyFile), null, 'json', JSON.stringify(keyFile)],
  [memberSecret('s', { file: keyFile }), 'file', 'json', JSON.stringify(keyFile)],
  [memberSecret('s', { file: JSON.stringify(keyFile) }), 'file', 'json', JSON.stringify(keyFile)],
] as const)('%# a value is taken as the mapping says', (secret, key, format, value) => {
  expect(secret.pick(key, format).reveal()).toBe(value);
  expect(secret.pick(key, format)).toBe(secret.pick(key, format));
});

test.each([
  ['a member of a text', textSecret('s', 'sk-canary'), 'key', 'string', 'malformed'],
  ['a member of a list', textSecret('s', '["sk-canary"]'), 'key', 'string', 'malformed'],
  ['a member that is not there', textSecret('s', '{"other":"sk-canary"}'), 'key', 'string', 'not_found'],
  ['an inherited member', textSecret('s', '{"other":"sk-canary"}'), 'constructor', 'string', 'not_found'],
  ['an object as a text', memberSecret('s', { key: { a: 'sk-canary' } }), 'key', 'string', 'malformed'],
  ['all members as a text', memberSecret('s', { key: 'sk-canary' }), null, 'string', 'malformed'],
  ['a text as JSON', textSecret('s', 'sk-canary'), null, 'json', 'malformed'],
  ['an empty text', memberSecret('s', { key: '' }), 'key', 'string', 'malformed'],
] as const)('%s is refused, without the secret', (_what, secret, key, format, fault) => {
  expect(() => secret.pick(key, format)).toThrow(expect.objectContaining({ fault, kind: 'dependency_failed' }));
  expect(() => secret.pick(key, format)).not.toThrow('canary');
});

test('nothing that prints a secret shows its values', () => {
  const secret = memberSecret('s', { key: 'sk-canary' });
  const value = secret.pick('key', 'string');
  const shown = [inspect(secret, { depth: 10, showHidden: true }), JSON.stringify({ secret, value }), String(value)];
  expect(shown.join('\n')).not.toContain('canary');
});

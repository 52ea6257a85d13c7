import { expect, test } from 'vitest';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import { createGatewayKey, hashKey, isWellFormedGatewayKey, looksLikeGatewayKey } from './gateway-key.ts';

test('a new key is well formed and differs from every other', () => {
  const keys = new Set(Array.from({ length: 500 }, () => createGatewayKey().reveal()));
  expect(keys.size).toBe(500);
  for (const key of keys) {
    expect(key).toMatch(/^slk_[0-9A-Za-z]{49}$/);
    expect(isWellFormedGatewayKey(key)).toBe(true);
  }
});

test('any single changed character breaks the checksum', () => {
  const key = createGatewayKey().reveal();
  for (let at = 4; at < key.length; at += 1) {
    const other = key[at] === 'x' ? 'y' : 'x';
    expect(isWellFormedGatewayKey(key.slice(0, at) + other + key.slice(at + 1))).toBe(false);
  }
});

test('other shapes are not gateway keys', () => {
  const key = createGatewayKey().reveal();
  for (const token of ['', 'slk_', key.slice(1), `${key}0`, ` ${key}`, `${key}\n`, key.replace('slk_', 'sk-')]) {
    expect(isWellFormedGatewayKey(token)).toBe(false);
  }
  expect(looksLikeGatewayKey(key)).toBe(true);
  expect(looksLikeGatewayKey('sk-proj-1')).toBe(false);
});

test('the digest is SHA-256 in hex', () => {
  expect(hashKey('abc')).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
});

test('a key cannot be printed by accident, and scrubbing removes it from foreign text', () => {
  const key = createGatewayKey();
  expect(JSON.stringify({ key })).toBe('{"key":"[redacted]"}');
  expect(scrub(`the key ${key.reveal()} was refused`)).not.toContain(key.reveal().slice(4));
});

import { expect, test } from 'vitest';
import { parseMasterKeys } from './master-key.ts';
import { createSessions } from './sessions.ts';

const key = Buffer.alloc(32, 'ab').toString('base64');
const oldKey = Buffer.alloc(32, 'cd').toString('base64');
const sessions = createSessions(parseMasterKeys(key));

test('a session stands for its token until it expires', () => {
  const cookie = sessions.seal('sk-one two', 60_999);
  expect(sessions.open(cookie, 59_999)).toBe('sk-one two');
  expect(sessions.open(cookie, 60_000)).toBeNull();
});

test('the token cannot be read from the cookie, and no two cookies are the same', () => {
  const cookie = sessions.seal('sk-secret', 60_000);
  expect(Buffer.from(cookie, 'base64url').toString('latin1')).not.toContain('sk-secret');
  expect(sessions.seal('sk-secret', 60_000)).not.toBe(cookie);
});

test('a cookie that was changed or made up opens nothing', () => {
  const cookie = sessions.seal('sk-secret', 60_000);
  const changed = Buffer.from(cookie, 'base64url');
  changed[14] = (changed[14] ?? 0) ^ 1;
  for (const wrong of ['', 'x', 'a'.repeat(200), changed.toString('base64url'), cookie.slice(0, -6)])
    expect({ wrong, token: sessions.open(wrong, 0) }).toEqual({ wrong, token: null });
});

test('sessions by the older master key are accepted while it is being replaced', () => {
  const cookie = createSessions(parseMasterKeys(oldKey)).seal('sk-one', 60_000);
  expect(createSessions(parseMasterKeys(`${key},${oldKey}`)).open(cookie, 0)).toBe('sk-one');
  expect(sessions.open(cookie, 0)).toBeNull();
});

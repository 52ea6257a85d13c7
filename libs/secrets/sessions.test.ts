import { expect, test } from 'vitest';
import { parseMasterKeys } from './master-key.ts';
import { createSessions } from './sessions.ts';

const key = Buffer.alloc(32, 'ab').toString('base64');
const oldKey = Buffer.alloc(32, 'cd').toString('base64');
const sessions = createSessions(parseMasterKeys(key));

test('a session stands for its token until it expires', () => {
  const session = { id: 'sess_1', token: 'sk-one two' };
  const cookie = sessions.seal(session, 60_999);
  expect(sessions.open(cookie, 59_999)).toEqual(session);
  expect(sessions.open(cookie, 60_000)).toBeNull();
});

const secret = { id: 'sess_1', token: 'sk-secret' };

test('the token cannot be read from the cookie, and no two cookies are the same', () => {
  const cookie = sessions.seal(secret, 60_000);
  expect(Buffer.from(cookie, 'base64url').toString('latin1')).not.toContain('sk-secret');
  expect(sessions.seal(secret, 60_000)).not.toBe(cookie);
});

test('a cookie that was changed or made up opens nothing', () => {
  const cookie = sessions.seal(secret, 60_000);
  const changed = Buffer.from(cookie, 'base64url');
  changed[14] = (changed[14] ?? 0) ^ 1;
  for (const wrong of ['', 'x', 'a'.repeat(200), changed.toString('base64url'), cookie.slice(0, -6)])
    expect({ wrong, session: sessions.open(wrong, 0) }).toEqual({ wrong, session: null });
});

test('sessions by the older master key are accepted while it is being replaced', () => {
  const cookie = createSessions(parseMasterKeys(oldKey)).seal(secret, 60_000);
  expect(createSessions(parseMasterKeys(`${key},${oldKey}`)).open(cookie, 0)).toEqual(secret);
  expect(sessions.open(cookie, 0)).toBeNull();
});

import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { expect, test } from 'vitest';
import { createSessions } from '#libs/secrets/sessions.ts';
import { parseMasterKeys } from '#libs/secrets/master-key.ts';
import { createBrowserSessions } from './browser-sessions.ts';

const sessions = createSessions(parseMasterKeys(Buffer.alloc(32, 'ab').toString('base64')));
let nowMs = 1_000_000;
const create = (isSecure = false) =>
  createBrowserSessions({ sessions, clock: { now: () => nowMs }, ttlMs: 60_000, isSecure });

function begin(key: string, keyExpiresAtMs = Infinity, isSecure = false): string {
  const headers: string[] = [];
  const request = { headers: { authorization: `Bearer ${key}` } } as IncomingMessage;
  const response = { appendHeader: (_name: string, value: string) => headers.push(value) };
  create(isSecure).begin(request, response as unknown as ServerResponse, keyExpiresAtMs);
  return headers[0] ?? '';
}

function admitted(headers: IncomingHttpHeaders, method = 'GET'): string | undefined {
  const request = { method, headers: { host: 'sluice.test', ...headers } } as IncomingMessage;
  create().admit(request);
  return request.headers['x-gateway-api-key'] as string | undefined;
}

const cookie = (): string => `theme=dark; ${begin('sk-key').split(';')[0] ?? ''}`;

test('a session stands for the key with which it began', () => {
  expect(admitted({ cookie: cookie() })).toBe('sk-key');
  expect(admitted({ cookie: cookie(), 'x-sluice-console': '1', origin: 'http://sluice.test' }, 'POST')).toBe('sk-key');
});

test('the cookie is hidden from scripts and from other sites, and needs https where the API has it', () => {
  expect(begin('sk-key')).toMatch(/^sluice_session=[\w-]+; Max-Age=60; Path=\/; HttpOnly; SameSite=Strict$/);
  expect(begin('sk-key', Infinity, true)).toMatch(/; Secure$/);
  expect(begin('sk-key')).not.toContain('sk-key');
});

test('a session ends with its key', () => {
  expect(begin('sk-key', nowMs + 5_000)).toContain('Max-Age=5;');
});

test('an expired session is no session', () => {
  const old = cookie();
  nowMs += 61_000;
  expect(admitted({ cookie: old })).toBeUndefined();
});

test('a key in a header counts instead of the session', () => {
  const request = {
    method: 'POST',
    headers: { cookie: cookie(), authorization: 'Bearer sk-other' },
  } as IncomingMessage;
  create().admit(request);
  expect(request.headers['x-gateway-api-key']).toBeUndefined();
});

test.each<[string, string, IncomingHttpHeaders]>([
  ['a form of another page', 'POST', {}],
  ['a script of a sibling domain', 'POST', { 'sec-fetch-site': 'same-site', 'x-sluice-console': '1' }],
  ['a script of another origin', 'POST', { origin: 'http://evil.test', 'x-sluice-console': '1' }],
  ['an opaque origin', 'POST', { origin: 'null', 'x-sluice-console': '1' }],
  ['an image of another page', 'GET', { 'sec-fetch-site': 'cross-site' }],
])('%s cannot use the session', (_who, method, headers) => {
  expect(() => admitted({ cookie: cookie(), ...headers }, method)).toThrow(
    expect.objectContaining({ code: 'foreign_page' }),
  );
});

test('a token too long for a cookie is refused with what to do', () => {
  expect(() => begin('x'.repeat(3_000))).toThrow(/Sign in with an API key/);
});

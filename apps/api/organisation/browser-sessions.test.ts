import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { expect, test } from 'vitest';
import { getContext, openContext } from '#libs/http/request-context.ts';
import { createSessions } from '#libs/secrets/sessions.ts';
import { parseMasterKeys } from '#libs/secrets/master-key.ts';
import { createBrowserSessions } from './browser-sessions.ts';

const sessions = createSessions(parseMasterKeys(Buffer.alloc(32, 'ab').toString('base64')));
let nowMs = 1_000_000;
const ended = new Set<string>();
const create = (isSecure = false) =>
  createBrowserSessions({
    sessions,
    isLive: (id) => !ended.has(id),
    clock: { now: () => nowMs },
    ttlMs: 60_000,
    isSecure,
  });

async function begin(key: string, keyExpiresAtMs = Infinity, isSecure = false, id = 'session_1'): Promise<string> {
  const headers: string[] = [];
  const request = { headers: { authorization: `Bearer ${key}` } } as IncomingMessage;
  const response = { setHeader: () => {}, appendHeader: (_name: string, value: string) => headers.push(value) };
  const recorded = (): Promise<string> => Promise.resolve(id);
  await create(isSecure).begin(request, response as unknown as ServerResponse, keyExpiresAtMs, recorded);
  return headers[0] ?? '';
}

function requestWith(headers: IncomingHttpHeaders, method: string): IncomingMessage {
  const head = { httpVersionMajor: 1, httpVersion: '1.1', rawHeaders: [] as string[] };
  const request = { ...head, method, headers: { host: 'sluice.test', ...headers } } as IncomingMessage;
  openContext(request, null);
  return request;
}

function admitted(headers: IncomingHttpHeaders, method = 'GET', isSecure = false): string | undefined {
  const request = requestWith(headers, method);
  create(isSecure).admit(request);
  return request.headers['x-gateway-api-key'] as string | undefined;
}

const pairOf = (header: string): string => header.split(';')[0] ?? '';
const cookie = async (): Promise<string> => `theme=dark; ${pairOf(await begin('sk-key'))}`;

test('a session stands for the key with which it began', async () => {
  expect(admitted({ cookie: await cookie() })).toBe('sk-key');
  expect(admitted({ cookie: await cookie(), 'x-sluice-console': '1', origin: 'http://sluice.test' }, 'POST')).toBe(
    'sk-key',
  );
});

test('the cookie is hidden from scripts and from other sites, and needs https where the API has it', async () => {
  expect(await begin('sk-key')).toMatch(/^sluice_session=[\w-]+; Max-Age=60; Path=\/; HttpOnly; SameSite=Strict$/);
  expect(await begin('sk-key', Infinity, true)).toMatch(/^__Host-sluice_session=[\w-]+; .*Path=\/; .*; Secure$/);
  expect(await begin('sk-key')).not.toContain('sk-key');
});

test('a session ends with its key', async () => {
  expect(await begin('sk-key', nowMs + 5_000)).toContain('Max-Age=5;');
});

test('a cookie that another page planted does not hide the session, wherever the browser puts it', async () => {
  const own = pairOf(await begin('sk-key'));
  const ofEnded = pairOf(await begin('sk-other', Infinity, false, 'session_ended'));
  ended.add('session_ended');
  for (const planted of ['sluice_session=made-up', 'sluice_session=', ofEnded]) {
    expect(admitted({ cookie: `${planted}; ${own}` })).toBe('sk-key');
    expect(admitted({ cookie: `${own}; ${planted}` })).toBe('sk-key');
  }
  // With https, only the cookie that other pages cannot set is read.
  expect(admitted({ cookie: own }, 'GET', true)).toBeUndefined();
  expect(admitted({ cookie: pairOf(await begin('sk-key', Infinity, true)) }, 'GET', true)).toBe('sk-key');
});

test('an expired session is no session', async () => {
  const old = await cookie();
  nowMs += 61_000;
  expect(admitted({ cookie: old })).toBeUndefined();
});

test('a key in a header counts instead of the session', async () => {
  const request = requestWith({ cookie: await cookie(), authorization: 'Bearer sk-other' }, 'POST');
  create().admit(request);
  expect(request.headers['x-gateway-api-key']).toBeUndefined();
  expect(getContext(request).isBrowserSession).toBe(false);
});

test('the request of a session is marked, because it cannot do everything that its key can', async () => {
  const request = requestWith({ cookie: await cookie(), 'sec-fetch-dest': 'empty' }, 'GET');
  create().admit(request);
  expect(getContext(request).isBrowserSession).toBe(true);
});

test.each(['document', 'iframe', 'embed', 'object', 'script', 'image', 'worker'])(
  'the browser cannot use the session to load an answer as: %s',
  async (destination) => {
    const headers = { cookie: await cookie(), 'sec-fetch-site': 'same-origin', 'sec-fetch-dest': destination };
    expect(() => admitted(headers)).toThrow(expect.objectContaining({ code: 'not_a_page' }));
  },
);

test.each<[string, string, IncomingHttpHeaders]>([
  ['a form of another page', 'POST', {}],
  ['a script of a sibling domain', 'POST', { 'sec-fetch-site': 'same-site', 'x-sluice-console': '1' }],
  ['a script of another origin', 'POST', { origin: 'http://evil.test', 'x-sluice-console': '1' }],
  ['an opaque origin', 'POST', { origin: 'null', 'x-sluice-console': '1' }],
  ['an image of another page', 'GET', { 'sec-fetch-site': 'cross-site' }],
])('%s cannot use the session', async (_who, method, headers) => {
  const own = await cookie();
  expect(() => admitted({ cookie: own, ...headers }, method)).toThrow(
    expect.objectContaining({ code: 'foreign_page' }),
  );
});

test('a token too long for a cookie is refused with what to do', async () => {
  await expect(begin('x'.repeat(3_000))).rejects.toThrow(/Sign in with an API key/);
});

import type { JSONWebKeySet } from 'jose';
import { exportJWK, generateKeyPair } from 'jose';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { createEgress, type Egress } from '#libs/calls/upstream/egress/egress.ts';
import { fetchKeySet } from '#libs/calls/upstream/egress/fetch-key-set.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { createSigningKeys, type SigningKeys } from './signing-keys.ts';

const logger = createLogger({ name: 'test', level: 'silent' });
let jwk: object;
let upstream: Upstream;
let egress: Egress;
beforeAll(async () => {
  jwk = await exportJWK((await generateKeyPair('ES256')).publicKey);
  upstream = await startUpstream();
  egress = createEgress({ allow: parseEgressAllow(`127.0.0.1:${upstream.port}`) });
});
afterAll(async () => {
  await egress.stop();
  await upstream.stop();
});

const state = { nowMs: 0, fetches: 0, answer: (): Promise<JSONWebKeySet> => Promise.reject(new Error('not set')) };
let keys: SigningKeys;
beforeEach(() => {
  Object.assign(state, { nowMs: 1_000_000, fetches: 0 });
  serve('a');
  keys = createSigningKeys({
    logger,
    monotonicMs: () => state.nowMs,
    fetchKeys() {
      state.fetches += 1;
      return state.answer();
    },
  });
});

function serve(...kids: string[]): void {
  state.answer = () => Promise.resolve({ keys: kids.map((kid) => ({ ...jwk, kid })) } as JSONWebKeySet);
}
const fail = (): void => void (state.answer = () => Promise.reject(new Error('down')));
const find = async (kid: string): Promise<unknown> => await keys.find({ alg: 'ES256', kid }, {} as never);
const unknown = { code: 'ERR_JWKS_NO_MATCHING_KEY' };
const unavailable = { kind: 'unavailable', code: 'sign_in_unavailable' };

test('keys are fetched when the first token needs them, once for all who wait', async () => {
  await Promise.all(['a', 'a', 'a'].map(find));
  expect(state.fetches).toBe(1);
});

test('a new key is found when a token first names it, and unknown ones fetch the keys every 30 s at most', async () => {
  await find('a');
  state.nowMs += 30_000;
  serve('a', 'b');
  await find('b');
  expect(state.fetches).toBe(2);
  for (const kid of ['c', 'd', 'e']) await expect(find(kid)).rejects.toMatchObject(unknown);
  expect(state.fetches).toBe(2);
  state.nowMs += 30_000;
  await expect(find('c')).rejects.toMatchObject(unknown);
  expect(state.fetches).toBe(3);
});

test('a server that does not answer holds no token of a known key, and the others share one wait', async () => {
  await find('a');
  state.nowMs += 30_000;
  const answered = Promise.withResolvers<JSONWebKeySet>();
  state.answer = () => answered.promise;
  const waiting = Promise.allSettled([find('b'), find('c')]);
  await find('a');
  await new Promise(setImmediate);
  expect(state.fetches).toBe(2);
  answered.reject(new Error('timed out'));
  expect(await waiting).toMatchObject([{ reason: unavailable }, { reason: unavailable }]);
  await find('a');
  await expect(find('b')).rejects.toMatchObject(unavailable);
  expect(state.fetches).toBe(2);
});

test('keys that were withdrawn are not believed after a refresh, and the generation tells of it', async () => {
  await keys.wake();
  const before = keys.generation();
  await keys.wake();
  expect(keys.generation()).toBe(before);
  serve('b');
  await keys.wake();
  expect(keys.generation()).toBe(before + 1);
  await expect(find('a')).rejects.toMatchObject(unknown);
});

test('while the server is down the keys are believed for a day, and then no more', async () => {
  await find('a');
  fail();
  state.nowMs += 86_400_000;
  await keys.wake();
  await find('a');
  state.nowMs += 1;
  await expect(find('a')).rejects.toMatchObject(unavailable);
});

test('nothing is known before the first answer, and everything is well after it', async () => {
  fail();
  await expect(find('a')).rejects.toMatchObject(unavailable);
  serve('a');
  await expect(find('a')).rejects.toMatchObject(unavailable);
  state.nowMs += 30_000;
  await find('a');
});

const readSet = () => fetchKeySet({ egress }, `${upstream.url.origin}/keys`, undefined);

test.each([
  ['that is too large', { keys: [{ kty: 'x'.repeat(300_000) }] }],
  ['of too many keys', { keys: Array.from({ length: 101 }, () => ({ kty: 'EC' })) }],
  ['without keys', { error: 'no' }],
  ['that is no object', null],
])('an answer %s is no key set', async (_what, body) => {
  upstream.script((reply) => reply.json(200, body));
  await expect(readSet()).rejects.toBeInstanceOf(GatewayError);
});

test('an error, a redirect and an address that is not allowed are no key sets either', async () => {
  upstream.script((reply) => reply.json(500, {}));
  await expect(readSet()).rejects.toMatchObject({ code: 'jwks_unusable' });
  upstream.script((reply) => reply.json(302, {}));
  await expect(readSet()).rejects.toMatchObject({ code: 'upstream_redirect' });
  await expect(fetchKeySet({ egress }, 'http://169.254.169.254/keys', undefined)).rejects.toMatchObject({
    code: 'destination_not_allowed',
  });
});

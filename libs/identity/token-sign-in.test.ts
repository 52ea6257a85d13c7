import { createHmac } from 'node:crypto';
import { exportJWK, exportSPKI, generateKeyPair, SignJWT, type CryptoKey } from 'jose';
import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createSigningKeys, type SigningKeys } from './signing-keys.ts';
import { createTokenSignIn, looksLikeToken, type TokenIdentity, type TokenSignIn } from './token-sign-in.ts';

const nowSeconds = 1_800_000_000;
const issuer = 'https://login.example.com/';
const used = ['RS256', 'ES256', 'EdDSA', 'PS512'] as const;
type Algorithm = (typeof used)[number];
const pairs = new Map<string, { publicKey: CryptoKey; privateKey: CryptoKey }>();
let listed: object[];
beforeAll(async () => {
  for (const alg of used) pairs.set(alg, await generateKeyPair(alg, { extractable: true }));
  listed = await Promise.all(used.map(async (kid) => ({ ...(await exportJWK(pairOf(kid).publicKey)), kid })));
});
const pairOf = (alg: string) => pairs.get(alg)!;

const state = { nowMs: 0, fetches: 0, version: 1, served: [] as object[], welcomed: 0 };
let identities: TokenIdentity[];
let refusal: GatewayError | null;
let keys: SigningKeys;
let signIn: TokenSignIn;
beforeEach(() => {
  Object.assign(state, { nowMs: nowSeconds * 1_000, fetches: 0, version: 1, served: listed, welcomed: 0 });
  identities = [];
  refusal = null;
  keys = createSigningKeys({
    logger: createLogger({ name: 'test', level: 'silent' }),
    monotonicMs: () => state.nowMs,
    fetchKeys() {
      state.fetches += 1;
      return Promise.resolve({ keys: state.served });
    },
  });
  signIn = createTokenSignIn({
    settings: {
      issuer,
      audiences: ['sluice', 'other'],
      toleranceMs: 30_000,
      claims: { user: 'sub', workspace: 'workspace', role: 'https://example.com/role', scopes: 'a.b', email: 'email' },
      trustsUnmarkedEmail: false,
    },
    keys,
    clock: { now: () => state.nowMs },
    accessVersion: () => state.version,
    getCaller(identity) {
      identities.push(identity);
      if (refusal !== null) throw refusal;
      return { keyId: identity.user } as Caller;
    },
    welcome: () => {
      state.welcomed += 1;
      refusal = null;
      return Promise.resolve();
    },
  });
});

const claims = { sub: 'user_1', iss: issuer, aud: 'sluice', iat: nowSeconds, exp: nowSeconds + 600 };
const tokenOf = (own: object = {}, alg: Algorithm = 'RS256', header: object = {}, key = pairOf(alg).privateKey) =>
  new SignJWT({ ...claims, ...own }).setProtectedHeader({ alg, kid: alg, ...header }).sign(key);
const base64 = (value: object | string): string =>
  Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');
const refused = { kind: 'unauthenticated', code: 'invalid_token' };

test.each(used)('a token of %s signs its user in, and is verified once', async (alg) => {
  const token = await tokenOf({}, alg);
  expect(looksLikeToken(token)).toBe(true);
  expect(signIn.find(token)).toBeNull();
  const caller = await signIn.verify(token);
  expect(caller).toMatchObject({ keyId: 'user_1' });
  // A token that was valid before the keys were known is found once they are.
  if (signIn.find(token) === null) await signIn.verify(token);
  expect(signIn.find(token)).toMatchObject({ keyId: 'user_1' });
});

test('a token without a signature is refused', async () => {
  const unsigned = `${base64({ alg: 'none' })}.${base64(claims)}.`;
  await expect(signIn.verify(unsigned)).rejects.toMatchObject(refused);
  const [, payload = ''] = (await tokenOf()).split('.');
  await expect(signIn.verify(`${base64({ alg: 'RS256', kid: 'RS256' })}.${payload}.`)).rejects.toMatchObject(refused);
});

test('a token that is signed with the public key as a shared secret is refused', async () => {
  for (const secret of [await exportSPKI(pairOf('RS256').publicKey), JSON.stringify(listed[0])]) {
    const text = `${base64({ alg: 'HS256', kid: 'RS256' })}.${base64(claims)}`;
    const token = `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`;
    await expect(signIn.verify(token)).rejects.toMatchObject({
      ...refused,
      message: expect.stringContaining('algorithm'),
    });
  }
});

test.each([
  ['another issuer', { iss: 'https://login.example.com' }, "claim 'iss'"],
  ['no issuer', { iss: undefined }, "claim 'iss'"],
  ['another audience', { aud: ['x', 'y'] }, "claim 'aud'"],
  ['no audience', { aud: undefined }, "claim 'aud'"],
  ['no end', { exp: undefined }, "claim 'exp'"],
  ['an end that is no number', { exp: 'never' }, "claim 'exp'"],
  ['no user', { sub: undefined }, "claim 'sub'"],
  ['a user that is no text', { sub: 7 }, "claim 'sub'"],
  ['an end beyond the tolerance', { exp: nowSeconds - 30 }, 'expired'],
  ['a beginning beyond the tolerance', { nbf: nowSeconds + 31 }, 'not valid yet'],
])('a token with %s is refused', async (_what, own, why) => {
  await expect(signIn.verify(await tokenOf(own))).rejects.toMatchObject({
    ...refused,
    message: expect.stringContaining(why),
  });
});

test('clocks may differ by the tolerance', async () => {
  await signIn.verify(await tokenOf({ exp: nowSeconds - 29 }));
  await signIn.verify(await tokenOf({ nbf: nowSeconds + 30 }));
});

test.each([
  ['another key', () => tokenOf({}, 'ES256', { kid: 'RS256' })],
  ['a key that nobody published', async () => tokenOf({}, 'RS256', {}, (await generateKeyPair('RS256')).privateKey)],
  ['an unknown kid', () => tokenOf({}, 'RS256', { kid: 'unknown' })],
  [
    'a critical header that nobody understands',
    async () => {
      const text = `${base64({ alg: 'RS256', kid: 'RS256', crit: ['exp'], exp: 1 })}.${base64(claims)}`;
      const key = pairOf('RS256').privateKey;
      const signature = await crypto.subtle.sign('RSASSA-PKCS1-v1_5', key, Buffer.from(text));
      return `${text}.${Buffer.from(signature).toString('base64url')}`;
    },
  ],
  [
    'a changed claim',
    async () => {
      const [header, , signature] = (await tokenOf()).split('.');
      return `${header}.${base64({ ...claims, sub: 'user_2' })}.${signature}`;
    },
  ],
  ['more than 16 KiB', () => tokenOf({ padding: 'x'.repeat(16_384) })],
  ['no JSON in it', () => Promise.resolve(`eyJ.${base64('x')}.${base64('x')}`)],
])('a token with %s is refused', async (_what, make) => {
  await expect(signIn.verify(await make())).rejects.toMatchObject(refused);
  expect(identities).toEqual([]);
});

test('a token of the old key holds until the key is withdrawn, and one of the new key from its first call', async () => {
  const [old, next] = [await tokenOf({}, 'RS256'), await tokenOf({}, 'ES256')];
  state.served = listed.filter((key) => (key as { kid: string }).kid === 'RS256');
  await keys.wake();
  await signIn.verify(old);
  state.nowMs += 31_000;
  state.served = listed;
  await signIn.verify(next);
  state.served = listed.filter((key) => (key as { kid: string }).kid === 'ES256');
  await keys.wake();
  expect(signIn.find(old)).toBeNull();
  await expect(signIn.verify(old)).rejects.toMatchObject(refused);
});

test('a verified token vouches for no other one, however similar', async () => {
  await keys.wake();
  const token = await tokenOf();
  await signIn.verify(token);
  const [header, , signature] = token.split('.');
  expect(signIn.find(`${header}.${base64({ ...claims, sub: 'user_2' })}.${signature}`)).toBeNull();
  expect(signIn.find(`${token}A`)).toBeNull();
  expect(signIn.find(token.toUpperCase())).toBeNull();
});

test('a verified token ends when it expires', async () => {
  await keys.wake();
  const token = await tokenOf();
  await signIn.verify(token);
  state.nowMs += 629_000;
  expect(signIn.find(token)).not.toBeNull();
  state.nowMs += 1_001;
  expect(signIn.find(token)).toBeNull();
});

test('who a verified token is, is asked again only when people have changed', async () => {
  await keys.wake();
  const token = await tokenOf();
  await signIn.verify(token);
  signIn.find(token);
  expect(identities).toHaveLength(1);
  state.version += 1;
  refusal = new GatewayError('forbidden', 'unknown_user', 'Nobody.');
  expect(() => signIn.find(token)).toThrow('Nobody.');
  expect(() => signIn.find(token)).toThrow('Nobody.');
});

test('a user whom nobody knows is welcomed once, when the token is first seen', async () => {
  await keys.wake();
  refusal = new GatewayError('forbidden', 'unknown_user', 'Nobody.');
  const token = await tokenOf();
  expect(await signIn.verify(token)).toMatchObject({ keyId: 'user_1' });
  signIn.find(token);
  expect(state.welcomed).toBe(1);
});

test('claims are read by name or by path, and scopes as a list or as words', async () => {
  const own = { workspace: 'ws', email: 'a@b.c', 'https://example.com/role': ['viewer', 'manager'] };
  await signIn.verify(await tokenOf({ ...own, a: { b: 'chat.write  models.read' } }));
  await signIn.verify(await tokenOf({ 'https://example.com/role': 'admin', a: { b: ['chat.write', 7] } }));
  await signIn.verify(await tokenOf({ workspace: 7, email: 'a@b.c', email_verified: false }));
  const user = 'user_1';
  const nothing = { user, workspace: null, email: null };
  expect(identities).toEqual([
    {
      user,
      workspace: 'ws',
      email: 'a@b.c',
      roles: ['viewer', 'manager'],
      scopes: new Set(['chat.write', 'models.read']),
    },
    { ...nothing, roles: ['admin'], scopes: new Set(['chat.write']) },
    { ...nothing, roles: null, scopes: null },
  ]);
});

describe('a user who is found by an e-mail address', () => {
  const marks = [true, 'true', false, 'false', 'TRUE', 0, 1, '', null, {}, ['true'], undefined];
  const cases = marks.flatMap((mark) => [
    { mark, trustsUnmarkedEmail: false, isAccepted: mark === true || mark === 'true' },
    { mark, trustsUnmarkedEmail: true, isAccepted: mark === true || mark === 'true' || mark === undefined },
  ]);

  test.each(cases)('with email_verified $mark and trust $trustsUnmarkedEmail: $isAccepted', async (each) => {
    const { mark, trustsUnmarkedEmail, isAccepted } = each;
    const claims = { user: 'email', workspace: 'workspace', role: 'role', scopes: 'scopes', email: 'email' };
    const byEmail = createTokenSignIn({
      settings: { issuer, audiences: ['sluice'], toleranceMs: 30_000, claims, trustsUnmarkedEmail },
      keys,
      clock: { now: () => state.nowMs },
      accessVersion: () => state.version,
      getCaller: ({ user }) => ({ keyId: user }) as Caller,
    });
    const token = await tokenOf({ email: 'a@b.c', ...(mark === undefined ? {} : { email_verified: mark }) });
    const code = await byEmail.verify(token).then(
      () => null,
      (error: unknown) => (error as GatewayError).code,
    );
    expect(code).toBe(isAccepted ? null : 'invalid_token');
  });
});

test('an API key does not look like a token', () => {
  expect(looksLikeToken('slk_0123456789')).toBe(false);
});

import { exportJWK, generateKeyPair, SignJWT, type CryptoKey } from 'jose';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { createEgress, type Egress } from '#libs/calls/upstream/egress/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import { guardrailChecks } from '#libs/contracts/configs/guardrail-checks.ts';
import { hang, startUpstream, type Upstream } from '#test/upstream.ts';
import { createJwtCheck, type JwtCheck } from './jwt-check.ts';
import type { GuardrailSubject } from '../texts/subject.ts';

const startMs = Date.UTC(2026, 0, 1);
const nowSeconds = startMs / 1_000;
let nowMs = startMs;
let upstream: Upstream;
let egress: Egress;
let check: JwtCheck;
let old: { publicKey: CryptoKey; privateKey: CryptoKey };
let fresh: typeof old;

beforeAll(async () => {
  upstream = await startUpstream();
  egress = createEgress({ allow: parseEgressAllow(`127.0.0.1:${upstream.port}`) });
  old = await generateKeyPair('RS256', { extractable: true });
  fresh = await generateKeyPair('ES256', { extractable: true });
});
afterAll(async () => {
  await egress.stop();
  await upstream.stop();
});
beforeEach(async () => {
  nowMs = startMs;
  upstream.requests.length = 0;
  await serve(['old', old]);
  check = createJwtCheck({ egress, clock: { now: () => nowMs } });
});

async function serve(...keys: [kid: string, pair: typeof old][]): Promise<void> {
  const listed = await Promise.all(
    keys.map(async ([kid, { publicKey }]) => ({ ...(await exportJWK(publicKey)), kid })),
  );
  upstream.script((reply) => reply.json(200, { keys: listed }));
}

const tokenOf = (header: object = {}, claims: object = {}, key: CryptoKey | Uint8Array = old.privateKey) =>
  new SignJWT({ iat: nowSeconds, exp: nowSeconds + 600, ...claims })
    .setProtectedHeader({ alg: 'RS256', kid: 'old', ...header })
    .sign(key);

async function judge(token: string | undefined, parameters: object = {}, workspaceId = 'ws_a') {
  const given = guardrailChecks.jwt.parse({
    jwksUri: `${upstream.url.origin}/keys`,
    headerKey: 'X-Token',
    ...parameters,
  });
  const subject = {
    workspaceId,
    headers: token === undefined ? {} : { 'x-token': token },
    signal: new AbortController().signal,
  };
  return await check(
    { name: 'jwt', id: 'default.jwt', label: null, allowsMedia: false, parameters: given },
    subject as GuardrailSubject,
  );
}

const verdict = async (...given: Parameters<typeof judge>): Promise<boolean> => (await judge(...given)).verdict;

test('a valid token passes, with or without its scheme, and the keys are fetched once for each workspace', async () => {
  expect(await verdict(await tokenOf())).toBe(true);
  expect(await verdict(`Bearer ${await tokenOf()}`)).toBe(true);
  expect(await verdict(await tokenOf(), { not: true })).toBe(false);
  expect(upstream.requests).toHaveLength(1);
  expect(await verdict(await tokenOf(), {}, 'ws_b')).toBe(true);
  expect(upstream.requests).toHaveLength(2);
  nowMs += 86_400_000;
  await verdict(await tokenOf());
  expect(upstream.requests).toHaveLength(3);
});

const unsigned = (header: object): string =>
  `${[header, { iat: nowSeconds }].map((part) => Buffer.from(JSON.stringify(part)).toString('base64url')).join('.')}.`;

test.each<[string, () => Promise<string | undefined> | string]>([
  ['no header', async () => await Promise.resolve(undefined)],
  ['what is no token', () => 'sk-1234'],
  ['a token without a signature', () => unsigned({ alg: 'none' })],
  ['a symmetric signature', () => tokenOf({ alg: 'HS256' }, {}, Buffer.alloc(64))],
  ['an algorithm that is not allowed', () => tokenOf({ alg: 'ES256' }, {}, fresh.privateKey)],
  ['another key of the same name', async () => tokenOf({}, {}, (await generateKeyPair('RS256')).privateKey)],
  ['a token that has expired', () => tokenOf({}, { exp: nowSeconds - 6 })],
  ['a token of the future', () => tokenOf({}, { nbf: nowSeconds + 6 })],
  ['a token that was issued too long ago', () => tokenOf({}, { iat: nowSeconds - 90_000 })],
  ['a token that does not say when it was issued', () => tokenOf({}, { iat: undefined })],
  ['an unknown critical header', () => `${unsigned({ alg: 'RS256', kid: 'old', crit: ['x'], x: 1 })}AAAA`],
  ['a token of 16 KiB', () => tokenOf({}, { more: 'x'.repeat(16_384) })],
])('%s fails, and what is reported never repeats the token', async (_what, make) => {
  const token = await make();
  const { verdict: passed, data } = await judge(token);
  expect(passed).toBe(false);
  expect(await verdict(token, { not: true })).toBe(true);
  expect(JSON.stringify(data)).not.toContain(token ?? 'eyJ');
});

test('a token must be of the issuer and for the audience that the check names', async () => {
  const token = await tokenOf({}, { iss: 'https://idp.example.com', aud: ['sluice', 'other'] });
  const [issuer, audience] = ['https://idp.example.com', ['billing', 'sluice']];
  expect(await verdict(token, { issuer, audience })).toBe(true);
  expect(await verdict(token, { issuer: ['https://elsewhere.example.com'], audience })).toBe(false);
  expect(await verdict(token, { issuer, audience: 'billing' })).toBe(false);
  expect(await verdict(await tokenOf(), { issuer, audience })).toBe(false);
});

test('a small difference between clocks is tolerated', async () => {
  expect(await verdict(await tokenOf({}, { exp: nowSeconds - 4, nbf: nowSeconds - 10 }))).toBe(true);
});

test('a token with a new key id makes the keys be fetched again, but not for each such token', async () => {
  await verdict(await tokenOf());
  await serve(['new', fresh]);
  const token = await tokenOf({ alg: 'ES256', kid: 'new' }, {}, fresh.privateKey);
  const algorithms = { algorithms: ['ES256', 'RS256'] };
  expect(await verdict(token, algorithms)).toBe(false);
  nowMs += 30_000;
  expect(await verdict(token, algorithms)).toBe(true);
  for (let n = 0; n < 5; n += 1) await verdict(await tokenOf({ kid: `made-up-${n}` }), algorithms);
  expect(upstream.requests).toHaveLength(2);
});

test.each([
  ['an error', 500, '{}'],
  ['a redirect', 302, ''],
  ['no JSON', 200, '<html>'],
  ['no keys', 200, '{"keys":1}'],
  ['too many keys', 200, JSON.stringify({ keys: Array.from({ length: 101 }, () => ({ kty: 'RSA' })) })],
  ['too many bytes', 200, `{"keys":[],"x":"${'x'.repeat(300_000)}"}`],
])('a server of keys that answers with %s fails the check, also with not', async (_what, status, body) => {
  upstream.script((reply) => reply.respond(status, body, status === 302 ? { location: 'http://127.0.0.1/' } : {}));
  expect(await verdict(await tokenOf())).toBe(false);
  expect(await verdict(await tokenOf(), { not: true })).toBe(false);
});

test('a key server that hangs does not delay a caller who leaves, and simultaneous calls share one request', async () => {
  upstream.script(hang);
  const token = await tokenOf();
  const controller = new AbortController();
  const subject = { workspaceId: 'ws_a', headers: { 'x-token': token }, signal: controller.signal } as never;
  const parameters = guardrailChecks.jwt.parse({ jwksUri: upstream.url.href, headerKey: 'x-token' });
  const asking = [1, 2].map(() =>
    check({ name: 'jwt', id: 'default.jwt', label: null, allowsMedia: false, parameters }, subject),
  );
  await upstream.until(() => upstream.requests.length === 1);
  controller.abort(new Error('left'));
  for (const asked of asking) await expect(asked).rejects.toThrow('left');
  expect(upstream.requests).toHaveLength(1);
});

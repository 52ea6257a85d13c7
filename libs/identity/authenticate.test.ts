import { expect, test } from 'vitest';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createAuthenticate, type LiveApiKey } from './authenticate.ts';
import { createGatewayKey, hashKey } from './gateway-key.ts';

function liveKey(token: string, expiresAtMs = Number.POSITIVE_INFINITY): LiveApiKey {
  return {
    expiresAtMs,
    caller: {
      workspaceId: 'ws_1',
      keyId: `key_${token.slice(-4)}`,
      principal: { type: 'service_key', id: `key_${token.slice(-4)}`, role: null },
      scopes: 'all',
      defaults: { configId: null, allowsConfigOverride: true, metadata: null },
      expiresAtMs,
    },
  };
}

function setUp({ tokens }: { tokens?: Parameters<typeof createAuthenticate>[0]['tokens'] } = {}) {
  const live = new Map<string, LiveApiKey>();
  const absent = new Set<string>();
  const clock = { now: () => state.nowMs };
  const state = { nowMs: 1_000, refreshes: 0, isStale: false, attemptsLeft: 1_000, refresh: async () => {} };
  const failures: string[] = [];
  const authenticate = createAuthenticate({
    clock,
    tokens,
    slow: () => {
      if (state.attemptsLeft === 0) throw new GatewayError('rate_limited', 'too_many_failed_attempts', 'slow down');
      state.attemptsLeft -= 1;
      return () => void (state.attemptsLeft += 1);
    },
    onFailure: (failure) => failures.push(failure),
    snapshot: {
      findApiKey: (digest) => live.get(digest),
      assertFresh: () => {
        if (state.isStale) throw new GatewayError('unavailable', 'access_unavailable', 'stale');
      },
      refresh: () => {
        state.refreshes += 1;
        return state.refresh();
      },
      absent: { has: (id) => absent.has(id), add: (id) => void absent.add(id) },
    },
  });
  const add = (token: string, expiresAtMs?: number): void => {
    const key = liveKey(token, expiresAtMs);
    live.set(hashKey(token), key);
  };
  return { authenticate, add, live, state, failures };
}

const readRefusal = async (act: () => unknown): Promise<GatewayError> => {
  try {
    await act();
  } catch (error) {
    if (error instanceof GatewayError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
};

test('without both, the key comes from where the SDKs of Azure and of Anthropic put theirs', async () => {
  const { authenticate, add } = setUp();
  const [key, other] = [createGatewayKey().reveal(), createGatewayKey().reveal()];
  add(key);
  add(other);
  const keyIdOf = async (headers: Record<string, string>) => (await authenticate({ headers })).keyId;
  expect(await keyIdOf({ 'api-key': key })).toBe(`key_${key.slice(-4)}`);
  expect(await keyIdOf({ 'x-api-key': key })).toBe(`key_${key.slice(-4)}`);
  expect(await keyIdOf({ 'api-key': key, 'x-api-key': other })).toBe(`key_${key.slice(-4)}`);
  expect(await keyIdOf({ authorization: `Bearer ${other}`, 'api-key': key })).toBe(`key_${other.slice(-4)}`);
  expect(await keyIdOf({ 'x-portkey-api-key': other, 'x-api-key': key })).toBe(`key_${other.slice(-4)}`);
});

test('the key comes from its own header, from the alias, or from the bearer', () => {
  const { authenticate, add } = setUp();
  const [key, providerKey] = [createGatewayKey().reveal(), 'sk-of-a-provider'];
  add(key);
  for (const headers of [
    { 'x-gateway-api-key': key },
    { 'x-portkey-api-key': key },
    { authorization: `Bearer ${key}` },
    { authorization: `bearer  ${key}` },
    { 'x-gateway-api-key': '', authorization: `Bearer ${key}` },
    { 'x-gateway-api-key': key, authorization: `Bearer ${providerKey}` },
  ]) {
    const caller = authenticate({ headers });
    expect(caller).toMatchObject({ workspaceId: 'ws_1', keyId: `key_${key.slice(-4)}` });
  }
});

test('a bearer does not help a wrong key in the header', async () => {
  const { authenticate, add } = setUp();
  const key = createGatewayKey().reveal();
  add(key);
  const headers = { 'x-gateway-api-key': createGatewayKey().reveal(), authorization: `Bearer ${key}` };
  expect(await readRefusal(() => authenticate({ headers }))).toMatchObject({ code: 'invalid_api_key' });
});

test.each([{}, { authorization: 'Basic dXNlcjpwYXNz' }, { authorization: 'Bearer ' }, { authorization: 'Bearer' }])(
  'without a key (%o) the answer says which headers to send',
  async (headers) => {
    const error = await readRefusal(() => setUp().authenticate({ headers }));
    expect(error).toMatchObject({ kind: 'unauthenticated', code: 'missing_api_key' });
    expect(error.message).toMatch(/x-gateway-api-key.*Authorization: Bearer/);
  },
);

test('the refusal of a key without the scheme Bearer says so, and does not show the key', async () => {
  const { authenticate, add } = setUp();
  const key = createGatewayKey().reveal();
  add(key);
  for (const authorization of [key, ` ${key} `, 'my-own-key']) {
    const error = await readRefusal(() => authenticate({ headers: { authorization } }));
    expect(error).toMatchObject({ kind: 'unauthenticated', code: 'missing_api_key' });
    expect(error.message).toMatch(
      /^The Authorization header has no scheme.* "Authorization: Bearer", a space and the key/,
    );
    expect(error.message).not.toContain(authorization.trim());
  }
});

test('unknown, malformed, expired and revoked keys get one and the same answer, which holds none of the key', async () => {
  const { authenticate, add, live, state } = setUp();
  const [expired, revoked] = [createGatewayKey().reveal(), createGatewayKey().reveal()];
  add(expired, state.nowMs);
  add(revoked);
  expect(authenticate({ headers: { authorization: `Bearer ${revoked}` } })).toMatchObject({ workspaceId: 'ws_1' });
  live.delete(hashKey(revoked));
  const tokens = [
    createGatewayKey().reveal(),
    `${expired.slice(0, -1)}?`,
    expired,
    revoked,
    'sk-other',
    'x'.repeat(5_000),
  ];
  const errors = await Promise.all(
    tokens.map((token) => readRefusal(() => authenticate({ headers: { authorization: `Bearer ${token}` } }))),
  );
  expect(new Set(errors.map(({ kind, code, message }) => JSON.stringify([kind, code, message]))).size).toBe(1);
  expect(errors[0]?.kind).toBe('unauthenticated');
});

test('a key expires at its time, without anybody telling the process', async () => {
  const { authenticate, add, state } = setUp();
  const key = createGatewayKey().reveal();
  add(key, 2_000);
  const request = { headers: { authorization: `Bearer ${key}` } };
  expect(authenticate(request)).toMatchObject({ workspaceId: 'ws_1' });
  state.nowMs = 2_000;
  expect(await readRefusal(() => authenticate(request))).toMatchObject({ kind: 'unauthenticated' });
});

test('a well-formed key that the snapshot lacks is looked up once, then known to be absent', async () => {
  const { authenticate, add, state } = setUp();
  const [late, never] = [createGatewayKey().reveal(), createGatewayKey().reveal()];
  state.refresh = async () => add(late);
  expect(await authenticate({ headers: { authorization: `Bearer ${late}` } })).toMatchObject({ workspaceId: 'ws_1' });
  expect(state.refreshes).toBe(1);
  for (let round = 0; round < 3; round += 1) {
    await readRefusal(() => authenticate({ headers: { authorization: `Bearer ${never}` } }));
  }
  expect(state.refreshes).toBe(2);
});

test('a key that this process did not know yet is no failed attempt', async () => {
  const { authenticate, add, state } = setUp();
  state.attemptsLeft = 2;
  for (let made = 0; made < 5; made += 1) {
    const late = createGatewayKey().reveal();
    state.refresh = async () => add(late);
    expect(await authenticate({ headers: { authorization: `Bearer ${late}` } })).toMatchObject({ workspaceId: 'ws_1' });
  }
  expect(state.attemptsLeft).toBe(2);
});

test('what is no key of ours never causes a look into the database', async () => {
  const { authenticate, state } = setUp();
  const key = createGatewayKey().reveal();
  for (const token of ['sk-proj-1234567890', `${key.slice(0, -1)}${key.endsWith('0') ? '1' : '0'}`, "' or 1=1 --"]) {
    await readRefusal(() => authenticate({ headers: { authorization: `Bearer ${token}` } }));
  }
  expect(state.refreshes).toBe(0);
});

test('a key that cannot be looked up is not called wrong', async () => {
  const { authenticate, state } = setUp();
  state.refresh = async () => {
    throw new Error('ECONNREFUSED');
  };
  const headers = { authorization: `Bearer ${createGatewayKey().reveal()}` };
  expect(await readRefusal(() => authenticate({ headers }))).toMatchObject({ kind: 'unavailable' });
});

test('a stale snapshot answers nobody', async () => {
  const { authenticate, add, state } = setUp();
  const key = createGatewayKey().reveal();
  add(key);
  state.isStale = true;
  expect(await readRefusal(() => authenticate({ headers: { 'x-gateway-api-key': key } }))).toMatchObject({
    kind: 'unavailable',
  });
});

test('wrong keys beyond their number cause no look into the database, and right ones are answered as before', async () => {
  const { authenticate, add, state, failures } = setUp();
  const right = createGatewayKey().reveal();
  add(right);
  state.attemptsLeft = 2;
  const wrong = () =>
    readRefusal(() => authenticate({ headers: { authorization: `Bearer ${createGatewayKey().reveal()}` } }));
  const codes: (string | null)[] = [];
  for (let made = 0; made < 5; made += 1) {
    codes.push((await wrong()).code);
    expect(authenticate({ headers: { authorization: `Bearer ${right}` } })).toMatchObject({ workspaceId: 'ws_1' });
  }
  await readRefusal(() => authenticate({ headers: {} }));
  const slowed = Array<string>(3).fill('too_many_failed_attempts');
  expect(codes).toEqual(['invalid_api_key', 'invalid_api_key', ...slowed]);
  expect(state.refreshes).toBe(2);
  expect(failures).toEqual(['wrong_key', 'wrong_key', 'slowed', 'slowed', 'slowed', 'missing_key']);
});

const token = 'eyJhbGciOiJSUzI1NiJ9.e30.c2ln';
const user = { keyId: 'user_1' } as Caller;
const refusing = () =>
  Promise.reject(new GatewayError('unauthenticated', 'invalid_token', 'The token was rejected. It has expired.'));

test('a token in the place of a key signs its user in, where tokens are taken', async () => {
  const tokens = { find: () => user, verify: refusing };
  for (const headers of [{ 'x-gateway-api-key': token }, { authorization: `Bearer ${token}` }]) {
    expect(setUp({ tokens }).authenticate({ headers })).toBe(user);
    expect(await readRefusal(() => setUp().authenticate({ headers }))).toMatchObject({ code: 'invalid_api_key' });
  }
  const { authenticate, add } = setUp({ tokens });
  const key = createGatewayKey().reveal();
  add(key);
  const headers = { 'x-gateway-api-key': key, authorization: `Bearer ${token}` };
  expect(authenticate({ headers })).toMatchObject({ keyId: `key_${key.slice(-4)}` });
});

test('wrong tokens count like wrong keys, and any number of people may sign in through one address', async () => {
  const headers = { authorization: `Bearer ${token}` };
  const right = setUp({ tokens: { find: () => null, verify: () => Promise.resolve(user) } });
  right.state.attemptsLeft = 1;
  const all = await Promise.all([1, 2, 3].map(async () => await right.authenticate({ headers })));
  expect(all).toEqual([user, user, user]);
  expect(right.state.attemptsLeft).toBe(1);

  const wrong = setUp({ tokens: { find: () => null, verify: refusing } });
  wrong.state.attemptsLeft = 1;
  expect(await readRefusal(() => wrong.authenticate({ headers }))).toMatchObject({ code: 'invalid_token' });
  expect(await readRefusal(() => wrong.authenticate({ headers }))).toMatchObject({ code: 'too_many_failed_attempts' });
  expect(wrong.failures).toEqual(['wrong_token', 'slowed']);
});

test('a token that cannot be judged, or whose user is nobody here, is no wrong one', async () => {
  const headers = { authorization: `Bearer ${token}` };
  for (const kind of ['unavailable', 'forbidden'] as const) {
    const verify = () => Promise.reject(new GatewayError(kind, 'why', 'Not now.'));
    const { authenticate, state, failures } = setUp({ tokens: { find: () => null, verify } });
    expect(await readRefusal(() => authenticate({ headers }))).toMatchObject({ kind });
    expect([state.attemptsLeft, failures]).toEqual([1_000, []]);
  }
});

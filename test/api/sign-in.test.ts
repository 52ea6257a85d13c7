import { exportJWK, generateKeyPair, SignJWT, type CryptoKey } from 'jose';
import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { composeApi } from '#apps/api/compose.ts';
import { ApiConfig } from '#apps/api/config.ts';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { hang, startUpstream, type Upstream } from '#test/upstream.ts';
import { startApiProcess } from './api-process.ts';
import { asker, join, type Answer, type Ask } from './people-kit.ts';

// People use the API with tokens of an identity provider, which this test plays.

const issuer = 'https://login.example.org/';
let provider: Upstream;
let pair: { publicKey: CryptoKey; privateKey: CryptoKey };
let platform: TestPlatform;
let ask: Ask;
let workspaceId: string;
beforeAll(async () => {
  provider = await startUpstream();
  pair = await generateKeyPair('ES256');
  const listed = [{ ...(await exportJWK(pair.publicKey)), kid: 'one' }];
  provider.script((reply) => reply.json(200, { keys: listed }));
  platform = await startPlatform({
    worker: false,
    environment: {
      SLUICE_EGRESS_ALLOW: '127.0.0.0/8',
      SLUICE_JWKS_URL: `${provider.url.origin}/keys`,
      SLUICE_JWT_ISSUER: issuer,
      SLUICE_JWT_AUDIENCE: 'sluice',
      SLUICE_WRONG_KEYS_PER_MINUTE: '5',
    },
  });
  ask = asker(platform);
  workspaceId = (await ask('GET', '/admin/workspaces')).body.data[0]?.['id'] ?? '';
});
afterAll(async () => {
  await platform?.stop();
  await provider?.stop();
});

const tokenOf = async (claims: object, kid = 'one'): Promise<string> =>
  await new SignJWT({ iss: issuer, aud: 'sluice', ...claims })
    .setProtectedHeader({ alg: 'ES256', kid })
    .setIssuedAt()
    .setExpirationTime('10m')
    .sign(pair.privateKey);
const joined = async (role: string) => await join(ask, { workspaces: [{ id: workspaceId, role }] });
const newConfig = (name: string) => ({ name, config: { virtual_key: 'simulator' } });
const codeOf = ({ status, body }: Answer) => ({ status, code: body.error?.code });

test('a user calls models and changes records with a token, and events say who it was', async () => {
  const { id } = await joined('manager');
  const token = await tokenOf({ sub: id });
  const client = new Portkey({ apiKey: token, baseURL: platform.baseUrl });
  const messages = [{ role: 'user' as const, content: 'hello' }];
  const answer = await client.chat.completions.create({ model: '@simulator/sim-small', messages });
  expect(answer.choices).toHaveLength(1);
  const made = await ask('POST', '/configs', newConfig('by token'), token);
  expect(made.status).toBe(200);
  const { rows } = await platform.api.platform.pool.query('select metadata from event where stream_id = $1', [
    made.body['id'],
  ]);
  expect(rows).toMatchObject([
    {
      metadata: {
        actor: { type: 'user', id, principal: { type: 'user', id, role: 'manager' }, workspace_id: workspaceId },
      },
    },
  ]);
});

test('a token may do what its user may, or less', async () => {
  const { id } = await joined('manager');
  const create = async (claims: object) =>
    codeOf(await ask('POST', '/configs', newConfig('x'), await tokenOf({ sub: id, ...claims })));
  expect(await create({ workspace: 'default' })).toMatchObject({ status: 200 });
  expect(await create({ role: 'admin' })).toMatchObject({ status: 200 });
  const missing = { status: 403, code: 'missing_scope' };
  expect(await create({ role: 'member' })).toEqual(missing);
  expect(await create({ scopes: 'chat.write' })).toEqual(missing);
  expect(await create({ workspace: 'elsewhere' })).toEqual({ status: 403, code: 'workspace_not_allowed' });
  // A token that says admin makes nobody one.
  const withdraw = await ask('DELETE', `/admin/users/${id}`, undefined, await tokenOf({ sub: id, role: 'admin' }));
  expect(codeOf(withdraw)).toEqual(missing);
});

test('what a user was not allowed to do is an event of the user', async () => {
  const { id } = await joined('member');
  const token = await tokenOf({ sub: id });
  expect((await ask('POST', '/configs', newConfig('x'), token)).status).toBe(403);
  await platform.api.facts.flush();
  const sql = 'select type, data, metadata from event where stream_id = $1 order by position desc limit 1';
  const { rows } = await platform.api.platform.pool.query(sql, [id]);
  expect(rows).toMatchObject([
    { type: 'user.request_refused', data: { code: 'missing_scope' }, metadata: { actor: { type: 'user', id } } },
  ]);
});

test('a user who leaves the workspace, or is removed, is refused within a second in every process', async () => {
  const [leaver, removed] = [await joined('member'), await joined('member')];
  const other = await startApiProcess(platform);
  const tokens = [await tokenOf({ sub: leaver.id }), await tokenOf({ sub: removed.id })] as const;
  const statuses = async (): Promise<number[]> =>
    await Promise.all(
      [platform.baseUrl, other].flatMap((baseUrl) =>
        tokens.map(async (token) => (await asker({ ...platform, baseUrl })('GET', '/models', undefined, token)).status),
      ),
    );
  expect(await statuses()).toEqual([200, 200, 200, 200]);
  await ask('DELETE', `/admin/workspaces/${workspaceId}/users/${leaver.id}`);
  await ask('DELETE', `/admin/users/${removed.id}`);
  await eventually(statuses, (found) => found.every((status) => status === 403));
  expect(codeOf(await ask('GET', '/models', undefined, tokens[1])).code).toBe('unknown_user');
});

test('users are made on first sign-in where that is allowed: one of each person, and none again that was removed', async () => {
  const overrides = { SLUICE_JWT_CREATE_USERS: 'true' };
  const baseUrl = await startApiProcess(platform, overrides);
  const there = asker({ ...platform, baseUrl });
  const person = { sub: 'idp|7', email: 'new@example.org', role: 'manager' };
  const token = await tokenOf(person);
  expect(codeOf(await ask('GET', '/models', undefined, token)).code).toBe('unknown_user');
  const first = await Promise.all([1, 2, 3].map(() => there('GET', '/models', undefined, token)));
  expect(first.map(({ status }) => status)).toEqual([200, 200, 200]);
  const { body } = await ask('GET', '/admin/users?email=NEW@example.org');
  expect(body).toMatchObject({ total: 1, data: [{ role: 'member', workspace_ids: [workspaceId] }] });
  expect((await there('POST', '/configs', newConfig('new'), token)).status).toBe(200);
  // The process that makes no users knows this one as well.
  await eventually(
    () => ask('GET', '/models', undefined, token),
    ({ status }) => status === 200,
  );

  const readRefusal = async (claims: object) => codeOf(await there('GET', '/models', undefined, await tokenOf(claims)));
  expect(await readRefusal({ ...person, sub: 'idp|8' })).toEqual({ status: 403, code: 'email_taken' });
  expect(await readRefusal({ sub: 'idp|9' })).toEqual({ status: 403, code: 'email_missing' });
  const unverified = { sub: 'idp|9', email: 'x@example.org', email_verified: false };
  expect(await readRefusal(unverified)).toEqual({ status: 403, code: 'email_missing' });
  await ask('DELETE', `/admin/users/${body.data[0]?.['id']}`);
  await eventually(
    () => readRefusal(person),
    ({ code }) => code === 'user_removed',
  );
});

test('users are found by their e-mail addresses where tokens have these, and never by a subject that looks like one', async () => {
  const email = 'Mara@Example.org';
  await join(ask, { email, workspaces: [{ id: workspaceId, role: 'member' }] });
  const byEmail = asker({ ...platform, baseUrl: await startApiProcess(platform, { SLUICE_JWT_CLAIM_USER: 'email' }) });
  const token = await tokenOf({ sub: 'mara@example.org', email: 'mara@example.org', email_verified: true });
  expect((await byEmail('GET', '/models', undefined, token)).status).toBe(200);
  expect(codeOf(await ask('GET', '/models', undefined, token)).code).toBe('unknown_user');
});

test('while the provider does not answer, known tokens and API keys go on, and unknown ones are not wrong', async () => {
  const { id } = await joined('member');
  const token = await tokenOf({ sub: id });
  expect((await ask('GET', '/models', undefined, token)).status).toBe(200);
  provider.script(hang);
  const baseUrl = await startApiProcess(platform);
  const later = asker({ ...platform, baseUrl });
  expect((await later('GET', '/models')).status).toBe(200);
  const waiting = later('GET', '/models', undefined, token);
  expect((await ask('GET', '/models', undefined, token)).status).toBe(200);
  expect(codeOf(await waiting)).toEqual({ status: 503, code: 'sign_in_unavailable' });
});

test('wrong tokens are refused with the reason, and slow their address down like wrong keys', async () => {
  const token = await tokenOf({ sub: 'user_1', aud: 'another' });
  const refused = await ask('GET', '/models', undefined, token);
  expect(refused).toMatchObject({ status: 401, body: { error: { code: 'invalid_token' } } });
  expect(JSON.stringify(refused.body)).toContain("claim 'aud'");
  const isSlowed = ({ status }: Answer): boolean => status === 429;
  await eventually(() => ask('GET', '/models', undefined, token), isSlowed);
  expect((await ask('GET', '/models')).status).toBe(200);
});

test('tokens of an issuer or for an audience that nobody named are not taken: the process does not start', async () => {
  const { SLUICE_JWT_AUDIENCE: _missing, ...environment } = platform.environment;
  const config = ApiConfig.parse(environment);
  const logger = createLogger({ name: 'test', level: 'silent' });
  await expect(composeApi(config, logger)).rejects.toThrow(/SLUICE_JWT_AUDIENCE/);
});

test('all of this is what the log says', async () => {
  expect((await checkInlineModels(platform.api.platform.pool, inlineModels)).difference).toBeNull();
});

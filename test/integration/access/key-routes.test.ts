import { afterAll, beforeAll, expect, test } from 'vitest';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { serveForTest, type TestServer } from '#libs/http/http-test-kit.ts';
import { apiKeyKind } from '#libs/resources/api-keys/api-keys.ts';
import { resourceRoutes } from '#libs/records/resource-routes.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { addWorkspace, callOf, createProcess, metadata, type AccessProcess, allRights } from './access-rig.ts';

const database = useTestDatabase();
const admin = 'bootstrap-key-of-the-test';
let access: AccessProcess;
let server: TestServer;

beforeAll(async () => {
  access = createProcess(database, { pollMs: 600_000, listenConnectionString: null });
  await bootstrap(access, new Secret(admin));
  await access.snapshot.start?.();
  const routes = [apiKeyKind, virtualKeyKind].flatMap((kind) => resourceRoutes(kind, access.resources));
  server = await serveForTest(routes, { deps: { authenticate: access.authenticate } });
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await access.snapshot.stop?.();
});

type Answer = { status: number; headers: Headers; body: Record<string, unknown> };

async function call(method: string, path: string, body?: object, key = admin, headers = {}): Promise<Answer> {
  const response = await fetch(`${server.url}/v1${path}`, {
    method,
    headers: {
      authorization: `Bearer ${key}`,
      ...(body ? { 'content-type': 'application/json' } : {}),
      ...headers,
    },
    ...(body ? { body: JSON.stringify(body) } : {}),
  });
  return { status: response.status, headers: response.headers, body: (await response.json()) as Answer['body'] };
}

test('a gateway key lives from creation to revocation', async () => {
  const made = await call('POST', '/api-keys', { name: 'app', scopes: ['api_keys.read'] });
  expect(made).toMatchObject({ status: 200, body: { object: 'api-key', scopes: ['api_keys.read'] } });
  expect(made.headers.get('cache-control')).toBe('no-store');
  const { id, key } = made.body as { id: string; key: string };
  const record = await call('GET', `/api-keys/${id}`, undefined, key);
  expect(record).toMatchObject({ status: 200, body: { ...made.body, key: `********${key.slice(-4)}` } });
  expect(JSON.stringify(record.body)).not.toContain(key);
  expect(await call('POST', '/api-keys', { name: 'x' }, key)).toMatchObject({ status: 403 });
  expect(await call('GET', '/virtual-keys', undefined, key)).toMatchObject({ status: 403 });
  expect(await call('DELETE', `/api-keys/${id}`)).toMatchObject({
    status: 200,
    body: { id, object: 'api-key', deleted: true },
  });
  expect(await call('GET', `/api-keys/${id}`, undefined, key)).toMatchObject({
    status: 401,
    body: { error: { code: 'invalid_api_key' } },
  });
  expect((await call('GET', `/api-keys/${id}`)).status).toBe(404);
  expect((await call('DELETE', `/api-keys/${id}`)).status).toBe(404);
  expect((await call('GET', '/api-keys?limit=1')).body).toMatchObject({ object: 'list', data: [{ name: 'admin' }] });
});

test('a repeated creation of a key is told apart by its Idempotency-Key', async () => {
  const headers = { 'idempotency-key': 'k-1' };
  expect(await call('POST', '/api-keys', { name: 'x' }, admin, headers)).toMatchObject({ status: 200 });
  expect(await call('POST', '/api-keys', { name: 'x' }, admin, headers)).toMatchObject({
    status: 409,
    body: { error: { code: 'idempotency_replay_unavailable' } },
  });
});

test('a virtual key lives from creation to deletion, and its credential never comes back', async () => {
  const secret = 'sk-CANARY-0123456789';
  const body = { name: 'Mine', provider: 'openai', key: secret, openai_organization: 'org-1' };
  const made = await call('POST', '/virtual-keys', body, admin, { 'idempotency-key': 'v-1' });
  expect(made).toMatchObject({
    status: 200,
    body: { object: 'virtual-key', slug: 'mine', last_four: '6789', settings: { openai_organization: 'org-1' } },
  });
  const again = await call('POST', '/virtual-keys', body, admin, { 'idempotency-key': 'v-1' });
  expect(again.body).toEqual(made.body);
  expect(again.headers.get('idempotent-replayed')).toBe('true');
  const answers = [
    made,
    await call('GET', '/virtual-keys/mine'),
    await call('GET', '/virtual-keys'),
    await call('PUT', '/virtual-keys/mine', { note: 'changed' }),
    await call('PUT', '/virtual-keys/mine', { custom_host: 'https://evil.example' }),
    await call('DELETE', '/virtual-keys/mine'),
    await call('GET', '/virtual-keys/mine'),
  ];
  expect(answers.map((answer) => answer.status)).toEqual([200, 200, 200, 200, 400, 200, 404]);
  expect(answers[3]?.body).toMatchObject({ note: 'changed', name: 'Mine' });
  expect(JSON.stringify([answers, server.lines])).not.toContain('CANARY');
});

test("another workspace's key sees nothing of the first one", async () => {
  const other = await addWorkspace(access);
  const { key } = await access.apiKeys.create(callOf(other), allRights, metadata, { name: 'b' });
  const made = await call('POST', '/virtual-keys', { name: 'secret of a', provider: 'openai', key: 'sk-1' });
  const ofA = await call('POST', '/api-keys', { name: 'key of a' });
  const token = key.reveal();
  for (const [method, path, body] of [
    ['GET', `/api-keys/${String(ofA.body['id'])}`],
    ['DELETE', `/api-keys/${String(ofA.body['id'])}`],
    ['GET', `/virtual-keys/${String(made.body['slug'])}`],
    ['PUT', `/virtual-keys/${String(made.body['slug'])}`, { name: 'x' }],
    ['DELETE', `/virtual-keys/${String(made.body['slug'])}`],
  ] as const) {
    expect(await call(method, path, body, token)).toMatchObject({ status: 404 });
  }
  expect(await call('GET', '/virtual-keys', undefined, token)).toMatchObject({ body: { data: [] } });
  expect((await call('GET', '/api-keys', undefined, token)).body['data']).toHaveLength(1);
});

test.each(["' or 1=1 --", '%00', '../../etc/passwd', 'x'.repeat(300), '%F0%9F%94%91'])(
  'the path segment %j finds nothing and breaks nothing',
  async (segment) => {
    for (const path of ['/api-keys/', '/virtual-keys/']) {
      const { status } = await call('GET', path + encodeURIComponent(segment));
      expect([400, 404]).toContain(status);
    }
  },
);

test('a body that is not one is refused with the name of the member', async () => {
  expect(await call('POST', '/virtual-keys', { name: 'x', provider: 'openai' })).toMatchObject({
    status: 400,
    body: { error: { param: 'key' } },
  });
  expect(await call('POST', '/api-keys', { name: 'x', role: 'admin' })).toMatchObject({
    status: 400,
    body: { error: { param: 'role', code: 'unknown_parameter' } },
  });
});

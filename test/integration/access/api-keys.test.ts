import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { createGatewayKey, hashKey } from '#libs/identity/gateway-key.ts';
import { apiKeyModel } from '#libs/resources/api-keys/api-keys.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { addWorkspace, bearer, callOf, createProcess, metadata, type AccessProcess, allRights } from './access-rig.ts';

const database = useTestDatabase();
let access: AccessProcess;
let workspaceId: string;

beforeAll(async () => {
  access = createProcess(database, { pollMs: 600_000, listenConnectionString: null });
  ({ workspaceId } = await bootstrap(access, null));
  await access.snapshot.start?.();
});
afterAll(() => access.snapshot.stop?.());

test('a new key authenticates with its workspace, scopes and defaults, and only its digest is stored', async () => {
  const { record, key } = await access.apiKeys.create(callOf(workspaceId), allRights, metadata, {
    name: 'ci',
    scopes: ['chat.write', 'batches.read', 'chat.write'],
    expires_at: new Date(4_000_000_000_000),
    defaults: { metadata: { team: 'search' } },
  });
  const token = key.reveal();
  expect(record).toEqual({
    id: expect.stringMatching(/^key_[0-9a-f]{32}$/),
    object: 'api-key',
    name: 'ci',
    description: null,
    type: 'workspace-service',
    organisation_id: 'org_default',
    workspace_id: workspaceId,
    user_id: null,
    creation_mode: 'api',
    scopes: ['chat.write', 'batches.read'],
    last_four: token.slice(-4),
    status: 'active',
    defaults: {
      config_id: null,
      metadata: { team: 'search' },
      locked_metadata: null,
      allow_config_override: true,
      record_bodies: null,
    },
    allowed_networks: null,
    usage_limits: null,
    rate_limits: null,
    usage_reset_at: null,
    alert_emails: null,
    rotation_policy: null,
    rotation_due_at: null,
    key_transition_expires_at: null,
    created_at: expect.any(String),
    last_updated_at: record.created_at,
    expires_at: new Date(4_000_000_000_000).toISOString(),
  });
  expect(access.authenticate(bearer(token))).toEqual({
    workspaceId,
    keyId: record.id,
    principal: { type: 'service_key', id: record.id, role: null },
    scopes: new Set(['chat.write', 'batches.read']),
    defaults: { configId: null, allowsConfigOverride: true, metadata: { team: 'search' } },
    expiresAtMs: 4_000_000_000_000,
    keyDigest: hashKey(token),
  });
  expect(await access.apiKeys.get(workspaceId, record.id)).toMatchObject({ data: { digest: hashKey(token) } });
});

test('a stored key with a scope that no route has any more keeps working', async () => {
  const key = createGatewayKey();
  const data = {
    name: 'old',
    digest: hashKey(key.reveal()),
    last_four: key.lastFour(),
    defaults: {},
    expires_at: null,
  };
  await access.eventLog.transact({ workspaceId, streams: ['key_old'], metadata }, async (unit) => {
    const created = { ...data, scopes: ['chat.write', 'chat.read'] };
    await unit.append(apiKeyModel, 'key_old', [{ type: 'api_key.created', data: created }]);
    await announceAccessChange(unit);
  });
  await access.snapshot.catchUp();
  expect(access.authenticate(bearer(key.reveal()))).toMatchObject({ scopes: new Set(['chat.write', 'chat.read']) });
});

test('a key hands on no more than it has', async () => {
  const caller = { ...allRights, scopes: new Set(['api_keys.write', 'chat.write']) };
  const create = (scopes?: ['chat.write' | 'files.read']) =>
    access.apiKeys.create(callOf(workspaceId), caller, metadata, { name: 'k', scopes });
  await expect(create()).rejects.toMatchObject({ kind: 'forbidden', code: 'insufficient_scope', param: 'scopes' });
  await expect(create(['files.read'])).rejects.toThrow(
    /does not have files\.read, .*It has api_keys\.write, chat\.write/,
  );
  expect((await create(['chat.write'])).record.scopes).toEqual(['chat.write']);
});

test('a default config must exist, so that a key does not refuse every request later', async () => {
  const request = { name: 'k', defaults: { config_id: 'nothing' } };
  await expect(access.apiKeys.create(callOf(workspaceId), allRights, metadata, request)).rejects.toMatchObject({
    code: 'config_not_found',
    param: 'defaults.config_id',
  });
});

test('a key that would already be expired is refused, with what would be right', async () => {
  const create = (expires_at: Date) =>
    access.apiKeys.create(callOf(workspaceId), allRights, metadata, { name: 'k', expires_at });
  await expect(create(new Date(1_000))).rejects.toMatchObject({
    kind: 'invalid_request',
    code: 'invalid_value',
    param: 'expires_at',
    message: expect.stringMatching(
      /^Invalid 'expires_at': 1970-01-01T00:00:01\.000Z is in the past \(it is now 2\d{3}-.*Z\)\. .*Unix seconds/,
    ),
  });
  expect((await create(new Date(Date.now() + 60_000))).record.status).toBe('active');
});

test('a repeated creation makes no second key and cannot show the first one again', async () => {
  const call = callOf(workspaceId, { idempotencyKey: 'again', fingerprint: 'f' });
  const { record } = await access.apiKeys.create(call, allRights, metadata, { name: 'idempotent' });
  const repeat = access.apiKeys.create({ ...call, requestId: 'req_2' }, allRights, metadata, { name: 'idempotent' });
  await expect(repeat).rejects.toMatchObject({
    kind: 'conflict',
    code: 'idempotency_replay_unavailable',
    message: expect.stringContaining(record.id),
  });
  const { rows } = await sql`select id from resource where data ->> 'name' = 'idempotent'`.execute(database.db);
  expect(rows).toEqual([{ id: record.id }]);
});

test('a revoked key is refused at once, is gone, and is revoked only once', async () => {
  const { record, key } = await access.apiKeys.create(callOf(workspaceId), allRights, metadata, { name: 'r' });
  expect(access.authenticate(bearer(key.reveal()))).toMatchObject({ keyId: record.id });
  const revoke = () => access.apiKeys.revoke(workspaceId, allRights, record.id, metadata);
  const outcomes = await Promise.allSettled([revoke(), revoke(), revoke()]);
  expect(outcomes.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
  await expect((async () => access.authenticate(bearer(key.reveal())))()).rejects.toMatchObject({
    code: 'invalid_api_key',
  });
  const missing = { kind: 'not_found', code: 'api_key_not_found' };
  await expect(access.apiKeys.get(workspaceId, record.id)).rejects.toMatchObject(missing);
  const { rows } = await sql`select version, deleted_at from resource where id = ${record.id}`.execute(database.db);
  expect(rows).toEqual([{ version: 2, deleted_at: expect.any(Date) }]);
});

test("another workspace's keys cannot be read, revoked or listed", async () => {
  const other = await addWorkspace(access);
  const { record, key } = await access.apiKeys.create(callOf(workspaceId), allRights, metadata, { name: 'private' });
  const missing = { kind: 'not_found', code: 'api_key_not_found' };
  await expect(access.apiKeys.get(other, record.id)).rejects.toMatchObject(missing);
  await expect(access.apiKeys.revoke(other, allRights, record.id, metadata)).rejects.toMatchObject(missing);
  expect(await access.apiKeys.list(other)).toEqual([]);
  expect(access.authenticate(bearer(key.reveal()))).toMatchObject({ workspaceId });
});

test('a digest is never taken for the key', async () => {
  const { key } = await access.apiKeys.create(callOf(workspaceId), allRights, metadata, { name: 'd' });
  await expect((async () => access.authenticate(bearer(hashKey(key.reveal()))))()).rejects.toMatchObject({
    code: 'invalid_api_key',
  });
});

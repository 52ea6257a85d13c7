import { randomBytes } from 'node:crypto';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { apiKeyKind } from '#libs/resources/api-keys/api-keys.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { bootstrap } from '#libs/people/bootstrap.ts';
import type { KeptVirtualKey } from '#libs/resources/define-kind.ts';
import { keepVirtualKey, keepVirtualKeys } from '#libs/resources/virtual-keys/kept-virtual-key.ts';
import { createResourceStore } from '#libs/records/resource-store.ts';
import type { Caller } from '#libs/http/caller.ts';
import { isWellFormedGatewayKey } from '#libs/identity/gateway-key.ts';
import { checkMasterKeys, parseMasterKeys } from '#libs/secrets/master-key.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { userKind } from '#libs/people/users/users.ts';
import { workspaceKind, type WorkspaceData } from '#libs/people/workspaces.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { createTestDatabase, type TestDatabase } from '#test/postgres.ts';
import {
  bearer,
  callOf,
  createProcess,
  metadata,
  started,
  testMasterKeys,
  type AccessProcess,
  allRights,
} from './access-rig.ts';

let database: TestDatabase;
let access: AccessProcess;
beforeEach(async () => {
  database = await createTestDatabase();
  access = createProcess(database);
});
afterEach(() => database.drop());

const apiKeys = async () =>
  await database.db.selectFrom('resource').selectAll().where('kind', '=', 'api_key').orderBy('created_at').execute();

test('processes that start at once make one workspace and one key, and one of them may show it', async () => {
  const outcomes = await Promise.all(Array.from({ length: 8 }, () => bootstrap(access, null)));
  expect(new Set(outcomes.map((outcome) => outcome.workspaceId)).size).toBe(1);
  const creators = outcomes.filter((outcome) => outcome.created);
  expect(creators).toHaveLength(1);
  expect(outcomes.filter((outcome) => outcome.key !== null)).toEqual(creators);
  const token = creators[0]?.key?.reveal() ?? '';
  expect(isWellFormedGatewayKey(token)).toBe(true);
  expect(await apiKeys()).toMatchObject([{ data: { name: 'admin' } }]);
  await using _running = await started(access);
  expect(access.authenticate(bearer(token))).toMatchObject({ workspaceId: creators[0]?.workspaceId, scopes: 'all' });
});

test('the organisation has one owner, and a removed owner is not created again', async () => {
  const users = async () => await database.db.selectFrom('resource').selectAll().where('kind', '=', 'user').execute();
  const all = await Promise.all(Array.from({ length: 4 }, () => bootstrap(access, null, 'Ada@example.org')));
  const workspaces = { [all[0]?.workspaceId ?? '']: { role: 'admin' } };
  expect(await users()).toMatchObject([
    { workspace_id: 'org_default', data: { email: 'Ada@example.org', role: 'owner', workspaces } },
  ]);
  await database.pool.query("update resource set deleted_at = now() where kind = 'user'");
  await bootstrap(access, null, 'Eve@example.org');
  expect(await users()).toHaveLength(1);
});

test('a bootstrap key of the operator becomes the admin key, whichever process is first, and is not shown', async () => {
  const token = 'operator-chosen-key-1';
  const outcomes = await Promise.all(Array.from({ length: 4 }, () => bootstrap(access, new Secret(token))));
  expect(outcomes.filter((outcome) => outcome.created)).toHaveLength(1);
  expect(outcomes.every((outcome) => outcome.key === null)).toBe(true);
  expect(await apiKeys()).toHaveLength(1);
  await using _running = await started(access);
  expect(access.authenticate(bearer(token))).toMatchObject({ scopes: 'all' });
});

test('a bootstrap key that comes later is one more admin key, once; a revoked one stays revoked', async () => {
  const { workspaceId } = await bootstrap(access, null);
  const token = 'operator-chosen-key-2';
  await Promise.all(Array.from({ length: 4 }, () => bootstrap(access, new Secret(token))));
  const rows = await apiKeys();
  expect(rows).toHaveLength(2);
  await using _running = await started(access);
  expect(access.authenticate(bearer(token))).toMatchObject({ workspaceId, keyId: rows[1]?.id });
  await access.apiKeys.revoke(workspaceId, allRights, rows[1]?.id ?? '', metadata);
  expect(await bootstrap(access, new Secret(token))).toEqual({ workspaceId, created: false, key: null });
  expect(() => access.authenticate(bearer(token))).toThrow(expect.objectContaining({ kind: 'unauthenticated' }));
});

test.each(['short', 'fifteen-chars-1', 'has a space in the middle', 'umlaut-in-it-äöü-123'])(
  'the bootstrap key %j is refused without being quoted',
  async (token) => {
    const error: unknown = await bootstrap(access, new Secret(token)).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ConfigurationError);
    expect(String(error)).not.toContain(token);
    expect(await database.db.selectFrom('resource').selectAll().execute()).toEqual([]);
  },
);

const simulatorKey = (customHost: string): KeptVirtualKey => {
  const key = { slug: 'simulator', provider: 'simulator', name: 'Simulator', note: '', key: new Secret('simulator') };
  return { ...key, customHost };
};
const keepSimulatorKey = (workspaceId: string, customHost: string) =>
  keepVirtualKey(access, workspaceId, simulatorKey(customHost));

test('the virtual key of a server of the installation follows its address', async () => {
  const { workspaceId } = await bootstrap(access, null);
  await Promise.allSettled(Array.from({ length: 4 }, () => keepSimulatorKey(workspaceId, 'http://127.0.0.1:9001/v1/')));
  const first = await access.virtualKeys.get(workspaceId, 'simulator');
  expect(first).toMatchObject({ provider: 'simulator', custom_host: 'http://127.0.0.1:9001/v1', version: 1 });
  await keepSimulatorKey(workspaceId, 'http://127.0.0.1:9001/v1');
  expect(await access.virtualKeys.get(workspaceId, 'simulator')).toEqual(first);
  await keepSimulatorKey(workspaceId, 'http://127.0.0.1:9002/v1');
  expect(await access.virtualKeys.get(workspaceId, 'simulator')).toMatchObject({
    id: first.id,
    custom_host: 'http://127.0.0.1:9002/v1',
    version: 2,
  });
  await access.virtualKeys.remove(workspaceId, 'simulator', metadata);
  await keepSimulatorKey(workspaceId, 'http://127.0.0.1:9002/v1');
  expect((await access.virtualKeys.get(workspaceId, 'simulator')).id).not.toBe(first.id);
});

test('the virtual keys that workspaces got follow the address, and those that people made do not', async () => {
  const first = await bootstrap(access, null);
  const caller: Caller = { ...allRights, workspaceId: first.workspaceId, keyId: 'key_test' };
  const make = async (name: string, virtualKeyOfAll?: KeptVirtualKey) => {
    const deps = { ...access.resources, virtualKeyOfAll };
    const { record } = await createResourceStore<WorkspaceData>(workspaceKind, deps).create(
      callOf(first.workspaceId),
      first.workspaceId,
      { caller, metadata },
      { name },
    );
    return (record as { id: string }).id;
  };
  const kept = simulatorKey('http://127.0.0.1:9001/v1');
  const [given, removed, own] = [await make('given', kept), await make('removed', kept), await make('own', kept)];
  for (const id of [removed, own]) await access.virtualKeys.remove(id, 'simulator', metadata);
  const host = 'http://127.0.0.1:9009/v1';
  await access.virtualKeys.create(callOf(own), metadata, {
    name: 'mine',
    slug: 'simulator',
    provider: 'simulator',
    key: 'k',
    custom_host: host,
  });
  for (let starts = 0; starts < 2; starts += 1) {
    await keepVirtualKeys(access, simulatorKey('http://127.0.0.1:9002/v1'));
  }
  expect(await access.virtualKeys.get(given, 'simulator')).toMatchObject({ custom_host: 'http://127.0.0.1:9002/v1' });
  expect(await access.virtualKeys.get(own, 'simulator')).toMatchObject({ custom_host: host });
  await expect(access.virtualKeys.get(removed, 'simulator')).rejects.toMatchObject({ kind: 'not_found' });
});

test('a credential that was stored for the simulator does not follow it to another port', async () => {
  const { workspaceId } = await bootstrap(access, null);
  await keepSimulatorKey(workspaceId, 'http://127.0.0.1:9001/v1');
  const before = await access.virtualKeys.update(workspaceId, 'simulator', metadata, { key: 'sk-for-port-9001' });
  await keepSimulatorKey(workspaceId, 'http://127.0.0.1:9002/v1');
  const { secret_id: secretId } = await access.virtualKeys.get(workspaceId, 'simulator');
  expect(secretId).not.toBe(before.secret_id);
  expect(await database.db.selectFrom('secret').select('id').execute()).toEqual([{ id: secretId }]);
  const members = await access.secrets.read(database.db, workspaceId, secretId ?? '');
  expect(members?.['key']?.reveal()).not.toBe('sk-for-port-9001');
});

test('the first master key is remembered, and a process with another one does not start', async () => {
  await checkMasterKeys(database.db, testMasterKeys);
  await checkMasterKeys(database.db, testMasterKeys);
  const other = parseMasterKeys(randomBytes(32).toString('hex'));
  await expect(checkMasterKeys(database.db, other)).rejects.toThrow(
    /SLUICE_MASTER_KEY is not the key that this database/,
  );
  const { rows } = await database.pool.query<{ text: string }>('select installation::text as text from installation');
  expect(rows).toHaveLength(1);
  expect(rows[0]?.text).not.toContain(testMasterKeys[0].key.export().toString('hex'));
});

test('of processes with different master keys that start at once, those with one of them go on', async () => {
  const keys = Array.from({ length: 4 }, () => parseMasterKeys(randomBytes(32).toString('hex')));
  const outcomes = await Promise.allSettled(keys.map((key) => checkMasterKeys(database.db, key)));
  expect(outcomes.filter((outcome) => outcome.status === 'fulfilled')).toHaveLength(1);
});

test('every model folds to the rows that are there', async () => {
  const { workspaceId } = await bootstrap(access, null);
  await keepSimulatorKey(workspaceId, 'http://127.0.0.1:9001/v1');
  await keepSimulatorKey(workspaceId, 'http://127.0.0.1:9002/v1');
  const report = await checkInlineModels(database.pool, [
    resourceModel([workspaceKind, userKind, apiKeyKind, virtualKeyKind]),
  ] as never);
  expect(report).toMatchObject({ events: 6, rows: { resource: 4 }, difference: null });
});

import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { plainLeaf } from '#libs/calls/plan/plain-plan.ts';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { readCredentials, type RequestedCredential } from '#libs/credentials/requested.ts';
import type { BatchTarget } from '#libs/database/schema.ts';
import { newId } from '#libs/kernel/ids.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { addWorkspace, callOf, createProcess, metadata, type AccessProcess } from './access-rig.ts';

const database = useTestDatabase();
const canary = 'sk-CANARY-of-a-batch';
let access: AccessProcess;
/** Another process, whose snapshot learns of changes only when it looks once more. */
let worker: AccessProcess;
let workspaceId: string;

beforeAll(async () => {
  access = createProcess(database, { pollMs: 600_000, listenConnectionString: null });
  worker = createProcess(database, { pollMs: 600_000, listenConnectionString: null });
  ({ workspaceId } = await bootstrap(access, null));
  await access.snapshot.start?.();
  await worker.snapshot.start?.();
});
afterAll(async () => {
  await access.snapshot.stop?.();
  await worker.snapshot.stop?.();
});

const createVirtualKey = (slug: string) =>
  access.virtualKeys.create(callOf(workspaceId), metadata, { name: slug, slug, provider: 'openai', key: 'sk-one-1' });

async function store(credentials: RequestedCredential, ws = workspaceId): Promise<BatchTarget> {
  const chosen = await access.batchTargets.choose({
    workspaceId: ws,
    credentials,
    defaults: { configId: null, allowsConfigOverride: true },
  });
  const batchId = newId('batch_');
  return access.eventLog.transact({ workspaceId: ws, streams: [batchId], metadata }, (unit) =>
    access.batchTargets.store(unit, { workspaceId: ws, batchId }, chosen),
  );
}

const resolve = async (target: BatchTarget, model = 'gpt-5-mini', ws = workspaceId) => {
  const resolved = await worker.batchTargets.resolveLeaf(ws, target, plainLeaf, model, false);
  return { key: resolved.target.apiKey?.reveal(), label: resolved.target.label, model: resolved.model };
};

const release = (target: BatchTarget) =>
  access.eventLog.transact({ workspaceId, streams: ['batch_end'], metadata }, (unit) =>
    access.batchTargets.release(unit, target),
  );

const ownKey = readCredentials({
  'x-gateway-api-key': 'g',
  authorization: `Bearer ${canary}`,
  'x-gateway-provider': 'openai',
  'x-gateway-custom-host': 'https://eu.example.com/v1',
});

test('a batch keeps the id of its virtual key; each attempt gets the key of the moment', async () => {
  const { record } = await createVirtualKey('rotated');
  const target = await store(readCredentials({ 'x-gateway-virtual-key': 'rotated' }));
  expect(target).toEqual({ type: 'virtual_key', virtual_key_id: record.id });
  expect(await resolve(target)).toEqual({ key: 'sk-one-1', label: 'rotated', model: 'gpt-5-mini' });
  await access.virtualKeys.update(workspaceId, 'rotated', metadata, { key: 'sk-two-2' });
  await worker.snapshot.refresh();
  expect(await resolve(target)).toMatchObject({ key: 'sk-two-2' });
});

test('a deleted virtual key is an error of the line, and not one query for each of a million lines', async () => {
  await createVirtualKey('deleted');
  const target = await store(readCredentials({ 'x-gateway-virtual-key': 'deleted' }));
  await access.virtualKeys.remove(workspaceId, 'deleted', metadata);
  await worker.snapshot.refresh();
  await expect(resolve(target)).rejects.toMatchObject({ kind: 'invalid_request', code: 'virtual_key_deleted' });
  const refresh = vi.spyOn(worker.snapshot, 'refresh');
  await expect(resolve(target)).rejects.toMatchObject({ code: 'virtual_key_deleted' });
  expect(refresh).not.toHaveBeenCalled();
});

test('an expired virtual key is an error of the line', async () => {
  await createVirtualKey('expiring');
  const target = await store(readCredentials({ 'x-gateway-virtual-key': 'expiring' }));
  await access.virtualKeys.update(workspaceId, 'expiring', metadata, { expires_at: 1 });
  await worker.snapshot.refresh();
  await expect(resolve(target)).rejects.toMatchObject({ code: 'virtual_key_expired' });
});

test("a caller's own key is stored for this batch, encrypted and bound to its host, and wiped at its end", async () => {
  const target = await store(ownKey);
  expect(target).toEqual({
    type: 'provider',
    provider: 'openai',
    custom_host: 'https://eu.example.com/v1',
    secret_id: expect.stringMatching(/^secret_/),
  });
  const { target: found } = await worker.batchTargets.resolveLeaf(workspaceId, target, plainLeaf, 'm', false);
  expect(found.apiKey?.reveal()).toBe(canary);
  expect(found.secretOrigin).toBe('https://eu.example.com');
  await release(target);
  const rows = await database.db.selectFrom('secret').select('id').where('workspace_id', '=', workspaceId).execute();
  expect(rows.map((row) => row.id)).not.toContain(target.type === 'provider' ? target.secret_id : '');
  await release(target);
  const late = createProcess(database, { pollMs: 600_000, listenConnectionString: null });
  await late.snapshot.start?.();
  await expect(
    (async () => late.batchTargets.resolveLeaf(workspaceId, target, plainLeaf, 'm', false))(),
  ).rejects.toMatchObject({
    code: 'batch_credential_released',
  });
  await late.snapshot.stop?.();
});

test("one workspace cannot use another's target", async () => {
  const other = await addWorkspace(access);
  await createVirtualKey('guarded');
  const byKey = await store(readCredentials({ 'x-gateway-virtual-key': 'guarded' }));
  await expect(resolve(byKey, 'm', other)).rejects.toMatchObject({ code: 'virtual_key_deleted' });
  const byProvider = await store(ownKey);
  expect(await resolve(byProvider)).toMatchObject({ key: canary }); // now it is in the cache
  await expect(resolve(byProvider, 'm', other)).rejects.toMatchObject({ code: 'batch_credential_released' });
});

test('without a target of its own a batch takes what its lines name, and a line wins over the target', async () => {
  await createVirtualKey('of-line');
  const none = await store(readCredentials({}));
  expect(none).toEqual({ type: 'none' });
  expect(await resolve(none, '@of-line/gpt-5')).toEqual({ key: 'sk-one-1', label: 'of-line', model: 'gpt-5' });
  await expect(resolve(none, 'gpt-5')).rejects.toMatchObject({ code: 'missing_credentials' });
  expect(await resolve(await store(ownKey), '@of-line/gpt-5')).toMatchObject({ key: 'sk-one-1', model: 'gpt-5' });
  await expect(resolve(none, '@nobody/gpt-5')).rejects.toMatchObject({ code: 'virtual_key_not_found' });
});

test('a transaction that fails leaves no secret', async () => {
  const chosen = await access.batchTargets.choose({
    workspaceId,
    credentials: ownKey,
    defaults: { configId: null, allowsConfigOverride: true },
  });
  const batchId = newId('batch_');
  const failing = access.eventLog.transact({ workspaceId, streams: [batchId], metadata }, async (unit) => {
    await access.batchTargets.store(unit, { workspaceId, batchId }, chosen);
    throw new Error('refused');
  });
  await expect(failing).rejects.toThrow('refused');
  const rows = await database.db.selectFrom('secret').select('id').where('owner_id', '=', batchId).execute();
  expect(rows).toEqual([]);
});

test('200 lines that ask for the same batch secret share one decryption', async () => {
  const target = await store(ownKey);
  const found = await Promise.all(
    Array.from({ length: 200 }, async () =>
      worker.batchTargets.resolveLeaf(workspaceId, target, plainLeaf, 'm', false),
    ),
  );
  expect(new Set(found.map((resolved) => resolved.target.apiKey)).size).toBe(1);
});

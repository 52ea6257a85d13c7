import fc from 'fast-check';
import { sql } from 'kysely';
import { afterEach, expect, test, vi } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { newId } from '#libs/kernel/ids.ts';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { configKind } from '#libs/resources/configs.ts';
import { guardrailKind } from '#libs/resources/guardrails.ts';
import { recordBytes, recordBytesSql } from '#libs/records/live/record-bytes.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { createResourceStore } from '#libs/records/resource-store.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { useTestDatabase } from '#test/postgres.ts';
import {
  addWorkspace,
  allRights,
  bearer,
  callOf,
  createProcess,
  metadata,
  silent,
  started,
  type AccessProcess,
} from './access-rig.ts';

const database = useTestDatabase();
afterEach(() => {
  vi.restoreAllMocks();
});

const actor = (workspaceId: string) => ({ caller: { workspaceId, keyId: 'key_test', ...allRights }, metadata });

async function createConfig({ resources }: AccessProcess, workspaceId: string, note = '', name = 'x'): Promise<string> {
  const input = { name, config: { virtual_key: 'any', override_params: { note } } };
  const store = createResourceStore(configKind, resources);
  const { record } = await store.create(callOf(workspaceId), workspaceId, actor(workspaceId), input);
  return (record as { id: string }).id;
}

test('the size of a record is estimated in the database as for request bodies, or somewhat higher', async () => {
  const sizesOf = async (data: object): Promise<Record<string, number>> => {
    const { rows } = await sql<{ kind: string; bytes: number }>`
      select kind, ${recordBytesSql([configKind, guardrailKind])} as bytes
      from (select unnest(array['config', 'guardrail']) as kind, ${JSON.stringify(data)}::jsonb as data) as resource
    `.execute(database.db);
    return Object.fromEntries(rows.map(({ kind, bytes }) => [kind, bytes]));
  };
  const check = async (data: object): Promise<void> => {
    const bytes = await sizesOf(data);
    for (const kind of [configKind, guardrailKind]) {
      const measured = recordBytes(kind, data);
      expect(bytes[kind.noun]).toBeGreaterThanOrEqual(measured * 0.7 - 64);
      expect(bytes[kind.noun]).toBeLessThanOrEqual(measured * 4);
    }
  };
  const many = (value: unknown) => ({ many: Array.from({ length: 5_000 }, () => value) });
  for (const value of [[], {}, 1, 1.5, 'a', '', 'Grüße', { a: 1 }, { a: 'b', c: ['d', null] }])
    await check(many(value));
  await check({ text: 'A prompt is mostly text, with a comma here and there: and a colon.'.repeat(1_000) });
  await fc.assert(
    fc.asyncProperty(
      fc.dictionary(
        fc.string({ unit: 'binary-ascii' }).filter((name) => !name.includes('\0')),
        fc.nat(),
      ),
      check,
    ),
    {
      numRuns: 20,
    },
  );
});

test('a workspace that does not fit into memory is left out alone, once in the log, until it has deleted enough', async () => {
  const logger = silent.child({});
  const logged = vi.spyOn(logger, 'error');
  const memory = createMemoryBudget(8_000_000);
  const writer = createProcess(database);
  const process = createProcess(database, { memory, logger });
  const { workspaceId: victim } = await bootstrap(writer, null);
  const hostile = await addWorkspace(writer);
  const { key } = await writer.apiKeys.create(callOf(hostile), allRights, metadata, { name: 'k' });
  await createConfig(writer, victim, 'small', 'victim');
  const model = resourceModel([virtualKeyKind]);
  const ids = Array.from({ length: 12 }, () => newId('vk_'));
  const { eventLog } = writer;
  for (const id of ids) {
    await eventLog.transact({ workspaceId: hostile, streams: [id], metadata }, (unit) =>
      unit.append(model, id, [
        {
          type: 'virtual_key.created',
          data: {
            slug: id.slice(-8),
            name: 'x',
            provider: 'openai',
            settings: {},
            secret_last_four: '',
            custom_host: null,
            secret_id: null,
            expires_at: null,
            note: 'x'.repeat(250_000),
          },
        },
      ]),
    );
  }
  await using _running = await started(writer, process);
  const { snapshot } = process;

  expect(snapshot.recordStats().workspacesLeftOut).toBe(1);
  expect(snapshot.recordStats().bytes).toBeLessThan(4_000_000);
  expect(memory.stats().heldBytes).toBe(snapshot.recordStats().bytes);
  expect(snapshot.memoryOf(hostile)).toBeGreaterThan(4_000_000);
  expect(snapshot.findConfig(victim, 'victim')).toBeDefined();
  expect(snapshot.findGuardrails(victim)).toBeUndefined();
  // Its key still works, so that it can free room.
  expect(await process.authenticate(bearer(key.reveal()))).toMatchObject({ workspaceId: hostile });
  const refusal = expect.objectContaining({ kind: 'unavailable', code: 'workspace_too_large' }) as Error;
  expect(() => snapshot.findGuardrails(hostile)).toThrow(refusal);
  expect(() => snapshot.findConfig(hostile, 'x')).toThrow(refusal);
  expect(() => snapshot.findCredential(hostile, 'x')).toThrow(refusal);

  // Any change loads the snapshot again.
  await createConfig(writer, victim, 'small', 'another');
  await snapshot.refresh();
  expect(snapshot.findConfig(victim, 'another')).toBeDefined();
  expect(logged.mock.calls.filter(([fields]) => 'workspace_id' in (fields as object))).toHaveLength(1);

  for (const id of ids.slice(0, 5)) await writer.virtualKeys.remove(hostile, id, metadata);
  await snapshot.refresh();
  expect(snapshot.recordStats().workspacesLeftOut).toBe(0);
  expect(snapshot.findCredential(hostile, ids[11]?.slice(-8) ?? '')).toBeDefined();
});

test('a workspace cannot have more records of a kind than the limit', async () => {
  const process = createProcess(database);
  const limits = { recordsMax: 2, apiKeysMax: 3, memoryBytesMax: 1_000_000 };
  const limited = { ...process, resources: { ...process.resources, recordLimits: limits } };
  await using _running = await started(process);
  const workspaceId = await addWorkspace(process);
  const first = await createConfig(limited, workspaceId);
  await createConfig(limited, workspaceId);
  const refused = { kind: 'conflict', code: 'too_many_records' };
  await expect(createConfig(limited, workspaceId)).rejects.toMatchObject(refused);
  await createResourceStore(configKind, limited.resources).remove({ workspaceId, name: first }, actor(workspaceId));
  await createConfig(limited, workspaceId);
});

test('records of a workspace cannot grow beyond its memory, but can shrink and be deleted', async () => {
  const process = createProcess(database);
  const limits = { recordsMax: 100, apiKeysMax: 100, memoryBytesMax: 35_000 };
  const limited = { ...process, resources: { ...process.resources, recordLimits: limits } };
  await using _running = await started(process);
  const workspaceId = await addWorkspace(process);
  const id = await createConfig(limited, workspaceId, 'x'.repeat(20_000));
  const refused = { kind: 'conflict', code: 'records_too_large' };
  await expect(createConfig(limited, workspaceId, 'x'.repeat(20_000))).rejects.toMatchObject(refused);
  const store = createResourceStore(configKind, limited.resources);
  const change = async (length: number) => {
    const config = { virtual_key: 'any', override_params: { note: 'x'.repeat(length) } };
    await store.update({ workspaceId, name: id }, actor(workspaceId), { config });
  };
  await change(30_000);
  await expect(change(40_000)).rejects.toMatchObject(refused);
  await change(1_000);
  await createConfig(limited, workspaceId, 'x'.repeat(20_000));
});

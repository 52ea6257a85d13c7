import { sql } from 'kysely';
import { expect, test, vi } from 'vitest';
import type { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { AnyResource } from '#libs/records/define-resource.ts';
import { integrationKind } from '#libs/resources/integrations/integrations.ts';
import { providerKind } from '#libs/resources/integrations/providers.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { addWorkspace, allRights, bearer, callOf, createProcess, metadata, silent, started } from './access-rig.ts';

const database = useTestDatabase();
const refusal = expect.objectContaining({ kind: 'unavailable', code: 'record_unreadable' }) as Error;
const credential = { provider: 'openai', settings: {}, secret_id: null, secret_last_four: '', custom_host: null };

/** Stores data as it is, without the triggers that check it, as a damaged backup or a newer release would. */
async function store({ noun, idPrefix }: AnyResource, workspaceId: string, slug: string, data: unknown) {
  const id = noun === 'workspace' ? workspaceId : newId(idPrefix);
  await database.db.transaction().execute(async (tx) => {
    await sql`alter table resource disable trigger user`.execute(tx);
    await sql`
      insert into resource (id, workspace_id, version, updated_at, kind, slug, lookup, data, last_version, created_at)
      values (${id}, ${workspaceId}, 1, now(), ${noun}, ${slug}, ${id}, ${JSON.stringify(data)}::jsonb, 1, now())
      on conflict (id) do update set data = excluded.data, version = resource.version + 1`.execute(tx);
    await sql`alter table resource enable trigger user`.execute(tx);
  });
  return id;
}

test.each(resourceKinds.filter(({ cached }) => cached))(
  'a $noun that cannot be read is left out, counted and logged once, and other workspaces are served',
  async (kind) => {
    const logger = silent.child({});
    const logged = vi.spyOn(logger, 'error');
    const writer = createProcess(database);
    const process = createProcess(database, { logger });
    const [victim, broken] = [await addWorkspace(writer), await addWorkspace(writer)];
    const { key } = await writer.apiKeys.create(callOf(victim), allRights, metadata, { name: 'k' });
    const id = await store(kind, broken, 'broken', null);
    await store(virtualKeyKind, victim, 'fine', credential);
    try {
      await using _running = await started(process);
      const { snapshot } = process;
      expect(await process.authenticate(bearer(key.reveal()))).toMatchObject({ workspaceId: victim });
      expect(snapshot.findCredential(victim, 'fine')).toBeDefined();
      await store(virtualKeyKind, victim, 'another', credential);
      await sql`update access_version set version = version + 1`.execute(database.db);
      await snapshot.refresh();
      expect(snapshot.findCredential(victim, 'another')).toBeDefined();

      expect(snapshot.live(kind).byId.has(id)).toBe(false);
      expect(snapshot.recordStats().unreadable).toBe(1);
      expect(logged.mock.calls.filter(([fields]) => `${kind.noun}_id` in (fields as object))).toHaveLength(1);
    } finally {
      await sql`delete from resource where data = 'null'`.execute(database.db);
    }
  },
);

test('calls that name an unreadable credential are told so', async () => {
  const writer = createProcess(database);
  const process = createProcess(database);
  const workspaceId = await addWorkspace(writer);
  await store(virtualKeyKind, workspaceId, 'key', { ...credential, custom_host: 'http://[' });
  const data = { ...credential, custom_host: 'http://[', global_workspace_access: { enabled: true } };
  const integrationId = await store(integrationKind, 'org', 'integration', data);
  await store(providerKind, workspaceId, 'provider', { integration_id: integrationId, ai_provider_id: 'openai' });
  await using _running = await started(process);
  const { snapshot } = process;
  expect(() => snapshot.findCredential(workspaceId, 'key')).toThrow(refusal);
  expect(snapshot.findCredential(workspaceId, 'nothing')).toBeUndefined();
  expect(snapshot.findCredential(workspaceId, 'provider')).toMatchObject({ blocked: 'integration_unreadable' });
});

test.each([
  ['workspace', 'record_unreadable'],
  ['usage_limit_policy', 'authenticated'],
  ['rate_limit_policy', 'authenticated'],
])(
  'the calls of a workspace whose %s cannot be read are refused, because they would be less restricted: %s',
  async (noun, expected) => {
    const writer = createProcess(database);
    const process = createProcess(database);
    const workspaceId = await addWorkspace(writer);
    const input = { name: 'k', type: 'workspace-service' };
    const { key } = await writer.apiKeys.create(callOf(workspaceId), allRights, metadata, input);
    const [kind] = resourceKinds.filter((each) => each.noun === noun);
    if (kind !== undefined) await store(kind, workspaceId, 'broken', null);
    await using _running = await started(process);
    expect(() => process.snapshot.findGuardrails(workspaceId)).toThrow(refusal);
    const authenticate = async () => process.authenticate(bearer(key.reveal()));
    const outcome = await authenticate().then(
      () => 'authenticated',
      (error: unknown) => (error as GatewayError).code,
    );
    expect(outcome).toBe(expected);
  },
);

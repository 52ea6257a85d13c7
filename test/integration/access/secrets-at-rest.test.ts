import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { readCredentials } from '#libs/credentials/requested.ts';
import { newId } from '#libs/kernel/ids.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { callOf, createProcess, metadata, testMasterKeys, type AccessProcess, allRights } from './access-rig.ts';

const database = useTestDatabase();
let access: AccessProcess;
let workspaceId: string;

const operatorKey = 'CANARY-operator-chosen-key';

beforeAll(async () => {
  access = createProcess(database, { pollMs: 600_000, listenConnectionString: null });
  ({ workspaceId } = await bootstrap(access, new Secret(operatorKey)));
  await access.snapshot.start?.();
});
afterAll(() => access.snapshot.stop?.());

const createVirtualKey = async (slug: string, key: string) => {
  const request = { name: slug, slug, provider: 'openai', key };
  return (await access.virtualKeys.create(callOf(workspaceId), metadata, request)).record;
};

const resolve = (slug: string) => {
  const credentials = readCredentials({ 'x-gateway-virtual-key': slug });
  return access.routing.targetOf({
    workspaceId,
    credentials,
    model: 'm',
    defaults: { configId: null, allowsConfigOverride: true },
  });
};

/** A process that starts now and reads everything anew. */
async function resolveAfterRestart(slug: string) {
  const late = createProcess(database, { pollMs: 600_000, listenConnectionString: null });
  await late.snapshot.start?.();
  await late.snapshot.stop?.();
  const credentials = readCredentials({ 'x-gateway-virtual-key': slug });
  return (
    await late.routing.targetOf({
      workspaceId,
      credentials,
      model: 'm',
      defaults: { configId: null, allowsConfigOverride: true },
    })
  ).target;
}

/** Where one of the texts occurs in the whole database: as text, and as the bytes of a bytea column. */
async function findEverywhere(...texts: string[]): Promise<string[]> {
  const { rows: columns } = await database.pool.query<{ schema: string; table: string; column: string; type: string }>(
    `select table_schema as schema, table_name as table, column_name as column, data_type as type
     from information_schema.columns join information_schema.tables using (table_schema, table_name)
     where table_type = 'BASE TABLE' and table_schema not in ('pg_catalog', 'information_schema')`,
  );
  const found: string[] = [];
  for (const { schema, table, column, type } of columns) {
    const value = sql.ref(column);
    const isHit =
      type === 'bytea'
        ? sql`position(convert_to(wanted, 'UTF8') in ${value}) > 0`
        : sql`position(wanted in ${value}::text) > 0`;
    const { rows } = await sql`
      select from unnest(${texts}::text[]) as wanted
      where exists (select from ${sql.id(schema, table)} where ${isHit}) limit 1`.execute(database.db);
    if (rows.length > 0) found.push(`${table}.${column}`);
  }
  return found;
}

test('no secret is anywhere in the database, as text, as bytes or as hex', async () => {
  const canaries = Array.from({ length: 6 }, (_, index) => `CANARY-${index}-${newId('secret_')}`);
  const [key, session, account, rotated, ofBatch, ofConfig] = canaries as [
    string,
    string,
    string,
    string,
    string,
    string,
  ];
  const aws = { provider: 'bedrock', aws_region: 'eu-central-1', aws_session_token: session };
  const vertex = {
    provider: 'vertex',
    vertex_region: 'global',
    vertex_service_account_json: `{"private_key":"${account}"}`,
  };
  const call = callOf(workspaceId, { idempotencyKey: 'canary' });
  await access.virtualKeys.create(call, metadata, { name: 'c', slug: 'canary', key, ...aws });
  await access.virtualKeys.create(callOf(workspaceId), metadata, { name: 'v', ...vertex });
  await access.virtualKeys.update(workspaceId, 'canary', metadata, { key: rotated });
  for (const [providerKey, config] of [
    [ofBatch, undefined],
    ['unused', JSON.stringify({ provider: 'openai', api_key: ofConfig })],
  ] as const) {
    const headers = {
      'x-gateway-api-key': 'g',
      'x-gateway-provider': 'openai',
      authorization: `Bearer ${providerKey}`,
    };
    const credentials = readCredentials(config === undefined ? headers : { ...headers, 'x-gateway-config': config });
    const chosen = await access.batchTargets.choose({
      workspaceId,
      credentials,
      defaults: { configId: null, allowsConfigOverride: true },
    });
    const batchId = newId('batch_');
    await access.eventLog.transact({ workspaceId, streams: [batchId], metadata }, (unit) =>
      access.batchTargets.store(unit, { workspaceId, batchId }, chosen),
    );
  }
  const { key: gatewayKey, record } = await access.apiKeys.create(
    callOf(workspaceId, { idempotencyKey: 'canary-key' }),
    allRights,
    metadata,
    { name: 'canary' },
  );
  // The search works: what may be stored is found where it is stored.
  expect(await findEverywhere(record.id)).toEqual(
    expect.arrayContaining(['event.stream_id', 'resource.id', 'command_result.body']),
  );
  const masterKey = testMasterKeys[0].key.export();
  const secrets = [
    ...canaries,
    operatorKey,
    gatewayKey.reveal(),
    masterKey.toString('hex'),
    masterKey.toString('base64'),
  ];
  const forms = secrets.flatMap((secret) => {
    const bytes = Buffer.from(secret);
    return [secret, bytes.toString('hex'), bytes.toString('base64').slice(0, 24)];
  });
  expect(await findEverywhere(...forms)).toEqual([]);
});

test('ciphertexts that were swapped between two rows do not open, and only those two keys are affected', async () => {
  const [a, b] = [await createVirtualKey('swap-a', 'sk-a'), await createVirtualKey('swap-b', 'sk-b')];
  await createVirtualKey('bystander', 'sk-bystander');
  await sql`
    update secret set wrapped_key = other.wrapped_key, ciphertext = other.ciphertext
    from secret as other
    where secret.owner_id in (${a.id}, ${b.id}) and other.owner_id in (${a.id}, ${b.id})
      and secret.owner_id <> other.owner_id`.execute(database.db);
  for (const slug of ['swap-a', 'swap-b']) {
    await expect(resolveAfterRestart(slug)).rejects.toMatchObject({
      kind: 'unavailable',
      code: 'virtual_key_unreadable',
    });
  }
  expect((await resolveAfterRestart('bystander')).apiKey?.reveal()).toBe('sk-bystander');
});

test("a virtual key that another one's secret was moved to does not get it", async () => {
  const [thief, owner] = [await createVirtualKey('thief', 'sk-thief'), await createVirtualKey('owner', 'sk-owner')];
  await sql`delete from secret where owner_id = ${thief.id}`.execute(database.db);
  await sql`update secret set owner_id = ${thief.id} where owner_id = ${owner.id}`.execute(database.db);
  await expect(resolveAfterRestart('thief')).rejects.toMatchObject({ code: 'virtual_key_unreadable' });
});

test('one flipped bit makes a credential unreadable, and storing it again mends it', async () => {
  const { id } = await createVirtualKey('flipped', 'sk-before');
  await sql`
    update secret set ciphertext = set_bit(ciphertext, 300, 1 - get_bit(ciphertext, 300)) where owner_id = ${id}
  `.execute(database.db);
  await expect(resolveAfterRestart('flipped')).rejects.toMatchObject({ code: 'virtual_key_unreadable' });
  await access.virtualKeys.update(workspaceId, 'flipped', metadata, { key: 'sk-after' });
  expect((await resolveAfterRestart('flipped')).apiKey?.reveal()).toBe('sk-after');
  expect((await resolve('flipped')).target.apiKey?.reveal()).toBe('sk-after');
});

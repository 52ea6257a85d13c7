import { beforeAll, afterAll, expect, test } from 'vitest';
import { apiKeyKind } from '#libs/resources/api-keys/api-keys.ts';
import { bootstrap } from '#libs/people/bootstrap.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import { nothingRequested } from '#libs/credentials/requested.ts';
import { virtualKeyKind } from '#libs/resources/virtual-keys/virtual-keys.ts';
import { userKind } from '#libs/people/users/users.ts';
import { workspaceKind } from '#libs/people/workspaces.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { addWorkspace, callOf, createProcess, metadata, type AccessProcess } from './access-rig.ts';

const database = useTestDatabase();
let access: AccessProcess;
let workspaceId: string;

beforeAll(async () => {
  access = createProcess(database, {
    pollMs: 600_000,
    listenConnectionString: null,
    checkDestination: (url) => {
      if (url.hostname !== '169.254.169.254') return;
      throw new GatewayError('invalid_request', 'destination_not_allowed', 'no');
    },
  });
  ({ workspaceId } = await bootstrap(access, null));
  await access.snapshot.start?.();
});
afterAll(() => access.snapshot.stop?.());

const create = async (body: object, call = callOf(workspaceId)) => access.virtualKeys.create(call, metadata, body);
const update = async (slug: string, body: object) => access.virtualKeys.update(workspaceId, slug, metadata, body);

const members = (slug: string) => {
  const { secrets } = access.snapshot.findCredential(workspaceId, slug) ?? {};
  return Object.fromEntries(Object.entries(secrets ?? {}).map(([name, secret]) => [name, secret.reveal()]));
};
const storedSecrets = async (ownerId: string) =>
  database.db.selectFrom('secret').select('id').where('owner_id', '=', ownerId).execute();
const eventsOf = async (id: string) =>
  database.db
    .selectFrom('event')
    .select(['type', 'data'])
    .where('stream_id', '=', id)
    .orderBy('stream_version')
    .execute();

const isoTime = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

test('a virtual key is stored whole, answered without its secrets, and usable at once', async () => {
  const { record, replayed } = await create({
    name: 'Bedrock, EU',
    provider: 'bedrock',
    key: 'sk-1234567890abcd',
    aws_region: 'eu-central-1',
    aws_access_key_id: 'AKIAEXAMPLE',
    aws_secret_access_key: 'aws-secret-value',
    note: 'for tests',
    expires_at: 4_000_000_000,
  });
  expect(replayed).toBe(false);
  expect(record).toEqual({
    id: expect.stringMatching(/^vk_[0-9a-f]{32}$/),
    object: 'virtual-key',
    slug: 'bedrock-eu',
    name: 'Bedrock, EU',
    workspace_id: workspaceId,
    provider: 'bedrock',
    ai_provider_name: 'bedrock',
    last_four: 'abcd',
    custom_host: null,
    note: 'for tests',
    status: 'active',
    usage_limits: null,
    rate_limits: null,
    usage_reset_at: null,
    secret_mappings: [],
    settings: { aws_region: 'eu-central-1', aws_access_key_id: 'AKIAEXAMPLE' },
    model_config: { aws_region: 'eu-central-1', aws_access_key_id: 'AKIAEXAMPLE' },
    created_at: expect.stringMatching(isoTime),
    last_updated_at: expect.stringMatching(isoTime),
    updated_at: expect.stringMatching(isoTime),
    expires_at: '2096-10-02T07:06:40.000Z',
  });
  expect(members('bedrock-eu')).toEqual({
    key: 'sk-1234567890abcd',
    aws_secret_access_key: 'aws-secret-value',
  });
  await create({
    name: 'v',
    provider: 'vertex',
    vertex_region: 'europe-west4',
    vertex_service_account_json: { type: 'service_account', private_key: 'pem' },
  });
  expect(members('v')).toEqual({
    vertex_service_account_json: '{"type":"service_account","private_key":"pem"}',
  });
});

test('slugs are derived without collision, also by twenty at the same time', async () => {
  const made = await Promise.all(
    Array.from({ length: 25 }, () => create({ name: 'Ünïcode  Näme!', provider: 'openai', key: 'sk-1' })),
  );
  const slugs = made.map(({ record }) => record.slug);
  expect(new Set(slugs).size).toBe(25);
  expect(slugs).toContain('u-ni-code-na-me');
  expect(slugs.every((slug) => /^[a-z0-9_-]{1,64}$/.test(slug))).toBe(true);
  expect((await create({ name: '漢字', provider: 'openai', key: 'sk-1' })).record.slug).toBe('key');
});

test('a slug that is taken is a conflict, in another workspace and after deletion it is free', async () => {
  const body = { name: 'n', slug: 'Taken_1', provider: 'openai', key: 'sk-1' };
  const { record } = await create(body);
  await expect(create(body)).rejects.toMatchObject({ kind: 'conflict', code: 'slug_taken', param: 'slug' });
  const other = await addWorkspace(access);
  expect((await create(body, callOf(other))).record.slug).toBe('Taken_1');
  await access.virtualKeys.remove(workspaceId, 'Taken_1', metadata);
  expect((await create(body)).record.id).not.toBe(record.id);
});

const contoso = { provider: 'azure', azure_resource_name: 'contoso' };

test.each([
  ['an unknown provider', { provider: 'opennai' }, { param: 'provider', code: 'invalid_value' }],
  [
    'a provider without address and host',
    { provider: 'vllm' },
    { param: 'custom_host', code: 'missing_required_parameter' },
  ],
  [
    'a provider whose address is made of a setting, without it',
    { provider: 'azure' },
    { param: 'azure_resource_name', code: 'missing_required_parameter', message: /azure_resource_name/ },
  ],
  ['a host with a query', { custom_host: 'https://a.example/?x=1' }, { param: 'custom_host', code: 'invalid_value' }],
  [
    'a hosted provider without a key',
    { key: undefined },
    { param: 'key', code: 'missing_required_parameter', message: "Missing required parameter: 'key'." },
  ],
  ['a slug with a slash', { slug: 'a/b' }, { param: 'slug' }],
  [
    'two deployments with one alias',
    { ...contoso, deploymentConfig: ['a', 'b'].map((name) => ({ deploymentName: name, alias: 'gpt' })) },
    { param: 'deploymentConfig', message: /'gpt'/ },
  ],
  [
    'two default deployments',
    { ...contoso, deploymentConfig: ['a', 'b'].map((name) => ({ deploymentName: name, is_default: true })) },
    { param: 'deploymentConfig' },
  ],
  [
    'a deployment without a name',
    { ...contoso, deploymentConfig: [{ deploymentName: 'a' }, { apiVersion: '2025-04-01' }] },
    { param: 'deploymentConfig[1].deploymentName', code: 'missing_required_parameter' },
  ],
  [
    'deployments of another provider',
    { deploymentConfig: [{ deploymentName: 'a' }] },
    { param: 'azure_deployment_id' },
  ],
  ['a key with a line break', { key: 'sk-1234\n' }, { param: 'key', code: 'invalid_value' }],
  [
    'a session token with a space',
    { provider: 'bedrock', aws_region: 'eu-central-1', aws_session_token: 'a b' },
    { param: 'aws_session_token' },
  ],
  [
    'a setting of another provider',
    { openai_project: 'p', aws_region: 'eu-central-1' },
    {
      param: 'aws_region',
      code: 'invalid_value',
      message: "Invalid 'aws_region': it is a setting of bedrock, but this key is for openai. Leave it out.",
    },
  ],
  ['a secret of another provider', { azure_ad_token: 't' }, { param: 'azure_ad_token', code: 'invalid_value' }],
  ['a forbidden address', { custom_host: 'http://169.254.169.254/' }, { code: 'destination_not_allowed' }],
])('%s is refused and nothing is stored', async (_what, fields, expected) => {
  const counts = async () => {
    const { rows } = await database.pool.query('select (select count(*) from secret), (select count(*) from event)');
    return rows;
  };
  const before = await counts();
  await expect(create({ name: 'bad', provider: 'openai', key: 'sk-1', ...fields })).rejects.toMatchObject({
    kind: 'invalid_request',
    ...expected,
  });
  expect(await counts()).toEqual(before);
});

test('a client secret of Microsoft Entra is a credential, so that no key is needed beside it', async () => {
  const entra = { azure_entra_tenant_id: 't', azure_entra_client_id: 'c', azure_entra_client_secret: 's' };
  const { record } = await create({ name: 'entra', provider: 'azure', azure_resource_name: 'contoso', ...entra });
  expect(record.settings).toEqual({
    azure_resource_name: 'contoso',
    azure_entra_tenant_id: 't',
    azure_entra_client_id: 'c',
  });
});

test.each([
  ['one by one', { apiVersion: '2025-04-01', deploymentName: 'gpt' }],
  [
    'in a list with a default one',
    {
      deploymentConfig: [
        { deploymentName: 'old', apiVersion: '2024-10-21' },
        { deploymentName: 'gpt', apiVersion: '2025-04-01', is_default: true },
      ],
    },
  ],
])('settings of Azure are also known by the names of Portkey, %s', async (_how, settings) => {
  const { record } = await create({
    name: 'p',
    provider: 'azure-openai',
    key: 'sk-1',
    resourceName: 'contoso',
    ...settings,
  });
  expect(record.settings).toEqual({
    azure_resource_name: 'contoso',
    azure_api_version: '2025-04-01',
    azure_deployment_id: 'gpt',
  });
});

test('a virtual key keeps all of its deployments, and each call gets the one of its model', async () => {
  const deploymentConfig = [
    { deploymentName: 'd1', apiVersion: '2024-10-21', alias: 'gpt-4o', is_default: true },
    { deploymentName: 'd2', apiVersion: '2025-04-01', alias: 'gpt-4o-mini', is_default: false },
  ];
  const { record } = await create({ ...contoso, name: 'd', slug: 'several', key: 'sk-1', deploymentConfig });
  expect(record).toMatchObject({ deploymentConfig, model_config: { deploymentConfig } });
  const deploymentOf = async (model: string) => {
    const credentials = { ...nothingRequested, virtualKey: { slug: 'several', param: 'virtual_key' } };
    const defaults = { configId: null, allowsConfigOverride: true };
    const { settings } = (await access.routing.targetOf({ workspaceId, credentials, model, defaults })).target;
    return [settings['azure_deployment_id'], settings['azure_api_version']];
  };
  expect(await deploymentOf('gpt-4o')).toEqual(['d1', '2024-10-21']);
  expect(await deploymentOf('@several/gpt-4o-mini')).toEqual(['d2', '2025-04-01']);
  expect(await deploymentOf('d2')).toEqual(['d2', '2025-04-01']);
  expect(await deploymentOf('another')).toEqual(['d1', '2024-10-21']);

  await expect(update('several', { azure_api_version: '2025-04-01' })).rejects.toMatchObject({
    param: 'azure_api_version',
    message: /deploymentConfig/,
  });
  await update('several', { name: 'renamed' });
  expect(await deploymentOf('gpt-4o-mini')).toEqual(['d2', '2025-04-01']);
  const withoutDefault = deploymentConfig.map((deployment) => ({ ...deployment, is_default: false }));
  await update('several', { deploymentConfig: withoutDefault });
  expect(await deploymentOf('gpt-4o')).toEqual(['d1', '2024-10-21']);
  await expect(deploymentOf('another')).rejects.toThrow(/no deployment for the model 'another'.*gpt-4o, gpt-4o-mini/);
  expect(await update('several', { deploymentConfig: [], deploymentName: 'only' })).toMatchObject({
    settings: { azure_deployment_id: 'only' },
  });
  expect(await deploymentOf('another')).toEqual(['only', undefined]);
});

test('limits of a virtual key are stored and changed, and are not forgotten by other changes', async () => {
  const usage_limits = { credit_limit: 500, alert_threshold: 80, periodic_reset: 'monthly' };
  const rate = { type: 'requests', unit: 'rpm', value: 60 };
  const { record } = await create({
    name: 'l',
    slug: 'limited',
    provider: 'openai',
    key: 'k',
    usage_limits,
    rate_limits: rate,
  });
  expect(record).toMatchObject({ usage_limits: { ...usage_limits, type: 'cost' }, rate_limits: [rate] });
  expect(await update('limited', { note: 'n' })).toMatchObject({ rate_limits: [rate], updated_by: 'key_test' });
  expect(await update('limited', { usage_limits: null })).toMatchObject({ usage_limits: null, rate_limits: [rate] });
});

test('aliases of providers are stored under the provider, hosts in one spelling', async () => {
  const { record } = await create({
    name: 'alias',
    provider: 'together-ai',
    key: 'sk-1',
    custom_host: 'HTTPS://Example.com:443/v1/',
  });
  expect(record).toMatchObject({ provider: 'together', custom_host: 'https://example.com/v1' });
});

test('an update changes what it names and leaves the rest, secrets included', async () => {
  const azure = { provider: 'azure', azure_resource_name: 'r', azure_ad_token: 'token-1' };
  await create({ name: 'u', slug: 'up', key: 'sk-old-0000-old1', ...azure });
  const row = await update('up', { name: 'renamed', note: 'n', openai_project: 'p1', key: 'sk-new-0000-new1' });
  expect(row).toMatchObject({
    name: 'renamed',
    note: 'n',
    settings: { azure_resource_name: 'r', openai_project: 'p1' },
    secret_last_four: 'new1',
    version: 2,
  });
  expect(members('up')).toEqual({ key: 'sk-new-0000-new1', azure_ad_token: 'token-1' });
  expect(await storedSecrets(row.id)).toEqual([{ id: row.secret_id }]);
  const cleared = await update('up', { note: null, expires_at: null, openai_beta: 'b' });
  expect(cleared).toMatchObject({ note: null, settings: { ...row.settings, openai_beta: 'b' }, version: 3 });
  expect(cleared.secret_id).toBe(row.secret_id);
});

test('an update cannot add a setting of another provider', async () => {
  await create({ name: 'own', slug: 'own', provider: 'openai', key: 'sk-1' });
  for (const setting of ['vertex_region', 'aws_session_token']) {
    await expect(update('own', { [setting]: 'x' })).rejects.toMatchObject({ code: 'invalid_value', param: setting });
  }
  await expect(update('own', { provider: 'groq' })).rejects.toMatchObject({ code: 'unknown_parameter' });
});

test('an update that changes nothing leaves no event and no new version of the access tables', async () => {
  const { record } = await create({ name: 'same', slug: 'same', provider: 'openai', key: 'sk-1', note: 'n' });
  const version = async () => (await database.db.selectFrom('access_version').select('version').execute())[0]?.version;
  const before = await version();
  await update('same', { name: 'same', note: 'n', expires_at: null });
  expect(await eventsOf(record.id)).toHaveLength(1);
  expect(await version()).toBe(before);
});

test('a key that would already be expired is refused', async () => {
  await expect(create({ name: 'dead', provider: 'openai', key: 'sk-1', expires_at: 1_000 })).rejects.toMatchObject({
    code: 'invalid_value',
    param: 'expires_at',
  });
});

test('an expiry is told in the record and by the resolver', async () => {
  await create({ name: 'e', slug: 'past', provider: 'openai', key: 'sk-1' });
  await update('past', { expires_at: 1_000 });
  const request = {
    workspaceId,
    credentials: nothingRequested,
    model: '@past/m',
    defaults: { configId: null, allowsConfigOverride: true },
  };
  await expect(access.routing.targetOf(request)).rejects.toMatchObject({ code: 'virtual_key_expired' });
  await update('past', { expires_at: null });
  expect(await access.routing.targetOf(request)).toMatchObject({ model: 'm' });
});

test.each([
  ['another host', { custom_host: 'https://evil.example/v1' }],
  ["the provider's own host", { custom_host: null }],
  ['another Azure resource', { azure_resource_name: 'evil' }],
])('a change to %s needs the credential again, and takes nothing of the old one along', async (_what, move) => {
  const slug = `move-${Object.values(move).join('').length}`;
  const { record } = await create({
    name: 'm',
    slug,
    provider: 'azure',
    key: 'sk-old-00000',
    azure_ad_token: 'old-token',
    custom_host: 'https://good.example/v1',
    azure_resource_name: 'good',
  });
  await expect(update(slug, move)).rejects.toMatchObject({ code: 'credential_required', param: 'key' });
  await expect(update(slug, { ...move, name: 'x' })).rejects.toMatchObject({ code: 'credential_required' });
  expect(await eventsOf(record.id)).toHaveLength(1);
  await update(slug, { ...move, key: 'sk-new-00000' });
  expect(members(slug)).toEqual({ key: 'sk-new-00000' });
  // The same place in another spelling is no move.
  await update(slug, { custom_host: (await access.virtualKeys.get(workspaceId, slug)).custom_host ?? undefined });
});

test('the same host in another spelling is no change of place', async () => {
  await create({ name: 's', slug: 'spelled', provider: 'vllm', key: 'sk-1', custom_host: 'https://h.example/v1' });
  expect(await update('spelled', { custom_host: 'https://H.example:443/v1/' })).toMatchObject({ version: 1 });
  await expect(update('spelled', { custom_host: null })).rejects.toMatchObject({ param: 'custom_host' });
});

test('a key goes back from its own host to an address made of a setting in the same request', async () => {
  await create({ name: 'b', slug: 'back', provider: 'azure', key: 'sk-1', custom_host: 'https://h.example/v1' });
  await expect(update('back', { custom_host: null, key: 'sk-2' })).rejects.toMatchObject({
    code: 'missing_required_parameter',
    param: 'azure_resource_name',
  });
  const moved = await update('back', { custom_host: null, azure_resource_name: 'contoso', key: 'sk-2' });
  expect(moved).toMatchObject({ custom_host: null, settings: { azure_resource_name: 'contoso' } });
});

test('an update cannot store a setting that no address can hold', async () => {
  await create({ name: 'r', slug: 'region', provider: 'bedrock', key: 'sk-1', aws_region: 'eu-west-1' });
  await expect(update('region', { aws_region: 'evil.example/' })).rejects.toMatchObject({ param: 'aws_region' });
});

test('deleting wipes the ciphertext, keeps the history, and is not found afterwards', async () => {
  const { record } = await create({ name: 'd', slug: 'doomed', provider: 'openai', key: 'sk-1' });
  await access.virtualKeys.remove(workspaceId, 'doomed', metadata);
  expect(await storedSecrets(record.id)).toEqual([]);
  expect((await eventsOf(record.id)).map((event) => event.type)).toEqual([
    'virtual_key.created',
    'virtual_key.deleted',
  ]);
  const missing = { kind: 'not_found', code: 'virtual_key_not_found' };
  await expect(access.virtualKeys.get(workspaceId, 'doomed')).rejects.toMatchObject(missing);
  await expect(access.virtualKeys.remove(workspaceId, 'doomed', metadata)).rejects.toMatchObject(missing);
  await expect(update('doomed', { name: 'x' })).rejects.toMatchObject(missing);
});

test("another workspace's virtual keys cannot be read, changed, deleted or listed", async () => {
  const other = await addWorkspace(access);
  await create({ name: 'p', slug: 'private', provider: 'openai', key: 'sk-1' });
  const missing = { kind: 'not_found' };
  await expect(access.virtualKeys.get(other, 'private')).rejects.toMatchObject(missing);
  await expect(access.virtualKeys.update(other, 'private', metadata, { name: 'x' })).rejects.toMatchObject(missing);
  await expect(access.virtualKeys.remove(other, 'private', metadata)).rejects.toMatchObject(missing);
  expect(await access.virtualKeys.list({ workspaceId: other, after: null, limit: 100 })).toEqual([]);
  const { id } = await access.virtualKeys.get(workspaceId, 'private');
  await expect(access.virtualKeys.list({ workspaceId: other, after: id, limit: 1 })).rejects.toMatchObject({
    param: 'after',
  });
});

test('lists go from the newest to the oldest, page by page, without gap or repeat', async () => {
  const other = await addWorkspace(access);
  const ids: string[] = [];
  for (let n = 0; n < 7; n += 1) {
    const { record } = await create({ name: `n${n}`, provider: 'openai', key: 'sk-1' }, callOf(other));
    ids.unshift(record.id);
  }
  await access.virtualKeys.remove(other, 'n3', metadata);
  const seen: string[] = [];
  for (let after: string | null = null; ;) {
    const rows = await access.virtualKeys.list({ workspaceId: other, after, limit: 2 });
    const page = rows.slice(0, 2).map((row) => row.id);
    seen.push(...page);
    if (rows.length <= 2) break;
    after = page.at(-1) ?? null;
  }
  const created = (a: string, b: string) => ids.indexOf(a) - ids.indexOf(b);
  expect(seen).toHaveLength(6);
  expect(seen.toSorted(created)).toEqual(ids.filter((_id, index) => index !== 3));
});

test('a repeated creation gets the first answer and makes no second key', async () => {
  const call = callOf(workspaceId, { idempotencyKey: 'once', fingerprint: 'f' });
  const body = { name: 'once', slug: 'once', provider: 'openai', key: 'sk-1' };
  const first = await create(body, call);
  expect(await create(body, { ...call, requestId: 'req_2' })).toEqual({ record: first.record, replayed: true });
  expect(await storedSecrets(first.record.id)).toHaveLength(1);
});

test('the rows are the fold of the log', async () => {
  const models = [resourceModel([workspaceKind, userKind, apiKeyKind, virtualKeyKind])] as never;
  expect(await checkInlineModels(database.pool, models)).toMatchObject({ difference: null });
});

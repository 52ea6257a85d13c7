import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { readFilesBelow } from '#test/read-files-below.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { startVault, type TestVault } from '#test/vault.ts';
import { chatLines, toJsonl } from './batch-kit.ts';
import { asker, type Ask } from './people-kit.ts';

// A secret reference says where a credential is kept; virtual keys and integrations take it from there for their calls.

let platform: TestPlatform;
let upstream: Upstream;
let vault: TestVault;
let folder: string;
let outside: string;
let ask: Ask;
/** A workspace besides the first, and its key. */
let other: { id: string; key: string };
/** A key of the first workspace that belongs to it alone. */
let workspaceKey: string;
/** What the provider takes as a key. */
let accepted: string;

const completion = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'gpt-5',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello.' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 10, completion_tokens: 1, total_tokens: 11 },
};

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-secrets-'));
  outside = await mkdtemp(path.join(tmpdir(), 'sluice-outside-'));
  upstream = await startUpstream();
  vault = await startVault();
  process.env['SLUICE_SECRET_OPENAI'] = 'sk-environment-0123456789';
  platform = await startPlatform({
    environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', SLUICE_SECRETS_FOLDER: folder },
  });
  ask = asker(platform);
  const { body } = await ask('POST', '/admin/workspaces', { name: 'other' });
  const made = await ask('POST', '/api-keys', { name: 'other', workspace_id: body['id'] });
  other = { id: body['id'] ?? '', key: made.body['key'] ?? '' };
  workspaceKey = (await ask('POST', '/api-keys', { name: 'own' })).body['key'] ?? '';
});
afterAll(async () => {
  delete process.env['SLUICE_SECRET_OPENAI'];
  await platform?.stop();
  await upstream?.stop();
  await vault?.stop();
  for (const made of [folder, outside]) await rm(made, { recursive: true, force: true });
});
beforeEach(() => {
  upstream.requests.length = 0;
  vault.requests.length = 0;
  vault.mood('well');
  upstream.script((reply, { headers }) => {
    const isKnown = headers['authorization'] === `Bearer ${accepted}`;
    if (isKnown) reply.json(200, completion);
    else reply.json(401, { error: { message: 'Incorrect API key provided', code: 'invalid_api_key' } });
  });
});

const byToken = () => ({ vault_auth_type: 'token', vault_addr: vault.url, vault_token: vault.rootToken });
const byAppRole = () => ({
  vault_auth_type: 'approle',
  vault_addr: vault.url,
  vault_role_id: vault.appRole.roleId,
  vault_secret_id: vault.appRole.secretId,
});

/** A reference of the organisation to a secret in Vault, which is written there. */
async function reference(slug: string, data: object, more: object = {}): Promise<string> {
  vault.put(slug, data);
  const body = {
    name: slug,
    slug,
    manager_type: 'hashicorp_vault',
    auth_config: byAppRole(),
    ...toUpstream(),
    ...shared,
  };
  const made = await ask('POST', '/secret-references', { ...body, secret_path: `secret/${slug}`, ...more });
  expect(made).toMatchObject({ status: 200, body: { slug } });
  return made.body['id'] ?? '';
}

const toUpstream = () => ({ allowed_hosts: [upstream.url.origin] });
/** Members of the secrets of these tests that workspaces can take. */
const shared = { allowed_secret_keys: ['key', 'k', 'id', 'secret', 'object', 'spaced', 'other'] };
const openai = () => ({ provider: 'openai', custom_host: upstream.url.href });
/** A virtual key whose `key` is taken from a reference. */
async function mapped(slug: string, secretReferenceId: string, more: object = {}): Promise<void> {
  const mapping = { target_field: 'key', secret_reference_id: secretReferenceId, ...more };
  const made = await ask('POST', '/virtual-keys', { name: slug, slug, ...openai(), secret_mappings: [mapping] });
  expect(made).toMatchObject({ status: 200, body: { slug } });
}
const chat = (slug: string, key?: string) =>
  ask('POST', '/chat/completions', { model: `@${slug}/gpt-5`, messages: [{ role: 'user', content: 'Hi' }] }, key);

test('a reference is created, found, changed and deleted, and its credentials are never shown', async () => {
  const id = await reference('records', { key: 'x' }, { tags: { team: 'search', stage: 'live' }, secret_key: 'key' });
  const record = {
    id,
    object: 'secret-reference',
    name: 'records',
    manager_type: 'hashicorp_vault',
    secret_path: 'secret/records',
    secret_key: 'key',
    allow_all_workspaces: true,
    status: 'ACTIVE',
    auth_config: { vault_auth_type: 'approle', vault_role_id: vault.appRole.roleId, vault_secret_id: '********' },
  };
  expect((await ask('GET', '/secret-references/records')).body).toMatchObject(record);
  expect((await ask('GET', `/secret-references/${id}`, undefined, workspaceKey)).body).toMatchObject(record);
  for (const query of ['search=ecord', 'manager_type=hashicorp_vault', 'tags=team:search', 'tags={"stage":"live"}']) {
    const { body } = await ask('GET', `/secret-references?${query}`);
    expect([query, body.data.map((one) => one['id'])]).toEqual([query, expect.arrayContaining([id])]);
  }
  for (const query of ['search=nothing', 'manager_type=aws_sm', 'tags=team:other']) {
    expect((await ask('GET', `/secret-references?${query}`)).body).toMatchObject({ total: 0 });
  }
  const renamed = await ask('PUT', '/secret-references/records', {
    name: 'Renamed',
    auth_config: { ...byAppRole(), vault_namespace: 'a/b' },
  });
  expect(renamed.body).toMatchObject({ name: 'Renamed', auth_config: { vault_namespace: 'a/b' } });
  const { vault_secret_id: _left, ...kept } = byAppRole();
  expect(await ask('PUT', '/secret-references/records', { auth_config: kept })).toMatchObject({ status: 200 });
  // The credentials are not sent to a server that they were not given for.
  const moved = { ...kept, vault_addr: 'https://vault.example' };
  expect(await ask('PUT', '/secret-references/records', { auth_config: moved })).toMatchObject({
    status: 400,
    body: { error: { code: 'missing_required_parameter', param: 'auth_config.vault_secret_id' } },
  });
  expect(await ask('DELETE', '/secret-references/records')).toMatchObject({ status: 200, body: { deleted: true } });
  expect(await ask('GET', '/secret-references/records')).toMatchObject({ status: 404 });
});

test('a workspace sends a secret of the organisation to the provider, and elsewhere only if its reference says so', async () => {
  await reference('pinned', { key: 'sk-shared' }, { allowed_hosts: [] });
  const secret_mappings = [{ target_field: 'key', secret_reference_id: 'pinned', secret_key: 'key' }];
  const make = (slug: string, more: object = openai()) =>
    ask('POST', '/virtual-keys', { name: slug, slug, provider: 'openai', ...more, secret_mappings }, workspaceKey);
  const refused = { status: 403, body: { error: { code: 'host_not_allowed', param: 'custom_host' } } };
  expect(await make('to-openai', {})).toMatchObject({ status: 200 });
  expect(await make('to-mine')).toMatchObject(refused);
  // Neither does a virtual key that exists already move the secret there.
  const move = { ...openai(), provider: undefined, secret_mappings };
  expect(await ask('PUT', '/virtual-keys/to-openai', move, workspaceKey)).toMatchObject(refused);
  const named = { allowed_hosts: [`${upstream.url.origin}/`] };
  expect(await ask('PUT', '/secret-references/pinned', named, workspaceKey)).not.toMatchObject({ status: 200 });
  for (const host of [
    'llm.example.com',
    'https://llm.example.com/v1',
    'ftp://llm.example.com',
    'https://me@llm.example.com',
  ]) {
    expect([host, await ask('PUT', '/secret-references/pinned', { allowed_hosts: [host] })]).toMatchObject([
      host,
      { status: 400, body: { error: { param: 'allowed_hosts[0]' } } },
    ]);
  }
  expect(await ask('PUT', '/secret-references/pinned', named)).toMatchObject({
    status: 200,
    body: { allowed_hosts: [upstream.url.origin] },
  });
  expect(await make('to-mine')).toMatchObject({ status: 200 });
  expect(await ask('PUT', '/virtual-keys/to-openai', move, workspaceKey)).toMatchObject({ status: 200 });
});

describe('a call', () => {
  test('takes its key from Vault, and a rotated one without a restart', async () => {
    accepted = 'sk-first-0123456789';
    await reference('rotated', { key: accepted });
    await mapped('rotated', 'rotated', { secret_key: 'key' });
    expect(await chat('rotated')).toMatchObject({ status: 200 });
    expect(await chat('rotated')).toMatchObject({ status: 200 });
    // One login and one read for both.
    expect(vault.requests).toEqual(['POST /v1/auth/approle/login', 'GET /v1/secret/data/rotated']);

    accepted = 'sk-second-0123456789';
    vault.put('rotated', { key: accepted });
    expect(await chat('rotated')).toMatchObject({ status: 200 });
    const keys = upstream.requests.map(({ headers }) => headers['authorization']);
    expect(keys.slice(2)).toEqual(['Bearer sk-first-0123456789', 'Bearer sk-second-0123456789']);

    // A key that the provider refuses although it is the newest costs one fetch, not one for each call.
    vault.requests.length = 0;
    accepted = 'sk-never-given-0123456789';
    const refused = await Promise.all(Array.from({ length: 5 }, () => chat('rotated')));
    expect(refused.map(({ status }) => status)).toEqual([401, 401, 401, 401, 401]);
    expect(vault.requests).toEqual([]);
  });

  test('that is passed through is served after a rotation too', async () => {
    accepted = 'sk-relayed-0123456789';
    await reference('relayed', { key: accepted });
    await mapped('relayed', 'relayed', { secret_key: 'key' });
    upstream.script((reply, { headers }) => {
      const isKnown = headers['authorization'] === `Bearer ${accepted}`;
      if (!isKnown) return reply.json(401, { error: { message: 'Incorrect API key provided' } });
      reply.json(200, { id: 'm', model: 'm', results: [] });
    });
    const moderate = () => ask('POST', '/moderations', { model: '@relayed/m', input: 'Hi' });
    expect(await moderate()).toMatchObject({ status: 200 });
    accepted = 'sk-relayed-later-0123456789';
    vault.put('relayed', { key: accepted });
    // Its body may be read already, so the client repeats the call, as SDKs do after 503, and succeeds.
    expect(await moderate()).toMatchObject({ status: 503, body: { error: { code: 'credential_rotated' } } });
    expect(await moderate()).toMatchObject({ status: 200 });
  });

  test('that is streamed is served after a rotation too', async () => {
    accepted = 'sk-stream-0123456789';
    await reference('streamed', { key: accepted });
    await mapped('streamed', 'streamed', { secret_key: 'key' });
    upstream.script((reply, { headers }) => {
      const isKnown = headers['authorization'] === `Bearer ${accepted}`;
      if (!isKnown) return reply.json(401, { error: { message: 'Incorrect API key provided' } });
      const [choice] = completion.choices;
      const event = {
        ...completion,
        object: 'chat.completion.chunk',
        choices: [{ ...choice, delta: choice?.message }],
      };
      const type = { 'content-type': 'text/event-stream' };
      reply.respond(200, `data: ${JSON.stringify(event)}\n\ndata: [DONE]\n\n`, type);
    });
    const body = { model: '@streamed/gpt-5', messages: [{ role: 'user', content: 'Hi' }], stream: true };
    const streamed = async (): Promise<[status: number, isWhole: boolean]> => {
      const response = await fetch(`${platform.baseUrl}/chat/completions`, {
        method: 'POST',
        headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
        body: JSON.stringify(body),
      });
      return [response.status, (await response.text()).includes('[DONE]')];
    };
    expect(await streamed()).toEqual([200, true]);
    accepted = 'sk-stream-later-0123456789';
    vault.put('streamed', { key: accepted });
    expect(await streamed()).toEqual([200, true]);
  });

  test('signs in again when its token has ended', async () => {
    accepted = 'sk-login-0123456789';
    await reference('login', { key: accepted });
    await mapped('login', 'login', { secret_key: 'key' });
    expect(await chat('login')).toMatchObject({ status: 200 });
    vault.expireTokens();
    accepted = 'sk-login-later-0123456789';
    vault.put('login', { key: accepted });
    expect(await chat('login')).toMatchObject({ status: 200 });
    expect(vault.requests.slice(2)).toEqual([
      'GET /v1/secret/data/login',
      'POST /v1/auth/approle/login',
      'GET /v1/secret/data/login',
    ]);
  });

  test('takes its key from a variable, and from a file that is read again when it changes', async () => {
    const body = { name: 'variable', manager_type: 'environment', secret_path: 'SLUICE_SECRET_OPENAI' };
    expect(await ask('POST', '/secret-references', { ...body, ...toUpstream() })).toMatchObject({ status: 200 });
    await mapped('variable', 'variable');
    accepted = 'sk-environment-0123456789';
    expect(await chat('variable')).toMatchObject({ status: 200 });

    await mkdir(path.join(folder, 'openai'));
    const file = path.join(folder, 'openai', 'key.json');
    await writeFile(file, '{"key":"sk-file-0123456789"}\n');
    const filed = {
      name: 'file',
      manager_type: 'file',
      secret_path: 'openai/key.json',
      secret_key: 'key',
      ...toUpstream(),
    };
    expect(await ask('POST', '/secret-references', filed)).toMatchObject({ status: 200 });
    await mapped('file', 'file');
    accepted = 'sk-file-0123456789';
    expect(await chat('file')).toMatchObject({ status: 200 });
    await writeFile(file, '{"key":"sk-file-later-0123456789"}\n');
    accepted = 'sk-file-later-0123456789';
    expect(await chat('file')).toMatchObject({ status: 200 });
  });

  test('of a provider of an integration takes several fields from one reference', async () => {
    await reference('aws', { id: 'AKIAEXAMPLE', secret: 'aws-secret-0123456789' });
    const secret_mappings = [
      { target_field: 'configurations.aws_access_key_id', secret_reference_id: 'aws', secret_key: 'id' },
      { target_field: 'configurations.aws_secret_access_key', secret_reference_id: 'aws', secret_key: 'secret' },
    ];
    const configurations = { aws_region: 'us-east-1', custom_host: upstream.url.origin };
    const integration = { name: 'aws', slug: 'aws', ai_provider_id: 'bedrock', configurations, secret_mappings };
    const made = await ask('POST', '/integrations', integration);
    expect(made.body).toMatchObject({ masked_key: '', secret_mappings: [{ target_field: 'aws_access_key_id' }, {}] });
    await ask('PUT', '/integrations/aws/workspaces', { workspaces: [{ id: 'default', enabled: true }] });
    await chat('aws');
    const [signed] = upstream.requests;
    expect(signed?.headers['authorization']).toContain('Credential=AKIAEXAMPLE/');
  });

  test.each([
    ['whose secret is not there', { secret_path: 'secret/nowhere' }, { secret_key: 'key' }, 424, 'secret_not_found'],
    ['whose secret has no such member', {}, { secret_key: 'other' }, 424, 'secret_not_found'],
    ['that names no member of several', { allowed_secret_keys: [] }, {}, 424, 'secret_malformed'],
    ['whose member is no text', {}, { secret_key: 'object' }, 424, 'secret_malformed'],
    ['whose member no header can hold', {}, { secret_key: 'spaced' }, 424, 'secret_malformed'],
    [
      'whose Vault refuses the login',
      { auth_config: () => ({ ...byAppRole(), vault_secret_id: 'wrong' }) },
      { secret_key: 'key' },
      503,
      'secret_access_denied',
    ],
    [
      'whose Vault refuses the token',
      { auth_config: () => ({ ...byToken(), vault_token: 'wrong' }) },
      { secret_key: 'key' },
      503,
      'secret_access_denied',
    ],
  ])('%s is refused with the slug of the reference', async (title, made, mapping, status, code) => {
    const slug = title.replaceAll(/\W/g, '-');
    const auth = 'auth_config' in made ? { auth_config: made.auth_config?.() } : {};
    await reference(slug, { key: 'sk-0123456789', object: { a: 1 }, spaced: 'two words' }, { ...made, ...auth });
    await mapped(slug, slug, mapping);
    const answer = await chat(slug);
    expect(answer).toMatchObject({ status, body: { error: { code } } });
    expect(JSON.stringify(answer.body)).toContain(`'${slug}'`);
    expect(upstream.requests).toEqual([]);
  });

  test.each(['sealed', 'redirects', 'huge'] as const)(
    'is refused when its Vault %s, and goes on afterwards',
    async (mood) => {
      accepted = `sk-${mood}-0123456789`;
      await reference(mood, { key: accepted });
      await mapped(mood, mood, { secret_key: 'key' });
      vault.mood(mood);
      const refused = await chat(mood);
      expect(refused).toMatchObject({ status: 503, body: { error: { code: 'secret_unavailable' } } });
      // While it is known to fail it is not asked for each call.
      const asked = vault.requests.length;
      await chat(mood);
      expect(vault.requests).toHaveLength(asked);
      vault.mood('well');
      await eventually(
        () => chat(mood),
        ({ status }) => status === 200,
      );
    },
  );

  test('goes to the next target of a fallback when its secret cannot be had', async () => {
    await reference('lost', { key: 'x' }, { secret_path: 'secret/lost/elsewhere' });
    await mapped('lost', 'lost', { secret_key: 'key' });
    accepted = 'sk-stored-0123456789';
    await ask('POST', '/virtual-keys', { name: 'stored', slug: 'stored', ...openai(), key: accepted });
    const config = { strategy: { mode: 'fallback' }, targets: [{ virtual_key: 'lost' }, { virtual_key: 'stored' }] };
    const made = await ask('POST', '/configs', { name: 'both', config });
    const body = { model: 'gpt-5', messages: [{ role: 'user', content: 'Hi' }] };
    const response = await fetch(`${platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${platform.adminKey}`,
        'content-type': 'application/json',
        'x-gateway-config': made.body['slug'] ?? '',
      },
      body: JSON.stringify(body),
    });
    expect(response.status).toBe(200);
  });
});

test('a batch goes on with a secret that is rotated while it runs, and waits while its Vault does not answer', async () => {
  accepted = 'sk-batch-first-0123456789';
  await reference('batch', { key: accepted });
  await mapped('batch', 'batch', { secret_key: 'key' });
  vault.mood('sealed');
  const form = new FormData();
  form.set('purpose', 'batch');
  const lines = chatLines(6, { model: '@batch/gpt-5' });
  form.set('file', new File([toJsonl(lines)], 'lines.jsonl'));
  const uploaded = await fetch(`${platform.baseUrl}/files`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}` },
    body: form,
  });
  const { id: input_file_id } = (await uploaded.json()) as { id: string };
  const request = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' };
  const { body } = await ask('POST', '/batches', request);
  await eventually(
    () => Promise.resolve(vault.requests.length),
    (count) => count > 0,
  );
  expect(upstream.requests).toEqual([]);

  // From its third line on the provider takes the new key alone.
  let calls = 0;
  upstream.script((reply, { headers }) => {
    calls += 1;
    if (calls === 3) {
      accepted = 'sk-batch-second-0123456789';
      vault.put('batch', { key: accepted });
    }
    if (headers['authorization'] === `Bearer ${accepted}`) reply.json(200, completion);
    else reply.json(401, { error: { message: 'Incorrect API key provided', code: 'invalid_api_key' } });
  });
  vault.mood('well');
  const batch = await eventually(
    () => ask('GET', `/batches/${body['id']}`),
    (answer) => answer.body['status'] === 'completed',
    { timeoutMs: 30_000 },
  );
  expect(batch.body['request_counts']).toMatchObject({ total: 6, completed: 6, failed: 0 });
});

describe('who may map', () => {
  test('a reference is mapped by the workspaces that it is for', async () => {
    await reference('for-one', { key: 'x' }, { allowed_workspaces: [other.id] });
    const body = {
      name: 'mine',
      ...openai(),
      secret_mappings: [{ target_field: 'key', secret_reference_id: 'for-one', secret_key: 'key' }],
    };
    expect(await ask('POST', '/virtual-keys', body, workspaceKey)).toMatchObject({
      status: 400,
      body: { error: { code: 'secret_reference_not_found', param: 'secret_mappings[0].secret_reference_id' } },
    });
    expect(await ask('GET', '/secret-references/for-one', undefined, workspaceKey)).toMatchObject({ status: 404 });
    expect(await ask('POST', '/virtual-keys', { ...body, slug: 'theirs' }, other.key)).toMatchObject({ status: 200 });
    // What is taken back holds for what was mapped before.
    await ask('PUT', '/secret-references/for-one', { allowed_workspaces: [] });
    expect(await chat('theirs', other.key)).toMatchObject({
      status: 403,
      body: { error: { code: 'secret_reference_not_allowed' } },
    });
  });

  test('a reference of a workspace is its own, and one that is mapped is not deleted', async () => {
    const body = {
      name: 'own',
      slug: 'own',
      manager_type: 'hashicorp_vault',
      auth_config: byToken(),
      secret_path: 'secret/data/own',
    };
    expect(await ask('POST', '/secret-references', body, workspaceKey)).toMatchObject({ status: 200 });
    expect(await ask('GET', '/secret-references/own', undefined, other.key)).toMatchObject({ status: 404 });
    const key = { name: 'holder', slug: 'holder', ...openai() };
    const secret_mappings = [{ target_field: 'key', secret_reference_id: 'own', secret_key: 'k' }];
    expect(await ask('POST', '/virtual-keys', { ...key, secret_mappings }, other.key)).toMatchObject({ status: 400 });
    expect(await ask('POST', '/virtual-keys', { ...key, secret_mappings }, workspaceKey)).toMatchObject({
      status: 200,
    });
    const refused = await ask('DELETE', '/secret-references/own', undefined, workspaceKey);
    expect(refused).toMatchObject({ status: 409, body: { error: { code: 'secret_reference_in_use' } } });
    expect(JSON.stringify(refused.body)).toContain("virtual key 'holder'");
    // A stored key in place of the mapping.
    const replaced = await ask('PUT', '/virtual-keys/holder', { key: 'sk-own-0123456789', secret_mappings: [] });
    expect(replaced).toMatchObject({ status: 200, body: { last_four: '6789', secret_mappings: [] } });
    expect(await ask('DELETE', '/secret-references/own', undefined, workspaceKey)).toMatchObject({ status: 200 });
  });

  test('a workspace takes only the members of a secret that its reference names, also after a change', async () => {
    await reference('members', { k: 'sk-k-0123456789', other: 'x' }, { secret_key: 'k', allowed_secret_keys: [] });
    const make = (slug: string, secret_key?: string) => {
      const secret_mappings = [{ target_field: 'key', secret_reference_id: 'members', secret_key }];
      return ask('POST', '/virtual-keys', { name: slug, slug, ...openai(), secret_mappings }, workspaceKey);
    };
    expect(await make('member-k')).toMatchObject({ status: 200 });
    expect(await make('member-other', 'other')).toMatchObject({
      status: 403,
      body: { error: { code: 'secret_key_not_allowed', param: 'secret_mappings[0].secret_key' } },
    });
    const change = (allowed_secret_keys: string[], key?: string) =>
      ask('PUT', '/secret-references/members', { allowed_secret_keys }, key);
    expect(await change(['other'], workspaceKey)).not.toMatchObject({ status: 200 });
    expect(await change(['other'])).toMatchObject({ status: 200, body: { allowed_secret_keys: ['other'] } });
    expect(await make('member-other', 'other')).toMatchObject({ status: 200 });
    expect(await change([])).toMatchObject({ status: 200 });
    const refused = await eventually(
      () => chat('member-other', workspaceKey),
      ({ status }) => status === 403,
    );
    expect(refused).toMatchObject({ body: { error: { code: 'secret_key_not_allowed' } } });
  });

  test('a reference is not deleted while somebody maps it', async () => {
    for (let round = 0; round < 5; round += 1) {
      const slug = `race-${round}`;
      await reference(slug, { key: 'x' });
      const secret_mappings = [{ target_field: 'key', secret_reference_id: slug, secret_key: 'key' }];
      const [mapping, deletion] = await Promise.all([
        ask('POST', '/virtual-keys', { name: slug, ...openai(), secret_mappings }),
        ask('DELETE', `/secret-references/${slug}`),
      ]);
      expect([
        [200, 409],
        [400, 200],
      ]).toContainEqual([mapping.status, deletion.status]);
    }
  });

  test('what is on the server is for keys of the organisation', async () => {
    for (const manager_type of ['environment', 'file']) {
      const body = { name: 'x', manager_type, secret_path: 'SLUICE_SECRET_OPENAI' };
      expect(await ask('POST', '/secret-references', body, workspaceKey)).toMatchObject({ status: 403 });
    }
    const auth_config = { vault_auth_type: 'kubernetes', vault_addr: vault.url, vault_role: 'gateway' };
    const body = { name: 'x', manager_type: 'hashicorp_vault', secret_path: 'secret/x', auth_config };
    expect(await ask('POST', '/secret-references', body, workspaceKey)).toMatchObject({ status: 403 });
  });
});

describe('what is refused', () => {
  test.each([
    'DATABASE_URL',
    'SLUICE_MASTER_KEY',
    'SLUICE_SECRET_',
    'SLUICE_SECRETS_FOLDER',
    'SLUICE_SECRET_A\nDATABASE_URL',
    ' SLUICE_SECRET_A',
  ])('a reference to the variable %j', async (secret_path) => {
    const answer = await ask('POST', '/secret-references', { name: 'x', manager_type: 'environment', secret_path });
    expect(answer).toMatchObject({ status: 400, body: { error: { param: 'secret_path' } } });
  });

  test.each(['../x', '/etc/passwd', 'a/../../x', 'a//b', './x', 'a/./b', '..', 'a\\..\\b', 'a/'])(
    'a reference to the file %j, and to the same path in Vault',
    async (secret_path) => {
      const bodies = [
        { name: 'x', manager_type: 'file', secret_path },
        { name: 'x', manager_type: 'hashicorp_vault', auth_config: byToken(), secret_path },
      ];
      for (const body of bodies) {
        const answer = await ask('POST', '/secret-references', body);
        expect(answer).toMatchObject({ status: 400, body: { error: { param: 'secret_path' } } });
      }
    },
  );

  test('a symlink out of the folder, a folder and a file that is too large', async () => {
    await writeFile(path.join(outside, 'key'), 'sk-outside-0123456789');
    await symlink(path.join(outside, 'key'), path.join(folder, 'link'));
    await symlink(outside, path.join(folder, 'linked-folder'));
    await mkdir(path.join(folder, 'directory'));
    await writeFile(path.join(folder, 'large'), 'x'.repeat(70_000));
    for (const secret_path of ['link', 'linked-folder/key', 'directory', 'large']) {
      const slug = `file-${secret_path.replace('/', '-')}`;
      const body = { name: slug, slug, manager_type: 'file', secret_path, ...toUpstream() };
      expect(await ask('POST', '/secret-references', body)).toMatchObject({ status: 200 });
      await mapped(slug, slug);
      expect(await chat(slug)).toMatchObject({ status: 424, body: { error: { code: 'secret_malformed' } } });
    }
    expect(upstream.requests).toEqual([]);
  });

  test.each([
    ['auth_config.vault_addr', () => ({ ...byToken(), vault_addr: 'ftp://vault.example' })],
    ['auth_config.vault_addr', () => ({ ...byToken(), vault_addr: 'https://user:secret@vault.example' })],
    ['auth_config.vault_addr', () => ({ ...byToken(), vault_addr: 'https://vault.example/?x=1' })],
    ['auth_config.vault_namespace', () => ({ ...byToken(), vault_namespace: 'a\r\nx-vault-token: b' })],
    ['auth_config.vault_token', () => ({ ...byToken(), vault_token: '********' })],
    ['auth_config.vault_auth_type', () => ({ ...byToken(), vault_auth_type: 'ldap' })],
    ['auth_config.vault_other', () => ({ ...byToken(), vault_other: 'x' })],
    ['auth_config.vault_addr', () => ({ vault_auth_type: 'kubernetes', vault_addr: vault.url, vault_role: 'gateway' })],
    [null, () => ({ ...byToken(), vault_addr: 'http://169.254.169.254' })],
  ])('an auth_config with a wrong %s', async (param, auth_config) => {
    const body = { name: 'x', manager_type: 'hashicorp_vault', secret_path: 'secret/x', auth_config: auth_config() };
    const answer = await ask('POST', '/secret-references', body);
    expect(answer).toMatchObject({ status: 400, body: { error: { param } } });
    expect(JSON.stringify(answer.body)).not.toContain(vault.rootToken);
  });

  test('a mapping of a field that is given, unknown, mapped twice or chooses the server', async () => {
    await reference('fields', { key: 'x' });
    const to = (target_field: string) => ({ target_field, secret_reference_id: 'fields', secret_key: 'key' });
    const create = (body: object) => ask('POST', '/virtual-keys', { name: 'fields', ...openai(), ...body });
    const cases: [object, string][] = [
      [{ key: 'sk-1', secret_mappings: [to('key')] }, 'key'],
      [{ secret_mappings: [to('custom_host')] }, 'secret_mappings[0].target_field'],
      [{ key: 'sk-1', secret_mappings: [to('openai_organization')] }, 'secret_mappings[0].target_field'],
      [{ secret_mappings: [to('__proto__')] }, 'secret_mappings[0].target_field'],
      [{ secret_mappings: [to('key'), to('key')] }, 'secret_mappings[1].target_field'],
      [{ provider: 'bedrock', secret_mappings: [to('aws_region')] }, 'secret_mappings[0].target_field'],
      [{ secret_mappings: [] }, 'key'],
    ];
    for (const [body, param] of cases) {
      expect([param, await create(body)]).toMatchObject([param, { status: 400, body: { error: { param } } }]);
    }
  });

  test('another server for a mapped secret, unless the mapping is sent with it', async () => {
    await reference('moved', { key: 'x' }, { allowed_hosts: [upstream.url.origin, 'https://elsewhere.example'] });
    await mapped('moved', 'moved', { secret_key: 'key' });
    const custom_host = 'https://elsewhere.example/v1';
    expect(await ask('PUT', '/virtual-keys/moved', { custom_host })).toMatchObject({
      status: 400,
      body: { error: { code: 'credential_required' } },
    });
    const secret_mappings = [{ target_field: 'key', secret_reference_id: 'moved', secret_key: 'key' }];
    const moved = await ask('PUT', '/virtual-keys/moved', { custom_host, secret_mappings });
    expect(moved).toMatchObject({ status: 200, body: { custom_host } });
  });
});

test('fetches are counted by their result', async () => {
  const metrics = await (await fetch(new URL('/metrics', platform.baseUrl))).text();
  for (const result of ['ok', 'unavailable', 'denied', 'not_found', 'malformed']) {
    expect(metrics).toMatch(new RegExp(`^sluice_secret_fetches_total\\{result="${result}"\\} [1-9]`, 'm'));
  }
  expect(metrics).toMatch(/^sluice_secrets_cached [1-9]/m);
});

test('none of these secrets is in any row, file or answer', async () => {
  accepted = 'sk-last-0123456789';
  await reference('last', { key: accepted });
  await mapped('last', 'last', { secret_key: 'key' });
  expect(await chat('last')).toMatchObject({ status: 200 });
  accepted = 'none';
  const refused = await chat('last');
  expect(refused.status).toBe(401);
  const fetched = new RegExp(`sk-[a-z-]*0123456789|aws-secret-0123456789|${vault.appRole.secretId}|${vault.rootToken}`);

  const { pool } = platform.api.platform;
  const { rows: tables } = await pool.query<{ name: string }>(`
    select quote_ident(schemaname) || '.' || quote_ident(tablename) as name from pg_tables
    where schemaname not in ('pg_catalog', 'information_schema')`);
  for (const { name } of tables) {
    const { rows } = await pool.query<{ row: string }>(`select t::text as row from ${name} as t`);
    expect([name, rows.map(({ row }) => fetched.exec(row)?.[0]).find((text) => text !== undefined)]).toEqual([
      name,
      undefined,
    ]);
  }
  const files = await readFilesBelow(platform.dataDir);
  expect(files.length).toBeGreaterThan(0);
  expect(files.filter(({ text }) => fetched.test(text)).map(({ name }) => name)).toEqual([]);
  const places = ['/secret-references', '/virtual-keys', '/integrations', '/audit-logs', '/logs'];
  const shown = await Promise.all(places.map((place) => ask('GET', `${place}?limit=100`)));
  expect(shown.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
  expect(JSON.stringify([refused, shown])).not.toMatch(fetched);
});

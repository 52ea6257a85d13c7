import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { chatLine, toJsonl } from './batch-kit.ts';
import { asker, type Ask } from './people-kit.ts';

// Integrations hold a credential for the organisation, providers are what workspaces call under their slugs.

let platform: TestPlatform;
let upstream: Upstream;
let ask: Ask;
let client: Portkey;
/** A workspace besides the first, and its key. */
let other: { id: string; key: string };

const completion = (model: string) => ({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model,
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello.' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 1_000, completion_tokens: 100, total_tokens: 1_100 },
});
const messages = [{ role: 'user', content: 'Hi' }];

beforeAll(async () => {
  upstream = await startUpstream();
  platform = await startPlatform({ environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8' } });
  ask = asker(platform);
  client = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const { body } = await ask('POST', '/admin/workspaces', { name: 'other' });
  const made = await ask('POST', '/api-keys', { name: 'other', workspace_id: body['id'] });
  other = { id: body['id'] ?? '', key: made.body['key'] ?? '' };
});
afterAll(async () => {
  await platform?.stop();
  await upstream?.stop();
});
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script((reply, { body }) => {
    const text = body.toString();
    const model = /"model":\s*"([^"]+)"/.exec(text)?.[1] ?? 'unknown';
    reply.json(200, completion(model));
  });
});

/** An integration of the organisation that is shared with the first workspace under its own slug. */
async function share(slug: string, more: object = {}, access: object = {}): Promise<void> {
  const integration = { name: slug, slug, ai_provider_id: 'openai', key: `sk-${slug}-1`, ...more };
  const made = await ask('POST', '/integrations', {
    configurations: { custom_host: upstream.url.href },
    ...integration,
  });
  expect(made).toMatchObject({ status: 200, body: { slug, workspace_id: null } });
  const shared = await ask('PUT', `/integrations/${slug}/workspaces`, {
    workspaces: [{ id: 'default', enabled: true, ...access }],
  });
  expect(shared).toMatchObject({ status: 200 });
}

const httpStatus = async (slug: string) => (await ask('GET', `/providers/${slug}`)).body['status'];
const chat = (model: string, key?: string) => ask('POST', '/chat/completions', { model, messages }, key);

describe('the official client', () => {
  test('has integrations from creation to deletion', async () => {
    const made = await client.integrations.create({
      name: 'Main',
      ai_provider_id: 'openai',
      key: 'sk-main-abcd',
      description: 'of all',
    });
    expect(made).toMatchObject({ slug: 'main' });
    const record = { slug: 'main', name: 'Main', ai_provider_id: 'openai', status: 'active', object: 'integration' };
    expect(await client.integrations.retrieve({ slug: 'main' })).toMatchObject({
      ...record,
      masked_key: '********abcd',
      allow_all_models: true,
      workspace_count: 0,
    });
    const list = await client.integrations.list({ type: 'organisation' });
    expect(list.data).toContainEqual(expect.objectContaining(record));
    expect(await client.integrations.list({ type: 'workspace' })).toMatchObject({ total: 0, data: [] });
    expect(await client.integrations.update({ slug: 'main', name: 'Other', key: 'sk-main-efgh' })).toMatchObject({
      name: 'Other',
      masked_key: '********efgh',
    });

    const models = [
      { slug: 'gpt-5', enabled: true },
      { slug: 'ft:mine', enabled: true, is_custom: true, is_finetune: true, base_model_slug: 'gpt-5' },
    ];
    await client.integrations.models.update({ slug: 'main', models, allow_all_models: false });
    expect(await client.integrations.models.list({ slug: 'main' })).toMatchObject({ total: 2, models });
    await client.integrations.models.delete({ slug: 'main', slugs: 'gpt-5' });
    expect(await client.integrations.models.list({ slug: 'main' })).toMatchObject({ models: [models[1]] });

    const access = { id: other.id, enabled: true, usage_limits: [{ type: 'cost', credit_limit: 100 }] };
    await client.integrations.workspaces.update({ slug: 'main', workspaces: [access] });
    expect(await client.integrations.workspaces.list({ slug: 'main' })).toMatchObject({
      total: 1,
      workspaces: [{ ...access, rate_limits: null }],
    });
    await client.integrations.delete({ slug: 'main' });
    await expect(client.integrations.retrieve({ slug: 'main' })).rejects.toMatchObject({ status: 404 });
  });

  test('has providers from creation to deletion', async () => {
    await share('base', {}, { create_default_provider: false });
    const made = await client.providers.create({
      name: 'Mine',
      integration_id: 'base',
      note: 'one',
      usage_limits: { type: 'tokens', credit_limit: 10 },
    });
    expect(made).toMatchObject({ slug: 'mine' });
    const record = { slug: 'mine', name: 'Mine', status: 'active', object: 'provider', note: 'one' };
    expect(await client.providers.retrieve({ slug: 'mine' })).toMatchObject(record);
    expect((await client.providers.list({})).data).toContainEqual(expect.objectContaining(record));
    const updated = await client.providers.update({ slug: 'mine', note: 'two', reset_usage: true });
    expect(updated).toMatchObject({ slug: 'mine', note: 'two' });
    await client.providers.delete({ slug: 'mine' });
    await expect(client.providers.retrieve({ slug: 'mine' })).rejects.toMatchObject({ status: 404 });
  });
});

describe('a provider', () => {
  beforeAll(() => share('one'));

  test('is found by its slug wherever a virtual key is', async () => {
    const config = await ask('POST', '/configs', { name: 'by provider', config: { virtual_key: 'one' } });
    const key = await ask('POST', '/api-keys', {
      name: 'with a default',
      defaults: { config_id: config.body['slug'] },
    });
    const prompt = await ask('POST', '/prompts', {
      name: 'by provider',
      collection_id: 'default',
      string: 'Hi',
      parameters: { model: 'gpt-5' },
      virtual_key: 'one',
    });
    const calls: [body: object, headers: Record<string, string>, path?: string][] = [
      [{ model: '@one/gpt-5', messages }, {}],
      [{ model: 'gpt-5', messages }, { 'x-gateway-virtual-key': 'one' }],
      [{ model: 'gpt-5', messages }, { 'x-gateway-provider': '@one' }],
      [{ model: 'gpt-5', messages }, { 'x-gateway-config': config.body['slug'] ?? '' }],
      [{ model: 'gpt-5', messages }, { authorization: `Bearer ${key.body['key']}` }],
      [{}, {}, `/prompts/${prompt.body['slug']}/completions`],
    ];
    for (const [body, headers, path = '/chat/completions'] of calls) {
      upstream.requests.length = 0;
      const response = await fetch(`${platform.baseUrl}${path}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json', ...headers },
        body: JSON.stringify(body),
      });
      expect([headers, response.status, await response.text()]).toEqual([headers, 200, expect.any(String)]);
      expect(upstream.requests[0]?.headers['authorization']).toBe('Bearer sk-one-1');
    }
  });

  test('uses the key of its integration as it is now, in batches under way too', async () => {
    await ask('PUT', '/integrations/one', { key: 'sk-one-1' });
    // Attempts of the line fail until the worker has the key that replaces this one meanwhile.
    upstream.script(async (reply, { headers }) => {
      if (headers['authorization'] === 'Bearer sk-one-2') return reply.json(200, completion('gpt-5'));
      await ask('PUT', '/integrations/one', { key: 'sk-one-2' });
      return reply.json(500, { error: { message: 'try again' } });
    });
    const batch = await ask('POST', '/batches', {
      input_file_id: await upload([chatLine('a', { model: '@one/gpt-5' })]),
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    });
    const { body } = await ended(batch.body['id'] ?? '', 'completed');
    expect(body).toMatchObject({ request_counts: { completed: 1, failed: 0 } });
    await chat('@one/gpt-5');
    const sent = upstream.requests.map(({ headers }) => headers['authorization']);
    expect(sent.slice(-2)).toEqual(['Bearer sk-one-2', 'Bearer sk-one-2']);
    expect(new Set(sent.slice(0, -2))).toEqual(new Set(['Bearer sk-one-1']));
  });

  test('shares its slugs with virtual keys', async () => {
    const provider = { name: 'x', slug: 'simulator', integration_id: 'one' };
    expect(await ask('POST', '/providers', provider)).toMatchObject({
      status: 409,
      body: { error: { code: 'slug_taken' } },
    });
    const virtualKey = { name: 'x', slug: 'one', provider: 'openai', key: 'sk-1' };
    expect(await ask('POST', '/virtual-keys', virtualKey)).toMatchObject({ status: 409 });
    expect(await ask('POST', '/virtual-keys', { name: 'one', provider: 'openai', key: 'sk-1' })).toMatchObject({
      body: { slug: 'one-2' },
    });
  });

  test('says why it cannot be used: expired, not shared any more, or without its integration', async () => {
    await share('gone');
    expect(await chat('@gone/gpt-5')).toMatchObject({ status: 200 });
    await ask('PUT', '/providers/gone', { expires_at: '2020-01-01T00:00:00Z' });
    expect(await chat('@gone/gpt-5')).toMatchObject({ status: 400, body: { error: { code: 'provider_expired' } } });
    await ask('PUT', '/providers/gone', { expires_at: null });
    await ask('PUT', '/integrations/gone/workspaces', { workspaces: [{ id: 'default', enabled: false }] });
    expect(await chat('@gone/gpt-5')).toMatchObject({
      status: 403,
      body: { error: { code: 'integration_not_shared' } },
    });
    expect(await httpStatus('gone')).toBe('integration_not_shared');
    await ask('PUT', '/integrations/gone/workspaces', { global_workspace_access: { enabled: true } });
    // What a workspace has of its own counts, until it is overridden.
    expect(await chat('@gone/gpt-5')).toMatchObject({ status: 403 });
    await ask('PUT', '/integrations/gone/workspaces', {
      global_workspace_access: { enabled: true },
      // As the client of Portkey spells it; the reference has `workspace`.
      override_existing_workspaces_access: true,
    });
    expect(await chat('@gone/gpt-5')).toMatchObject({ status: 200 });
    expect(await httpStatus('gone')).toBe('active');
    // Sharing with all has given every workspace a provider.
    expect(await chat('@gone/gpt-5', other.key)).toMatchObject({ status: 200 });
    await ask('DELETE', '/integrations/gone');
    expect(await chat('@gone/gpt-5')).toMatchObject({ status: 403, body: { error: { code: 'integration_deleted' } } });
    expect(await httpStatus('gone')).toBe('integration_deleted');
    await ask('DELETE', '/providers/gone');
    expect(await chat('@gone/gpt-5')).toMatchObject({
      status: 400,
      body: { error: { code: 'virtual_key_not_found' } },
    });
  });

  test('of an unknown provider is refused with the name of its own member', async () => {
    const unknown = await ask('POST', '/integrations', { name: 'x', ai_provider_id: 'opennai', key: 'sk-1' });
    expect(unknown).toMatchObject({ status: 400, body: { error: { param: 'ai_provider_id' } } });
  });

  test('keeps the deployments of its configuration', async () => {
    const deploymentConfig = [
      { deploymentName: 'd1', apiVersion: '2024-10-21', alias: 'gpt-4o', is_default: true },
      { deploymentName: 'd2', apiVersion: '2025-04-01-preview', alias: 'gpt-4o-mini', is_default: false },
    ];
    const configurations = { custom_host: upstream.url.href, deploymentConfig };
    const own = { name: 'Several', ai_provider_id: 'azure-openai', key: 'sk-azure', configurations };
    expect(await ask('POST', '/integrations', { ...own, slug: 'several' }, other.key)).toMatchObject({
      status: 200,
      body: { configurations: { deploymentConfig } },
    });
    await chat('@several/gpt-4o-mini', other.key);
    expect(upstream.requests.at(-1)?.path).toContain('/deployments/d2/');
  });

  test('is priced by the adjustments of its integration', async () => {
    const price = { pay_as_you_go: { request_token: { price: 0.001 }, response_token: { price: 0.01 } } };
    await share('priced', { pricing_adjustments: { multiplier: { default: 1.5 } } });
    expect((await ask('GET', '/integrations/priced')).body).toMatchObject({
      pricing_adjustments: { multiplier: { default: 1.5 } },
    });
    await ask('PUT', '/integrations/priced', { pricing_adjustments: { multiplier: { default: 2 } } });
    const models = [
      { slug: 'own-model', enabled: true, is_custom: true, pricing_config: price },
      { slug: 'ft:tuned', enabled: true, is_finetune: true, base_model_slug: 'gpt-5-mini' },
    ];
    await ask('PUT', '/integrations/priced/models', { models });
    await chat('@priced/own-model');
    await chat('@priced/ft:tuned');
    await chat('@one/gpt-5-mini');
    const costs = await eventually(
      async () => {
        const { body } = await ask('GET', '/logs?limit=3');
        return new Map(body.data.map((row: Record<string, unknown>) => [row['virtual_key'], row]));
      },
      (rows) => rows.has('one') && rows.has('priced'),
    );
    const rows = (await ask('GET', '/logs?limit=3')).body.data as unknown as { model: string; cost_usd: string }[];
    expect(costs.size).toBe(2);
    const costOf = (model: string) => Number(rows.find((row) => row.model === model)?.cost_usd ?? Number.NaN);
    expect(costOf('own-model')).toBeCloseTo((2 * (1_000 * 0.001 + 100 * 0.01)) / 100, 9);
    expect(costOf('ft:tuned')).toBeCloseTo(2 * costOf('gpt-5-mini'), 9);
  });
});

describe('limits', () => {
  test('of a workspace hold for all of its providers of an integration together, and only there', async () => {
    await share('rated', {}, { rate_limits: [{ type: 'requests', unit: 'rpd', value: 2 }] });
    await ask('PUT', '/integrations/rated/workspaces', { workspaces: [{ id: other.id, enabled: true }] });
    await ask('POST', '/providers', { name: 'second', slug: 'rated-2', integration_id: 'rated' });
    expect(await chat('@rated/gpt-5')).toMatchObject({ status: 200 });
    expect(await chat('@rated-2/gpt-5')).toMatchObject({ status: 200 });
    expect(await chat('@rated-2/gpt-5')).toMatchObject({ status: 429 });
    expect(await chat('@rated/gpt-5')).toMatchObject({ status: 429 });
    for (let call = 0; call < 3; call += 1)
      expect(await chat('@rated/gpt-5', other.key)).toMatchObject({ status: 200 });
  });

  test('of a workspace raise their alert as an event of the integration', async () => {
    const budget = { type: 'tokens', credit_limit: 100_000, alert_threshold: 1 };
    await share('alerting', {}, { usage_limits: [budget] });
    const { body: integration } = await ask('GET', '/integrations/alerting');
    const alerts = await eventually(
      async () => {
        expect(await chat('@alerting/gpt-5')).toMatchObject({ status: 200 });
        return await platform.database.db
          .selectFrom('event')
          .selectAll()
          .where('stream_id', '=', integration['id'] ?? '')
          .where('type', '=', 'integration.alert_reached')
          .execute();
      },
      (events) => events.length > 0,
    );
    const { body: workspace } = await ask('GET', '/admin/workspaces/default');
    expect(alerts).toMatchObject([
      { workspace_id: 'org_default', data: { workspace_id: workspace['id'], threshold: '1000', limit: '100000' } },
    ]);
  });

  test('of a provider hold for it alone, and its use can be reset', async () => {
    await share('budget');
    await ask('PUT', '/providers/budget', { usage_limits: { type: 'tokens', credit_limit: 1_000 } });
    const small = { model: '@budget/gpt-5', messages, max_tokens: 100 };
    expect(await ask('POST', '/chat/completions', small)).toMatchObject({ status: 200 });
    const refused = { status: 412, body: { error: { code: 'usage_limit_exceeded' } } };
    await eventually(
      () => ask('POST', '/chat/completions', small),
      ({ status }) => status === 412,
    );
    expect(await ask('POST', '/chat/completions', small)).toMatchObject(refused);
    await ask('PUT', '/providers/budget', { usage_limits: { type: 'tokens', credit_limit: 900 } });
    expect(await ask('GET', '/providers/budget')).toMatchObject({ body: { status: 'exhausted' } });
    await ask('PUT', '/providers/budget', { reset_usage: true });
    expect(await ask('POST', '/chat/completions', small)).toMatchObject({ status: 200 });
  });
});

describe('an integration', () => {
  test('is seen by the workspaces that it is shared with, and changed by the organisation', async () => {
    await share('seen');
    const hidden = { status: 404 };
    expect(await ask('GET', '/integrations/seen', undefined, other.key)).toMatchObject(hidden);
    expect(await ask('PUT', '/integrations/seen', { name: 'mine' }, other.key)).toMatchObject(hidden);
    expect(await ask('PUT', '/integrations/seen/models', { models: [] }, other.key)).toMatchObject(hidden);
    const provider = { name: 'x', integration_id: 'seen' };
    expect(await ask('POST', '/providers', provider, other.key)).toMatchObject({
      status: 400,
      body: { error: { code: 'integration_not_found' } },
    });
    await ask('PUT', '/integrations/seen/workspaces', { workspaces: [{ id: other.id, enabled: true }] });
    expect(await ask('GET', '/integrations/seen', undefined, other.key)).toMatchObject({ status: 200 });
    // Of the other workspaces it learns nothing.
    expect(await ask('GET', '/integrations/seen/workspaces', undefined, other.key)).toMatchObject({
      body: { total: 1, workspaces: [{ id: other.id }] },
    });
    for (const [method, path] of [
      ['PUT', ''],
      ['DELETE', ''],
      ['PUT', '/models'],
      ['DELETE', '/models?slugs=x'],
      ['PUT', '/workspaces'],
    ] as const) {
      const answer = await ask(method, `/integrations/seen${path}`, method === 'PUT' ? {} : undefined, other.key);
      expect([method, path, answer.status]).toEqual([method, path, 403]);
    }
  });

  test('that is shared with all gives a provider to workspaces that are made later', async () => {
    const shareWithAll = async (slug: string, access: object) => {
      await share(slug);
      await ask('PUT', `/integrations/${slug}/workspaces`, { global_workspace_access: { enabled: true }, ...access });
    };
    await shareWithAll('early', {});
    await shareWithAll('named', { default_provider_slug: 'chosen' });
    await shareWithAll('also-named', { default_provider_slug: 'chosen' });
    await shareWithAll('without', { create_default_provider: false });
    const { body } = await ask('POST', '/admin/workspaces', { name: 'late' });
    const made = await ask('POST', '/api-keys', { name: 'late', workspace_id: body['id'] });
    const key = made.body['key'] ?? '';
    const { data } = (await ask('GET', '/providers', undefined, key)).body;
    const slugs = (data as unknown as { slug: string; status: string }[]).map(
      ({ slug, status }) => `${slug} ${status}`,
    );
    expect(slugs).toEqual(expect.arrayContaining(['early active', 'chosen active', 'chosen-2 active']));
    expect(slugs.some((slug) => /^(one|without) /.test(slug))).toBe(false);
    expect(await chat('@early/gpt-5', key)).toMatchObject({ status: 200 });
  });

  test('of a workspace has its default provider at once, and is its own', async () => {
    const own = {
      name: 'Own',
      ai_provider_id: 'openai',
      key: 'sk-own',
      configurations: { custom_host: upstream.url.href },
    };
    expect(
      await ask('POST', '/integrations', { ...own, default_provider_slug: 'mine-alone' }, other.key),
    ).toMatchObject({
      status: 200,
      body: { slug: 'own', workspace_id: other.id },
    });
    expect(await chat('@mine-alone/gpt-5', other.key)).toMatchObject({ status: 200 });
    expect(await ask('PUT', '/integrations/own/workspaces', {}, other.key)).toMatchObject({ status: 409 });
    expect(await ask('GET', '/integrations/own?workspace_id=default')).toMatchObject({ status: 404 });
  });

  test('keeps its credential for the server that it was stored for', async () => {
    await share('moved');
    const elsewhere = { configurations: { custom_host: 'http://127.0.0.1:9/v1' } };
    expect(await ask('PUT', '/integrations/moved', elsewhere)).toMatchObject({
      status: 400,
      body: { error: { code: 'credential_required' } },
    });
  });
});

async function upload(lines: object[]): Promise<string> {
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new File([toJsonl(lines)], 'lines.jsonl'));
  const response = await fetch(`${platform.baseUrl}/files`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}` },
    body: form,
  });
  return ((await response.json()) as { id: string }).id;
}

const ended = (id: string, status: string) =>
  eventually(
    () => ask('GET', `/batches/${id}`),
    ({ body }) => String(body['status']) === status,
    { timeoutMs: 20_000 },
  );

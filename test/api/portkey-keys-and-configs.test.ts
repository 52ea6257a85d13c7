import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import { startScriptedPlatform } from './scripted-provider.ts';

// The official client of Portkey, unmodified, with every method that it has for virtual keys and configs.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let client: Portkey;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform } = scripted);
  client = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
});
afterAll(() => scripted.stop());

const gone = { status: 404 };

test('virtual keys live from creation to deletion', async () => {
  const limits = { credit_limit: 1_000, periodic_reset: 'monthly' };
  const created = await client.virtualKeys.create({
    name: 'Azure',
    provider: 'azure-openai',
    key: 'sk-azure-1234',
    resourceName: 'contoso',
    deploymentName: 'gpt',
    apiVersion: '2025-04-01-preview',
    note: null,
    usage_limits: limits,
    rate_limits: [{ type: 'requests', unit: 'rpm', value: 10 }],
  });
  expect(created).toMatchObject({ slug: 'azure', object: 'virtual-key', success: true, data: { slug: 'azure' } });
  const usage_limits = { ...limits, type: 'cost', next_usage_reset_at: expect.any(String) };
  const record = { name: 'Azure', slug: 'azure', status: 'active', usage_limits, object: 'virtual-key' };
  const retrieved = await client.virtualKeys.retrieve({ slug: 'azure' });
  expect(retrieved).toMatchObject({ ...record, model_config: { azure_resource_name: 'contoso' }, note: null });
  expect(new Date(String(retrieved.created_at)).toISOString()).toBe(retrieved.created_at);
  const list = await client.virtualKeys.list();
  expect(list).toMatchObject({ object: 'list' });
  expect(list.data).toHaveLength(list.total ?? -1);
  expect(list.data).toContainEqual(expect.objectContaining(record));
  const updated = await client.virtualKeys.update({ slug: 'azure', name: 'Azure EU', note: 'moved', rate_limits: [] });
  expect(updated).toMatchObject({ slug: 'azure', name: 'Azure EU', note: 'moved', rate_limits: [] });
  await client.virtualKeys.delete({ slug: 'azure' });
  await expect(client.virtualKeys.retrieve({ slug: 'azure' })).rejects.toMatchObject(gone);
});

test('a call goes to the deployment of its model, and costs what that model costs', async () => {
  scripted.upstream.script(({ json }, { path }) => {
    const model = path.includes('/deployments/d2/') ? 'gpt-4o-mini-2024-07-18' : 'gpt-4o-2024-08-06';
    const message = { role: 'assistant', content: 'ok' };
    const choices = [{ index: 0, finish_reason: 'stop', logprobs: null, message }];
    const usage = { prompt_tokens: 1_000_000, completion_tokens: 0, total_tokens: 1_000_000 };
    json(200, { id: 'c', object: 'chat.completion', created: 1, model, choices, usage });
  });
  const deployments = [
    { alias: 'gpt-4o', deploymentName: 'd1', apiVersion: '2024-10-21', is_default: true },
    { alias: 'gpt-4o-mini', deploymentName: 'd2', apiVersion: '2025-04-01-preview' },
  ];
  const place = { custom_host: scripted.upstream.url.href };
  await client.virtualKeys.create({
    name: 'Several',
    provider: 'azure-openai',
    key: 'sk-azure-1234',
    deploymentConfig: deployments,
    ...place,
  });
  const paths: string[] = [];
  const costs: unknown[] = [];
  for (const model of ['gpt-4o', 'gpt-4o-mini', 'another']) {
    const traceID = `deployment-${model}`;
    const messages = [{ role: 'user' as const, content: 'hi' }];
    await client.chat.completions.create({ model: `@several/${model}`, messages }, { traceID });
    paths.push(scripted.upstream.requests.at(-1)?.path ?? '');
    const [log] = await eventually(
      async () => {
        const response = await fetch(`${platform.baseUrl}/logs?trace_id=${traceID}`, {
          headers: { authorization: `Bearer ${platform.adminKey}` },
        });
        return ((await response.json()) as { data: { cost_usd: unknown }[] }).data;
      },
      (found) => found.length === 1,
    );
    costs.push(Number(log?.cost_usd));
  }
  expect(paths.map((path) => /deployments\/(.*)/.exec(path)?.[1])).toEqual([
    'd1/chat/completions?api-version=2024-10-21',
    'd2/chat/completions?api-version=2025-04-01-preview',
    'd1/chat/completions?api-version=2024-10-21',
  ]);
  // US dollars for a million input tokens.
  expect(costs).toEqual([2.5, 0.15, 2.5]);
});

test('configs live from creation to deletion', async () => {
  const config = { retry: { attempts: 2 }, virtual_key: 'simulator' };
  const created = await client.configs.create({ name: 'Retry', config, isDefault: 1 });
  expect(created).toMatchObject({ slug: 'retry', data: { slug: 'retry', version_id: created.version_id } });
  const retrieved = await client.configs.retrieve({ slug: 'retry' });
  expect(retrieved).toMatchObject({ name: 'Retry', is_default: 1, config, success: true, data: { config } });
  expect((await client.configs.list()).data).toContainEqual(expect.objectContaining({ slug: 'retry', is_default: 1 }));
  const changed = { virtual_key: 'simulator' };
  const updated = await client.configs.update({ slug: 'retry', name: 'Plain', config: changed, status: 'active' });
  expect(updated).toMatchObject({ name: 'Plain', config: changed, data: { version_id: updated.version_id } });
  expect(updated.version_id).not.toBe(created.version_id);
  await client.configs.delete({ slug: 'retry' });
  await expect(client.configs.retrieve({ slug: 'retry' })).rejects.toMatchObject(gone);
});

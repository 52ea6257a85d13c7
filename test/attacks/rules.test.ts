import { afterAll, beforeAll } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { guardrailForms } from '#test/guardrail-forms.ts';
import { postJson, startScriptedPlatform } from '../api/scripted-provider.ts';
import { attack } from './attack.ts';

const hello = { model: '@scripted/m', messages: [{ role: 'user', content: 'hello' }] };

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
});
afterAll(() => scripted.stop());

async function create(route: string, body: object): Promise<Record<string, unknown>> {
  const response = await postJson(scripted.platform, route, body);
  const made = (await response.json()) as Record<string, unknown>;
  if (response.status !== 200) throw new Error(`${route}: ${JSON.stringify(made)}`);
  return made;
}

attack('a member hides a forbidden word from an input guardrail, in each known form of a request', async () => {
  const { platform, upstream } = scripted;
  upstream.script((reply) => reply.json(200, { choices: [] }));
  const check = { contains: { operator: 'none', words: ['Forbidden'] }, deny: true };
  const config = { virtual_key: 'scripted', input_guardrails: [check] };
  const headers = { 'x-gateway-config': JSON.stringify(config) };
  const send = async (route: string, body: object): Promise<number> => {
    const response = await postJson(platform, route, { model: 'm', ...body }, headers);
    await response.arrayBuffer();
    return response.status;
  };
  const leaks: string[] = [];
  for (const { name, route, body } of guardrailForms('Forbidden')) {
    const status = await send(route, body);
    // Some forms are refused by the contract of their route before any guardrail.
    if (status !== 446 && status !== 400) leaks.push(`${name}: ${status}`);
  }
  if (upstream.requests.length > 0) leaks.push(`the provider got ${upstream.requests.length} requests`);
  const allowed = await send('/chat/completions', { messages: [{ role: 'user', content: 'fine' }] });
  if (allowed !== 200) leaks.push(`an ordinary request is refused as well: ${allowed}`);
  return leaks;
});

attack('a caller escapes the budget of a person or team by sending another name', async () => {
  const { platform, upstream } = scripted;
  const answered = { choices: [], usage: { prompt_tokens: 1, completion_tokens: 1 } };
  upstream.script((reply) => reply.json(200, answered));
  const policy = { type: 'requests', unit: 'rpd', value: 2, conditions: [{ key: 'metadata.team', value: 'red' }] };
  const grouped = { ...policy, group_by: [{ key: 'metadata._user' }, { key: 'metadata.team' }] };
  await create('/policies/rate-limits', grouped);
  const defaults = { metadata: { _user: 'mallory' }, locked_metadata: { team: 'red' } };
  const { id, key } = await create('/api-keys', { name: 'mallory', defaults });
  const send = (metadata: object) =>
    postJson(platform, '/chat/completions', hello, {
      authorization: `Bearer ${String(key)}`,
      'x-gateway-metadata': JSON.stringify(metadata),
    });
  await eventually(
    async () => (await send({})).status,
    (status) => status === 429,
  );
  const leaks: string[] = [];
  for (const metadata of [{ _user: 'nobody' }, { _other: 'x' }, { team: 'blue' }, { team: '', place: 'x' }]) {
    const { status } = await send(metadata);
    if (status !== 429) leaks.push(`${JSON.stringify(metadata)}: ${status}`);
  }
  for (const locked of [null, { team: 'blue' }]) {
    const unlocked = await fetch(`${platform.baseUrl}/api-keys/${String(id)}`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${String(key)}`, 'content-type': 'application/json' },
      body: JSON.stringify({ defaults: { locked_metadata: locked } }),
    });
    if (unlocked.status !== 403) leaks.push(`it changed its own locked metadata: ${unlocked.status}`);
  }
  const created = await postJson(platform, '/api-keys', { name: 'free' }, { authorization: `Bearer ${String(key)}` });
  if (created.status !== 403) leaks.push(`a key with locked metadata created another one: ${created.status}`);
  return leaks;
});

attack('a caller gets a model that is excluded, or escapes a policy for a model, under another name', async () => {
  const { platform, upstream } = scripted;
  const configurations = { custom_host: upstream.url.href };
  await create('/integrations', { name: 'Open', slug: 'open', ai_provider_id: 'openai', key: 'sk-1', configurations });
  const put = async (path: string, body: object) => {
    const headers = { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' };
    const { status } = await fetch(platform.baseUrl + path, { method: 'PUT', headers, body: JSON.stringify(body) });
    if (status !== 200) throw new Error(`${path}: ${status}`);
  };
  const models = [{ slug: 'gpt-4o', enabled: false }];
  await put('/integrations/open/models', { models, allow_all_models: true });
  await put('/integrations/open/workspaces', { workspaces: [{ id: 'default', enabled: true }] });
  const counted = {
    conditions: [{ key: 'model', value: 'o9' }],
    group_by: [],
    type: 'requests',
    unit: 'rpd',
    value: 0,
  };
  await create('/policies/rate-limits', counted);
  upstream.script((reply) => reply.json(200, { choices: [] }));
  const chat = async (model: string, more: object = {}) =>
    (await postJson(platform, '/chat/completions', { ...hello, model, ...more })).status;
  await eventually(
    () => chat('@scripted/o9'),
    (status) => status === 429,
  );
  upstream.requests.length = 0;
  const leaks: string[] = [];
  const refused = async (what: string, status: number | Promise<number>) => {
    const found = await status;
    if (found < 400) leaks.push(`${what}: ${found}`);
  };
  for (const name of ['gpt-4o', 'GPT-4o', 'gpt-4o-2024-08-06', 'ft:gpt-4o:acme::id', 'openai/gpt-4o']) {
    await refused(name, chat(`@open/${name}`));
    await refused(`models: ${name}`, chat('@open/other', { models: ['other', name] }));
  }
  for (const name of ['O9', 'o9-2026-01-02', 'ft:o9:acme::id'])
    await refused(`policy: ${name}`, chat(`@scripted/${name}`));
  for (const more of [{ route: 'fallback' }, { preset: 'best' }, { models: [{}] }]) {
    await refused(JSON.stringify(more), chat('@open/other', more));
    await refused(`policy: ${JSON.stringify(more)}`, chat('@scripted/other', more));
  }
  await refused('policy: models', chat('@scripted/other', { models: ['o9'] }));
  for (const path of ['/threads/runs', '/threads/thread_1/runs', '/responses']) {
    const virtualKey = { 'x-gateway-virtual-key': 'open' };
    await refused(path, (await postJson(platform, path, { assistant_id: 'asst_1' }, virtualKey)).status);
  }
  if (upstream.requests.length > 0) leaks.push(`the provider got ${upstream.requests.length} requests`);
  if ((await chat('@open/other', { models: ['another'] })) !== 200) leaks.push('other models are refused as well');
  return leaks;
});

attack('a key that a policy names creates a key that the policy does not name', async () => {
  const { platform } = scripted;
  const { id, key } = await create('/api-keys', { name: 'named' });
  const conditions = [{ key: 'api_key', value: id }];
  await create('/policies/usage-limits', { conditions, group_by: [], type: 'tokens', credit_limit: 10 });
  const authorization = `Bearer ${String(key)}`;
  const leaks: string[] = [];
  for (const [route, body] of [
    ['/api-keys', { name: 'free' }],
    ['/api-keys/workspace/service', { name: 'free' }],
    ['/admin/users/invites', { email: 'a@example.com', role: 'member', workspaces: [], workspace_api_key_details: {} }],
  ] as const) {
    const { status } = await postJson(platform, route, body, { authorization });
    if (status < 400) leaks.push(`${route}: ${status}`);
  }
  return leaks;
});

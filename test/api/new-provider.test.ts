import { afterAll, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { describeProvider, providersToMarkdown } from '#libs/providers/describe-providers.ts';
import type { Provider } from '#libs/providers/provider.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';

// A provider is its folder and its entry in provider-list.ts. Here one is added as a developer would add it: to the list,
// with `npm run generate` after it. Nothing else knows of it.

vi.mock('#libs/providers/provider-list.ts', async (importOriginal) => {
  const original = await importOriginal<typeof import('#libs/providers/provider-list.ts')>();
  const { openAiCompatible } = await import('#libs/providers/openai-compatible.ts');
  const { addressFrom } = await import('#libs/providers/url-parts.ts');
  const acme: Provider = {
    ...openAiCompatible({ id: 'acme', aliases: ['acme-ai'], headerSettings: ['acme_project'] }),
    settings: {
      acme_cell: { destination: true, alias: 'cell' },
      acme_project: {},
      acme_token: { secret: true, authenticates: true },
      acme_badge_json: { secret: true, json: true },
    },
    address: 'https://{acme_cell}.acme.example/v1',
    baseUrlOf: addressFrom('acme_cell', (cell) => `https://${cell}.acme.example/v1`),
    needsCredential: true,
    credentialHeaders: ['x-acme-'],
    async authorize({ headers }, { secrets }) {
      const { acme_token: token, acme_badge_json: badge } = secrets;
      if (token) headers.push('x-acme-token', token.reveal());
      if (badge) headers.push('x-acme-badge', String(JSON.parse(badge.reveal()).number));
    },
  };
  return { providers: [...original.providers, acme] };
});

vi.mock('#libs/providers/setting-fields.ts', async () => {
  const { collectCredentialHeaders, collectSettingForms } = await import('#libs/providers/setting-fields-module.ts');
  const { providers } = await import('#libs/providers/provider-list.ts');
  return { settingFields: collectSettingForms(providers), credentialHeaders: collectCredentialHeaders(providers) };
});

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, answer));
});

const answer = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'any',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hi' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
};
const messages = [{ role: 'user', content: 'Hello' }];
const token = 'acme-CANARY-0123456789';

const store = async (fields: object): Promise<{ status: number; body: Record<string, unknown> }> => {
  const response = await postJson(platform, '/virtual-keys', { name: 'Acme', provider: 'acme', ...fields });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
};

test('it is stored with its settings, under its alias too, and its secrets are never shown', async () => {
  const { status, body } = await store({
    provider: 'acme-ai',
    slug: 'stored',
    acme_cell: 'eu',
    acme_project: 'p1',
    acme_token: token,
    acme_badge_json: { number: 7 },
  });
  expect([status, body]).toMatchObject([
    200,
    { provider: 'acme', last_four: '6789', settings: { acme_cell: 'eu', acme_project: 'p1' } },
  ]);
  const listed = await fetch(`${platform.baseUrl}/virtual-keys`, {
    headers: { authorization: `Bearer ${platform.adminKey}` },
  });
  const text = await listed.text();
  expect(text).toContain('"acme_cell":"eu"');
  expect(text).not.toContain(token);
  expect(text).not.toContain('acme_badge_json');
});

test.each([
  ['a setting that its address is made of is missing', { acme_token: token }, 'acme_cell'],
  ['it has neither a key nor a setting in its place', { acme_cell: 'eu' }, 'key'],
  ['a secret setting cannot be sent in a header', { acme_cell: 'eu', acme_token: 'a b' }, 'acme_token'],
  ['it has a setting of another provider', { acme_cell: 'eu', key: 'k', aws_region: 'eu-west-1' }, 'aws_region'],
  ['another provider has one of its settings', { provider: 'openai', key: 'k', acme_project: 'p1' }, 'acme_project'],
])('a virtual key is refused when %s', async (_what, fields, param) => {
  expect(await store(fields)).toMatchObject({ status: 400, body: { error: { param } } });
});

test('another destination asks for the credential again, another setting does not', async () => {
  await store({ slug: 'moved', acme_cell: 'eu', acme_token: token });
  const change = async (fields: object) => {
    const response = await fetch(`${platform.baseUrl}/virtual-keys/moved`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify(fields),
    });
    return [response.status, await response.json()];
  };
  expect(await change({ acme_cell: 'evil' })).toMatchObject([400, { error: { code: 'credential_required' } }]);
  expect(await change({ acme_project: 'p2' })).toMatchObject([200, { settings: { acme_project: 'p2' } }]);
});

test('it is called by its virtual key', async () => {
  const custom_host = upstream.url.href;
  await store({ slug: 'called', custom_host, acme_project: 'p1', acme_token: token, acme_badge_json: { number: 7 } });
  const response = await postJson(platform, '/chat/completions', { model: '@called/any', messages });
  expect([response.status, await response.json()]).toEqual([200, answer]);
  expect(upstream.requests[0]?.headers).toMatchObject({
    'acme-project': 'p1',
    'x-acme-token': token,
    'x-acme-badge': '7',
  });
});

test('it is called by the settings in a caller’s headers, and by those of a config', async () => {
  const headers = {
    'x-gateway-provider': 'acme',
    'x-gateway-custom-host': upstream.url.href,
    'x-gateway-acme-token': token,
    'x-portkey-acme-project': 'p3',
  };
  expect((await postJson(platform, '/chat/completions', { model: 'any', messages }, headers)).status).toBe(200);
  const config = {
    provider: 'acme',
    custom_host: upstream.url.href,
    acme_token: token,
    acme_project: 'p4',
    cell: 'eu',
  };
  const withConfig = { 'x-gateway-config': JSON.stringify(config) };
  expect((await postJson(platform, '/chat/completions', { model: 'any', messages }, withConfig)).status).toBe(200);
  expect(upstream.requests.map(({ headers: sent }) => [sent['acme-project'], sent['x-acme-token']])).toEqual([
    ['p3', token],
    ['p4', token],
  ]);
});

test('a config cannot forward a client’s header of its credential, nor be stored with its secrets', async () => {
  const forwarding = { provider: 'acme', forward_headers: ['X-Acme-Token'] };
  const call = { model: 'any', messages };
  const refused = await postJson(platform, '/chat/completions', call, {
    'x-gateway-config': JSON.stringify(forwarding),
  });
  expect([refused.status, await refused.text()]).toEqual([400, expect.stringContaining('x-acme-token')]);
  const stored = await postJson(platform, '/configs', { name: 'c', config: { provider: 'acme', acme_token: token } });
  expect([stored.status, await stored.json()]).toMatchObject([400, { error: { code: 'secret_in_config' } }]);
});

test('its settings are in the OpenAPI document, and it is in the list of providers', async () => {
  const response = await fetch(`${new URL(platform.baseUrl).origin}/openapi.json`);
  const { paths } = (await response.json()) as {
    paths: Record<
      string,
      { post: { requestBody: { content: { 'application/json': { schema: { properties: object } } } } } }
    >;
  };
  const { properties } = paths['/v1/virtual-keys']?.post.requestBody.content['application/json'].schema ?? {};
  expect(properties).toMatchObject({ acme_cell: { type: 'string' }, acme_token: { type: 'string' } });
  const { providers } = await import('#libs/providers/provider-list.ts');
  expect(providersToMarkdown(providers.map(describeProvider))).toMatch(
    /\| `acme` +\| `https:\/\/\{acme_cell\}\.acme\.example\/v1` +\| `acme_cell`, `acme_project\?`, `acme_token\?`, `acme_badge_json\?` +\|/,
  );
});

import type { IncomingHttpHeaders } from 'node:http';
import { expect, test } from 'vitest';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { createGatewayKey } from '#libs/identity/gateway-key.ts';
import type { LiveCredential } from './stored.ts';
import { readCredentials } from './requested.ts';
import { createPlanCache } from './configs/plan-cache.ts';
import { createRouting } from './routing.ts';
import type { ResolvedTarget } from './resolve.ts';

const nowMs = 1_000_000;

function virtualKey(slug: string, fields: Partial<LiveCredential> = {}): LiveCredential {
  const secret = new Secret(`stored-key-of-${slug}`);
  return {
    noun: 'virtual key',
    id: `vk_${slug}`,
    workspaceId: 'ws_a',
    slug,
    provider: 'openai',
    customHost: null,
    baseUrl: new URL('https://api.openai.com/v1'),
    settings: {},
    apiKey: secret,
    secrets: { key: secret },
    expiresAtMs: Number.POSITIVE_INFINITY,
    ...fields,
  };
}

const keys = [
  virtualKey('mine'),
  virtualKey('own-host', {
    provider: 'vllm',
    customHost: 'https://llm.example.com/v1',
    baseUrl: new URL('https://llm.example.com/v1'),
  }),
  virtualKey('expired', { expiresAtMs: nowMs }),
  virtualKey('unreadable', { secrets: null, apiKey: null }),
  virtualKey('from-the-future', { provider: 'later', baseUrl: null }),
  virtualKey('theirs', { workspaceId: 'ws_b' }),
];

let refreshes = 0;
const snapshot = {
  findCredential: (workspaceId: string, slug: string) =>
    keys.find((key) => key.workspaceId === workspaceId && key.slug === slug),
  findConfig: () => undefined,
  findGuardrails: () => undefined,
  findCredentialById: () => undefined,
  findGuardrail: () => undefined,
  guardrailsVersion: () => keys,
  findPublicModels: () => ({ owners: [], version: keys }),
  refuseUnreadableModels: () => {},
  absent: new Set<string>(),
  refresh: async () => {
    refreshes += 1;
  },
};
const routing = createRouting({
  plans: createPlanCache(),
  snapshot,
  clock: { now: () => nowMs },
  mappedSecrets: { complete: async (target) => target },
  checkDestination: (url) => {
    if (url.hostname === 'forbidden.example')
      throw new GatewayError('invalid_request', 'destination_not_allowed', 'no');
  },
});

const gatewayKey = createGatewayKey().reveal();
const own = { 'x-gateway-api-key': gatewayKey };
const withProviderKey = { ...own, authorization: 'Bearer sk-of-the-caller' };

const resolve = (headers: IncomingHttpHeaders, model: string | null = 'gpt-5-mini', configId: string | null = null) =>
  routing.targetOf({
    workspaceId: 'ws_a',
    credentials: readCredentials(headers),
    model,
    defaults: { configId, allowsConfigOverride: true },
  });

const shown = ({ target, model }: ResolvedTarget) => ({
  provider: target.provider,
  url: target.baseUrl.href,
  key: target.apiKey?.reveal() ?? null,
  boundTo: target.secretOrigin,
  label: target.label,
  override: target.model,
  model,
});

const mine = {
  provider: 'openai',
  url: 'https://api.openai.com/v1',
  key: 'stored-key-of-mine',
  boundTo: 'https://api.openai.com',
  label: 'mine',
  override: undefined,
  model: 'gpt-5-mini',
};
const callers = { ...mine, key: 'sk-of-the-caller', boundTo: null, label: 'openai' };
const elsewhere = { ...callers, url: 'https://eu.example.com/v1' };

test.each<[string, IncomingHttpHeaders, object]>([
  ['a virtual key', { ...own, 'x-gateway-virtual-key': 'mine' }, mine],
  ['a virtual key under the alias', { ...own, 'x-portkey-virtual-key': 'mine' }, mine],
  [
    'a virtual key with the gateway key as bearer',
    { authorization: `Bearer ${gatewayKey}`, 'x-gateway-virtual-key': 'mine' },
    mine,
  ],
  ['a virtual key named as provider', { ...own, 'x-gateway-provider': '@mine' }, mine],
  ['a virtual key and its provider', { ...own, 'x-gateway-virtual-key': 'mine', 'x-gateway-provider': 'openai' }, mine],
  ['a virtual key wins over a bearer', { ...withProviderKey, 'x-gateway-virtual-key': 'mine' }, mine],
  [
    'a virtual key and its own host',
    { ...own, 'x-gateway-virtual-key': 'mine', 'x-gateway-custom-host': 'https://api.openai.com/v1/' },
    mine,
  ],
  ['provider and key', { ...withProviderKey, 'x-gateway-provider': 'openai' }, callers],
  [
    'provider, key and custom host',
    { ...withProviderKey, 'x-gateway-provider': 'openai', 'x-gateway-custom-host': 'https://eu.example.com/v1' },
    elsewhere,
  ],
  ['a config with a virtual key', { ...own, 'x-gateway-config': '{"virtual_key":"mine"}' }, mine],
  ['a config with a virtual key as provider', { ...own, 'x-gateway-config': '{"provider":"@mine"}' }, mine],
  [
    'a config wins over the virtual key header',
    {
      ...own,
      'x-gateway-config': '{"virtual_key":"mine"}',
      'x-gateway-virtual-key': 'own-host',
      'x-gateway-provider': 'vllm',
    },
    mine,
  ],
  [
    'a config with provider and key',
    { ...own, 'x-gateway-config': '{"provider":"openai","api_key":"sk-of-the-caller"}' },
    callers,
  ],
  [
    "a config's key is not mixed with a virtual key",
    {
      ...own,
      'x-gateway-virtual-key': 'mine',
      'x-gateway-config': '{"provider":"openai","api_key":"sk-of-the-caller"}',
    },
    callers,
  ],
  [
    "a config without credentials takes the caller's",
    { ...withProviderKey, 'x-gateway-config': '{"provider":"openai","custom_host":"https://eu.example.com/v1"}' },
    elsewhere,
  ],
  [
    'a server of its own without a key',
    { ...own, 'x-gateway-provider': 'ollama', 'x-gateway-custom-host': 'http://127.0.0.1:11434/v1' },
    { ...callers, provider: 'ollama', label: 'ollama', key: null, url: 'http://127.0.0.1:11434/v1' },
  ],
])('%s', async (_what, headers, expected) => {
  expect(shown(await resolve(headers))).toEqual(expected);
});

test('a model of the form @slug/model names the virtual key, wins over the headers and is sent without the slug', async () => {
  const headers = { ...withProviderKey, 'x-gateway-virtual-key': 'own-host', 'x-gateway-provider': 'vllm' };
  expect(shown(await resolve(headers, '@mine/openai/gpt-oss'))).toEqual({
    ...mine,
    override: 'openai/gpt-oss',
    model: 'openai/gpt-oss',
  });
});

test('the same virtual key named twice is one', async () => {
  const headers = { ...own, 'x-gateway-virtual-key': 'mine', 'x-gateway-provider': '@mine' };
  expect(shown(await resolve(headers))).toEqual(mine);
});

async function refusal(act: () => unknown): Promise<GatewayError> {
  try {
    await act();
  } catch (error) {
    if (error instanceof GatewayError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

test.each<[string, IncomingHttpHeaders, { code: string; param: string | null; message: RegExp }]>([
  ['nothing', own, { code: 'missing_credentials', param: 'x-gateway-virtual-key', message: /four ways/ }],
  [
    'a provider key alone',
    withProviderKey,
    { code: 'missing_credentials', param: 'x-gateway-virtual-key', message: /x-gateway-provider/ },
  ],
  [
    'a provider without a key',
    { ...own, 'x-gateway-provider': 'openai' },
    { code: 'missing_credentials', param: 'authorization', message: /Bearer/ },
  ],
  [
    'a custom host without a key of a hosted provider',
    { ...own, 'x-gateway-provider': 'openai', 'x-gateway-custom-host': 'https://a.example' },
    { code: 'missing_credentials', param: 'authorization', message: /Bearer/ },
  ],
  [
    'an unknown provider',
    { ...withProviderKey, 'x-gateway-provider': 'opennai' },
    { code: 'invalid_value', param: 'x-gateway-provider', message: /Known providers: openai, / },
  ],
  [
    'a provider without an address',
    { ...withProviderKey, 'x-gateway-provider': 'vllm' },
    { code: 'missing_custom_host', param: 'x-gateway-custom-host', message: /vllm/ },
  ],
  [
    'an unknown slug',
    { ...own, 'x-gateway-virtual-key': 'nobody' },
    { code: 'virtual_key_not_found', param: 'x-gateway-virtual-key', message: /'nobody'/ },
  ],
  [
    "another workspace's slug",
    { ...own, 'x-gateway-virtual-key': 'theirs' },
    { code: 'virtual_key_not_found', param: 'x-gateway-virtual-key', message: /'theirs'/ },
  ],
  [
    'an expired virtual key',
    { ...own, 'x-gateway-virtual-key': 'expired' },
    { code: 'virtual_key_expired', param: 'x-gateway-virtual-key', message: /expired at 1970/ },
  ],
  [
    'a virtual key with another provider',
    { ...own, 'x-gateway-virtual-key': 'mine', 'x-gateway-provider': 'groq' },
    { code: 'provider_mismatch', param: 'x-gateway-provider', message: /'openai'/ },
  ],
  [
    'two virtual keys',
    { ...own, 'x-gateway-virtual-key': 'mine', 'x-gateway-provider': '@own-host' },
    { code: 'ambiguous_virtual_key', param: 'x-gateway-virtual-key', message: /one of them/ },
  ],
  [
    'a stored key to another host',
    { ...own, 'x-gateway-virtual-key': 'mine', 'x-gateway-custom-host': 'https://evil.example/v1' },
    { code: 'custom_host_mismatch', param: 'x-gateway-custom-host', message: /stored/ },
  ],
  [
    'a stored key to a longer path of its host',
    { ...own, 'x-gateway-virtual-key': 'own-host', 'x-gateway-custom-host': 'https://llm.example.com/v1/x' },
    { code: 'custom_host_mismatch', param: 'x-gateway-custom-host', message: /stored/ },
  ],
  [
    'a stored key to another host by config',
    { ...own, 'x-gateway-config': '{"virtual_key":"mine","custom_host":"https://evil.example"}' },
    { code: 'custom_host_mismatch', param: 'x-gateway-config.custom_host', message: /stored/ },
  ],
  [
    'a custom host with credentials',
    { ...withProviderKey, 'x-gateway-provider': 'openai', 'x-gateway-custom-host': 'https://u:p@a.example' },
    { code: 'invalid_value', param: 'x-gateway-custom-host', message: /without a user name/ },
  ],
  [
    'a stored config',
    { ...own, 'x-gateway-config': 'pc-my-config' },
    { code: 'config_not_found', param: 'x-gateway-config', message: /'pc-my-config'/ },
  ],
  [
    'a config that is no JSON',
    { ...own, 'x-gateway-config': '{virtual_key:1}' },
    { code: 'invalid_value', param: 'x-gateway-config', message: /not valid JSON/ },
  ],
  [
    'a config with a member that is misspelt',
    { ...own, 'x-gateway-config': '{"virtual_key":"mine","retry":{"attempt":3}}' },
    { code: 'missing_required_parameter', param: 'x-gateway-config.retry.attempts', message: /attempts/ },
  ],
  [
    'a target that would send the key of another provider',
    { ...withProviderKey, 'x-gateway-provider': 'openai', 'x-gateway-config': '{"targets":[{"provider":"groq"}]}' },
    { code: 'missing_credentials', param: 'x-gateway-config.targets[0].api_key', message: /'groq'/ },
  ],
  [
    'an unknown provider of a target that might never have its turn',
    {
      ...own,
      'x-gateway-config': '{"strategy":{"mode":"fallback"},"targets":[{"virtual_key":"mine"},{"provider":"opennai"}]}',
    },
    { code: 'invalid_value', param: 'x-gateway-config.targets[1].provider', message: /Known providers/ },
  ],
  [
    'a host of a target that might never have its turn',
    {
      ...own,
      'x-gateway-config':
        '{"strategy":{"mode":"fallback"},"targets":[{"virtual_key":"mine"},{"provider":"openai","custom_host":"http://forbidden.example"}]}',
    },
    { code: 'destination_not_allowed', param: 'x-gateway-config.targets[1].custom_host', message: /no/ },
  ],
  [
    'a secret setting with a line break',
    { ...own, 'x-gateway-provider': 'openai', 'x-gateway-aws-secret-access-key': 'a\tb' },
    { code: 'invalid_value', param: 'x-gateway-aws-secret-access-key', message: /printable ASCII/ },
  ],
  [
    'a config with two credentials',
    { ...own, 'x-gateway-config': '{"virtual_key":"mine","api_key":"sk"}' },
    { code: 'invalid_value', param: 'x-gateway-config.api_key', message: /one of them/ },
  ],
])('%s is refused, saying where and what', async (_what, headers, { code, param, message }) => {
  const error = await refusal(() => resolve(headers));
  expect({ kind: error.kind, code: error.code, param: error.param }).toEqual({ kind: 'invalid_request', code, param });
  expect(error.message).toMatch(message);
});

test("a provider's own settings come by header, for the caller's own credential alone", async () => {
  const settings = {
    'x-gateway-aws-region': 'eu-west-1',
    'x-portkey-azure-resource-name': 'res',
    'x-gateway-aws-secret-access-key': 'hush-hush',
    'x-gateway-vertex-service-account-json': '{"type": "service_account"}',
  };
  const { target } = await resolve({ ...withProviderKey, 'x-gateway-provider': 'openai', ...settings });
  expect(target.settings).toEqual({ aws_region: 'eu-west-1', azure_resource_name: 'res' });
  const secrets = Object.entries(target.secrets).map(([name, secret]) => [name, secret.reveal()]);
  expect(Object.fromEntries(secrets)).toEqual({
    aws_secret_access_key: 'hush-hush',
    vertex_service_account_json: '{"type": "service_account"}',
  });
  // A secret setting is a credential, so no bearer token is needed.
  expect((await resolve({ ...own, 'x-gateway-provider': 'openai', ...settings })).target.apiKey).toBeNull();
  const config = { 'x-gateway-config': '{"provider":"openai","aws_region":"of-config","api_version":"v1"}' };
  const merged = await resolve({ ...withProviderKey, ...settings, ...config });
  expect(merged.target.settings).toEqual({
    aws_region: 'of-config',
    azure_resource_name: 'res',
    azure_api_version: 'v1',
  });
  const stored = await resolve({ ...own, ...settings, 'x-gateway-virtual-key': 'mine' });
  expect(stored.target.settings).toEqual({});
  expect(stored.target.secrets['aws_secret_access_key']).toBeUndefined();
});

test('a virtual key in the model is used by a target that says nothing itself, and is only taken off elsewhere', async () => {
  const slug = '@own-host/llama';
  const bare = await resolve({ ...own, 'x-gateway-config': '{"retry":{"attempts":1}}' }, slug);
  expect(shown(bare)).toMatchObject({ label: 'own-host', model: 'llama' });
  const own1 = await resolve({ ...own, 'x-gateway-config': '{"virtual_key":"mine"}' }, slug);
  expect(shown(own1)).toMatchObject({ label: 'mine', model: 'llama' });
});

test('a key that no header can carry is refused, unquoted', async () => {
  const config = JSON.stringify({ provider: 'openai', api_key: 'sk-CANARY\r\nx-evil: 1' });
  const error = await refusal(() => resolve({ ...own, 'x-gateway-config': config }));
  expect(error).toMatchObject({ code: 'invalid_value', param: 'x-gateway-config.api_key' });
  expect(error.message).not.toContain('CANARY');
});

test.each(['@mine', '@mine/', '@/gpt-5', '@'])('the model %s is refused', async (model) => {
  expect(await refusal(() => resolve(own, model))).toMatchObject({ kind: 'invalid_request', param: 'model' });
});

test('a stored key does not go to another host when the model names it', async () => {
  const headers = { ...own, 'x-gateway-custom-host': 'https://evil.example' };
  expect(await refusal(() => resolve(headers, '@mine/gpt-5'))).toMatchObject({ code: 'custom_host_mismatch' });
});

test('unknown and foreign slugs are answered alike', async () => {
  const texts = await Promise.all(
    ['nobody', 'theirs'].map(async (slug) =>
      (await refusal(() => resolve(own, `@${slug}/m`))).message.replace(slug, 'SLUG'),
    ),
  );
  expect(texts[0]).toBe(texts[1]);
});

test('a gateway key is never taken for a provider key', async () => {
  const provider = { 'x-gateway-provider': 'openai' };
  const other = createGatewayKey().reveal();
  for (const headers of [
    { ...provider, authorization: `Bearer ${gatewayKey}` },
    { ...provider, ...own, authorization: `Bearer ${gatewayKey}` },
    { ...provider, ...own, authorization: `bearer ${other}` },
    { ...provider, 'x-gateway-api-key': 'a-bootstrap-key-1', authorization: 'Bearer a-bootstrap-key-1' },
  ]) {
    expect(await refusal(() => resolve(headers))).toMatchObject({ code: 'missing_credentials' });
  }
});

test("a key's default config is used without a config header", async () => {
  expect(await refusal(() => resolve(own, 'm', 'default-config'))).toMatchObject({ code: 'config_not_found' });
  const header = { ...own, 'x-gateway-config': '{"virtual_key":"mine"}' };
  expect(shown(await resolve(header, 'gpt-5-mini', 'default-config'))).toEqual(mine);
});

test('a credential that cannot be read and an unsupported provider say so', async () => {
  expect(await refusal(() => resolve(own, '@unreadable/m'))).toMatchObject({
    kind: 'unavailable',
    code: 'virtual_key_unreadable',
  });
  expect(await refusal(() => resolve(own, '@from-the-future/m'))).toMatchObject({ code: 'provider_not_supported' });
});

test('a slug that is missing is looked for once more, a known one never', async () => {
  refreshes = 0;
  await resolve(own, '@mine/m');
  expect(refreshes).toBe(0);
  const late = virtualKey('late');
  const missing = resolve(own, '@late/m');
  keys.push(late);
  expect(shown(await missing)).toMatchObject({ label: 'late', key: 'stored-key-of-late' });
  expect(refreshes).toBe(1);
});

test('no message holds a credential', async () => {
  const secret = 'sk-CANARY-in-every-place';
  for (const headers of [
    { ...own, authorization: `Bearer ${secret}` },
    { ...own, authorization: `Bearer ${secret}`, 'x-gateway-provider': 'vllm' },
    { ...own, 'x-gateway-config': `{"api_key":"${secret}"}` },
    { ...own, 'x-gateway-config': `{"api_key":"${secret}",}` },
    { ...own, 'x-gateway-config': `{"api_key":["${secret}"]}` },
  ]) {
    const error = await refusal(() => resolve(headers));
    expect(`${error.message}${JSON.stringify(error)}`).not.toContain('CANARY');
  }
});

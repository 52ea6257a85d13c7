import { expect, test } from 'vitest';
import { chatDialect } from './chat/index.ts';
import { providers } from './provider-list.ts';
import { findProvider, providerIds, providersWith } from './registry.ts';

test('every provider is found by its id and speaks at least chat', () => {
  for (const id of providerIds) expect(findProvider(id)).toMatchObject({ id, operations: { chat: expect.anything() } });
  expect(providerIds).toEqual(
    expect.arrayContaining(['openai', 'simulator', 'openai-compatible', 'ollama', 'vllm', 'groq']),
  );
});

test('a provider with an address of its own has an https one; the others need a host from their user', () => {
  const withoutHost = providers.filter(({ baseUrlOf }) => baseUrlOf({}) === null);
  expect(withoutHost.map(({ id }) => id)).toContain('vllm');
  // An address that contains a setting, such as a region, needs that setting.
  expect(withoutHost.filter(({ address }) => address?.includes('{') === false)).toEqual([]);
  const urls = providerIds.flatMap((id) => findProvider(id)?.baseUrlOf({}) ?? []);
  expect(urls.filter((url) => url.protocol !== 'https:' || url.search !== '' || url.username !== '')).toEqual([]);
});

test('the names that clients of the older interface send are understood; unknown ones are not', () => {
  expect(findProvider('together-ai')?.id).toBe('together');
  expect(findProvider('google')?.id).toBe('gemini');
  expect(findProvider('vertex-ai')?.id).toBe('vertex');
  expect(findProvider('nobody')).toBeUndefined();
  expect(findProvider('__proto__')).toBeUndefined();
});

test('an organisation of the virtual key goes out, unless the client names another one', () => {
  const call = {
    operation: 'models' as const,
    body: Buffer.alloc(0),
    edits: {},
    json: () => ({}),
    stream: false,
    includeUsage: false,
    strict: true,
    dialect: chatDialect,
    model: '',
    resources: new Map(),
    headers: { 'openai-project': 'theirs' },
  };
  const settings = { openai_organization: 'org-1', openai_project: 'proj-1' };
  const upstream = { baseUrl: new URL('https://api.openai.com/v1'), apiKey: null, settings, secrets: {} };
  const sent = findProvider('openai')?.operations.models?.encode(call, upstream).headers;
  expect(sent).toEqual(['accept', 'application/json', 'openai-project', 'theirs', 'openai-organization', 'org-1']);
});

test('no two providers have the same name', () => {
  const names = providers.flatMap(({ id, aliases = [] }) => [id, ...aliases]);
  expect(names.toSorted()).toEqual([...new Set(names)].toSorted());
});

test('a setting that several providers accept means the same at each of them', () => {
  const meanings = new Map<string, object>();
  for (const { settings = {} } of providers) {
    for (const [name, { secret, json, authenticates, destination }] of Object.entries(settings)) {
      const meaning = { secret, json, authenticates, destination };
      expect([name, meaning]).toEqual([name, meanings.get(name) ?? meaning]);
      meanings.set(name, meaning);
    }
  }
});

test('the names of settings can be members of a virtual key and, with hyphens, headers', () => {
  const names = providers.flatMap(({ settings = {} }) => Object.keys(settings));
  expect(names.filter((name) => !/^[a-z][a-z0-9]*(_[a-z0-9]+)+$/.test(name))).toEqual([]);
});

test('Claude’s settings are accepted by the clouds that serve it, OpenAI’s by servers that stand in for it', () => {
  expect(providersWith('anthropic_beta')).toEqual(['anthropic', 'vertex', 'bedrock', 'azure']);
  expect(providersWith('openai_project')).toEqual([
    'openai',
    'azure',
    'openai-compatible',
    'vllm',
    'ollama',
    'simulator',
  ]);
  expect(providersWith('aws_region')).toEqual(['bedrock']);
  expect(providersWith('constructor')).toEqual([]);
});

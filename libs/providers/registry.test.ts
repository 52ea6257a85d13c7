import { expect, test } from 'vitest';
import { findProvider, providerIds } from './registry.ts';

test('every provider is found by its id and speaks at least chat', () => {
  for (const id of providerIds) expect(findProvider(id)).toMatchObject({ id, operations: { chat: expect.anything() } });
  expect(providerIds).toEqual(
    expect.arrayContaining(['openai', 'simulator', 'openai-compatible', 'ollama', 'vllm', 'groq']),
  );
});

test('a provider with an address of its own has an https one; the others need a host from their user', () => {
  const withoutHost = providerIds.filter((id) => findProvider(id)?.baseUrlOf({}) === null);
  // Those of Vertex AI and Bedrock are made of a region, Azure's of a resource's name.
  expect(withoutHost).toEqual(['vertex', 'bedrock', 'azure', 'openai-compatible', 'vllm', 'ollama', 'simulator']);
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
    resources: new Map(),
    headers: { 'openai-project': 'theirs' },
  };
  const settings = { openai_organization: 'org-1', openai_project: 'proj-1' };
  const upstream = { baseUrl: new URL('https://api.openai.com/v1'), apiKey: null, settings, secrets: {} };
  const sent = findProvider('openai')?.operations.models?.encode(call, upstream).headers;
  expect(sent).toEqual(['accept', 'application/json', 'openai-project', 'theirs', 'openai-organization', 'org-1']);
});

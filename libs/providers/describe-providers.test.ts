import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { describeProvider, providersToMarkdown } from './describe-providers.ts';
import { providerPlaces } from './provider-places.ts';
import type { Settings } from './provider.ts';
import { findProvider, providerIds } from './registry.ts';

const described = providerIds.flatMap((id) => {
  const provider = findProvider(id);
  return provider ? [describeProvider(provider)] : [];
});

test('docs/providers.md matches the code (npm run sluice -- providers --markdown > docs/providers.md)', () => {
  const committed = readFileSync(new URL('../../docs/providers.md', import.meta.url), 'utf8');
  expect(committed).toBe(providersToMarkdown(described));
});

test('operations are described from the adapters', () => {
  const forms = Object.fromEntries(described.map(({ id, operations }) => [id, operations]));
  expect(forms['openai']).toEqual({
    chat: 'pass-through',
    completions: 'pass-through',
    embeddings: 'pass-through',
    models: 'pass-through',
  });
  expect(forms['cohere']).toEqual({
    chat: 'transformed',
    completions: 'not supported',
    embeddings: 'transformed',
    models: 'transformed',
  });
  expect(forms['mistral']).toMatchObject({ chat: 'pass-through', completions: 'not supported' });
  expect(forms['azure']).toMatchObject({ chat: 'pass-through', embeddings: 'pass-through' });
});

test('pass-through areas and fine-tuning are described from the adapters', () => {
  const areas = Object.fromEntries(described.map(({ id, areas: forms }) => [id, forms]));
  expect(areas['openai']).toEqual({
    moderations: 'pass-through',
    images: 'pass-through',
    audio: 'pass-through',
    responses: 'pass-through',
    conversations: 'pass-through',
    rerank: 'not supported',
    assistants: 'pass-through',
    threads: 'pass-through',
    vector_stores: 'pass-through',
    fine_tuning: 'transformed',
  });
  expect(areas['groq']).toMatchObject({ audio: 'pass-through', images: 'not supported', fine_tuning: 'not supported' });
  expect(new Set(Object.values(areas['anthropic'] ?? {}))).toEqual(new Set(['not supported']));
});

test('a place that is written down is where the adapter is', () => {
  const samples: Settings = { vertex_region: 'europe-west1', aws_region: 'eu-west-1', azure_resource_name: 'contoso' };
  const made = Object.entries(providerPlaces).filter(([, { address }]) => address !== '');
  expect(made.length).toBeGreaterThan(0);
  for (const [id, { address, settings }] of made) {
    const expected = address.replaceAll(
      /\{(\w+)\}/g,
      (_braces, name: string) => samples[name] ?? `no sample for ${name}`,
    );
    expect([id, findProvider(id)?.baseUrlOf(samples)?.href.replace(/\/$/, '')]).toEqual([id, expected]);
    // What the address is made of cannot be left out.
    for (const [, name] of address.matchAll(/\{(\w+)\}/g)) expect(settings).toContain(name);
  }
  expect(Object.keys(providerPlaces).filter((id) => findProvider(id)?.id !== id)).toEqual([]);
});

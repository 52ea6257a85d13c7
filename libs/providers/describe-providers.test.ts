import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { describeProvider, providersToMarkdown } from './describe-providers.ts';
import type { Settings } from './provider.ts';
import { providers } from './provider-list.ts';
import { toSettingFieldsModule } from './setting-fields-module.ts';

const described = providers.map(describeProvider);

const committed = (path: string) => readFileSync(new URL(path, import.meta.url), 'utf8');

test('docs/providers.md is what the code says (npm run generate)', () => {
  expect(committed('../../docs/providers.md')).toBe(providersToMarkdown(described));
});

test('setting-fields.ts holds the settings of the providers (npm run generate)', () => {
  expect(committed('setting-fields.ts')).toBe(toSettingFieldsModule(providers));
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
    stored_objects: 'pass-through',
    fine_tuning: 'transformed',
  });
  expect(areas['groq']).toMatchObject({ audio: 'pass-through', images: 'not supported', fine_tuning: 'not supported' });
  expect(new Set(Object.values(areas['anthropic'] ?? {}))).toEqual(new Set(['not supported']));
});

test('an address made of settings is where the adapter sends its calls', () => {
  const samples: Settings = { vertex_region: 'europe-west1', aws_region: 'eu-west-1' };
  const made = providers.filter(({ address }) => address?.includes('{'));
  expect(made.map(({ id }) => id)).toContain('azure');
  for (const { id, address = '', settings = {}, baseUrlOf } of made) {
    const names = [...address.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name);
    const given = Object.fromEntries(names.map((name) => [name, samples[name] ?? 'sample']));
    const expected = address.replaceAll(/\{(\w+)\}/g, (_braces, name: string) => given[name] ?? '');
    expect([id, baseUrlOf(given)?.href.replace(/\/$/, '')]).toEqual([id, expected]);
    expect(Object.keys(settings)).toEqual(expect.arrayContaining(names));
  }
  const fixed = providers.filter(({ address }) => !address?.includes('{'));
  for (const { id, address, baseUrlOf } of fixed) {
    expect([id, baseUrlOf({})?.href]).toEqual([id, address && new URL(address).href]);
  }
});

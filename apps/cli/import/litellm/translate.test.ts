import { readdirSync } from 'node:fs';
import path from 'node:path';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { stringify } from 'yaml';
import { z } from 'zod';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { publicModelFields, toModelConfig } from '#libs/contracts/configs/public-models.ts';
import { rateLimitPolicyFields, usageLimitPolicyFields } from '#libs/contracts/people/policies.ts';
import { slug } from '#libs/contracts/people/access-fields.ts';
import { virtualKeyFields } from '#libs/contracts/virtual-keys.ts';
import { readObject } from '../../records/read-documents.ts';
import type { RecordDocument } from './record-document.ts';
import { translateLiteLlm, type Translation } from './translate.ts';

const folder = path.resolve(import.meta.dirname, '../../../../test/fixtures/import-litellm');
const files = readdirSync(folder)
  .filter((name) => /^[a-z-]+\.yaml$/.test(name))
  .map((name) => name.replace('.yaml', ''));

/** The environment of the person who imports. */
const environment: Readonly<Record<string, string>> = {
  AZURE_EMBEDDINGS_BASE: 'https://contoso-embeddings.openai.azure.com/',
  AZURE_EMBEDDINGS_VERSION: '2024-10-21',
  AWS_ACCESS_KEY_ID: 'AKIAEXAMPLE',
  AWS_REGION: 'us-west-2',
};
const translate = (document: Record<string, unknown>): Translation =>
  translateLiteLlm(document, (name) => environment[name]);
const read = async (name: string): Promise<Record<string, unknown>> =>
  await readObject(path.join(folder, `${name}.yaml`), { merge: true });

/** The contract of each kind, for the body that creates a record. */
const contracts: Readonly<Record<string, (body: Record<string, unknown>) => unknown>> = {
  virtual_key: (body) => z.strictObject({ ...virtualKeyFields, slug: slug() }).parse(body),
  usage_limit_policy: (body) => z.strictObject(usageLimitPolicyFields).parse(body),
  rate_limit_policy: (body) => z.strictObject(rateLimitPolicyFields).parse(body),
  model: ({ slug: _slug, ...body }) => {
    const { name, strategy, targets, retry, cache, request_timeout } = z.strictObject(publicModelFields).parse(body);
    const routing = { strategy, targets, retry, cache, request_timeout };
    return ConfigInput.parse(toModelConfig(routing, name, null));
  },
};

/** Why a body does not pass the contract of its kind, or null. */
function findProblem(kind: string, body: Record<string, unknown>): string | null {
  const check = contracts[kind];
  if (check === undefined) return `there is no contract for ${kind}`;
  try {
    check(body);
    return null;
  } catch (error) {
    return String(error);
  }
}

function expectValid(records: readonly RecordDocument[]): void {
  for (const { kind, slug: address, name, spec } of records) {
    const body = { ...(address === undefined ? { name } : { slug: address }), ...spec };
    const problem = findProblem(kind, body);
    expect({ body, problem }).toEqual({ body, problem: null });
  }
  const addresses = records.map(({ kind, slug: address, name }) => `${kind}/${address ?? name}`);
  expect(new Set(addresses).size).toBe(addresses.length);
}

/** The fields of a document: its values, and its lists that contain no objects and lists. */
function listFields(value: unknown, at = ''): string[] {
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  if (isObject && Object.keys(value).length > 0)
    return Object.entries(value).flatMap(([name, member]) => {
      const isPlain = /^[A-Za-z_][\w-]*$/.test(name);
      return listFields(member, isPlain ? `${at}${at === '' ? '' : '.'}${name}` : `${at}[${JSON.stringify(name)}]`);
    });
  if (Array.isArray(value) && value.some((item) => typeof item === 'object' && item !== null))
    return value.flatMap((item, index) => listFields(item, `${at}[${index}]`));
  return [at];
}

test.each(files)('the report and the records of %s are these files', async (name) => {
  const { lines, records, missing } = translate(await read(name));
  const signs = { same: '=', changed: '~', unsupported: '!' };
  const report = lines.map(
    ({ field, outcome, detail }) => `${signs[outcome]} ${field}${detail === null ? '' : `: ${detail}`}\n`,
  );
  const unset = missing.length === 0 ? '' : `not set: ${missing.join(', ')}\n`;
  await expect(report.join('') + unset).toMatchFileSnapshot(path.join(folder, `${name}.report.txt`));
  const written = records.map((record) => stringify(record)).join('---\n');
  await expect(written).toMatchFileSnapshot(path.join(folder, `${name}.records.yaml`));
});

test.each(files)('every record of %s passes the contract of its kind', async (name) => {
  expectValid(translate(await read(name)).records);
});

test.each(files)('every field of %s has one line, in the order of the file', async (name) => {
  const document = await read(name);
  expect(translate(document).lines.map(({ field }) => field)).toEqual(listFields(document));
});

test.each(files)('no literal secret of %s is in its report or its records', async (name) => {
  const document = await read(name);
  const { lines, records, missing } = translate(document);
  const shown = JSON.stringify({ lines, records, missing });
  expect(shown).not.toContain('literal-');
  expect(shown).not.toContain('sk-litellm-master');
});

test('the literal secrets of a file are returned for the variables that its records refer to', async () => {
  const { records, secrets } = translate(await read('mixed'));
  const keys = records.flatMap(({ spec }) => (typeof spec['key'] === 'string' ? [spec['key']] : []));
  expect(keys).toContain('${env:VIRTUAL_KEY_OPENAI_KEY}');
  expect(secrets.get('VIRTUAL_KEY_OPENAI_KEY')).toBe('sk-literal-openai-key');
  expect(secrets.get('VIRTUAL_KEY_OPENAI_2_KEY')).toBe('sk-literal-second-key');
});

const secret = 'sk-Zq8literal1x7Secret0000';
const names = ['gpt-4o', 'claude', 'openai/*', '*', '@x', 'two words', '', 'constructor', '__proto__'];
const models = [
  'openai/gpt-4o',
  'azure/dep',
  'bedrock/eu-west-1/x.y-v1:0',
  'vertex_ai/gemini-2.5-pro',
  'ollama/llama3',
  'anthropic/*',
  'huggingface/a/b',
  'nothing',
  '',
];
const scalar = fc.oneof(
  fc.constantFrom<unknown>(
    ...names,
    'os.environ/AWS_REGION',
    'os.environ/UNSET',
    '30d',
    '7d',
    '1mo',
    '${env:X}',
    true,
    null,
  ),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.integer(),
);
const anything = fc.oneof(
  { weight: 6, arbitrary: scalar },
  { weight: 1, arbitrary: fc.array(scalar, { maxLength: 3 }) },
  {
    weight: 1,
    arbitrary: fc.dictionary(fc.constantFrom(...names, 'model', 'stream', 'api_key'), scalar, { maxKeys: 3 }),
  },
);
const some = (members: Record<string, fc.Arbitrary<unknown>>) => fc.record(members, { requiredKeys: [] });
const all = (keys: readonly string[]) => Object.fromEntries(keys.map((key) => [key, anything]));
const secretValue = fc.constantFrom(secret, 'os.environ/KEY');
const fallbackLists = fc.oneof(
  fc.array(fc.dictionary(fc.constantFrom(...names), fc.array(fc.constantFrom(...names), { maxLength: 3 })), {
    maxLength: 3,
  }),
  anything,
);
const deployment = some({
  model_name: fc.oneof(fc.constantFrom(...names), anything),
  litellm_params: some({
    ...all(['timeout', 'weight', 'order', 'rpm', 'tpm', 'max_budget', 'budget_duration', 'max_retries', 'drop_params']),
    ...all(['extra_body', 'temperature', 'max_tokens', 'additional_drop_params', 'tags', 'aws_region_name', 'unknown']),
    model: fc.oneof(fc.constantFrom(...models), anything),
    api_key: secretValue,
    aws_secret_access_key: secretValue,
    azure_ad_token: secretValue,
    vertex_credentials: secretValue,
    vertex_location: fc.constant('global'),
    api_base: fc.constantFrom(
      'http://10.0.0.1',
      'https://x.openai.azure.com',
      `https://u:${secret}@x.example`,
      'x',
      'os.environ/UNSET',
    ),
  }),
  model_info: some(
    all(['id', 'max_tokens', 'supports_vision', 'input_cost_per_token', 'mode', 'description', 'other']),
  ),
});
const documents = some({
  model_list: fc.oneof(
    { weight: 9, arbitrary: fc.array(deployment, { maxLength: 5 }) },
    { weight: 1, arbitrary: anything },
  ),
  router_settings: some({
    ...all([
      'num_retries',
      'timeout',
      'stream_timeout',
      'allowed_fails',
      'cooldown_time',
      'max_fallbacks',
      'retry_policy',
    ]),
    ...all(['routing_strategy', 'default_litellm_params', 'provider_budget_config', 'model_group_alias', 'other']),
    fallbacks: fallbackLists,
    context_window_fallbacks: fallbackLists,
  }),
  litellm_settings: some({
    ...all(['max_budget', 'budget_duration', 'cache', 'cache_params', 'request_timeout', 'callbacks', 'drop_params']),
    ...all(['default_key_generate_params', 'default_internal_user_params', 'default_fallbacks', 'success_callback']),
    fallbacks: fallbackLists,
  }),
  general_settings: some({ master_key: fc.constant(secret), database_url: fc.constant(secret), other: anything }),
  environment_variables: some({ KEY: fc.constant(secret), OTHER: anything }),
  credential_list: anything,
  unknown_section: anything,
});

test('whatever a file contains, each field has one line, its records are valid, and no secret is shown', () => {
  fc.assert(
    fc.property(documents, (document) => {
      const { lines, records, missing } = translate(document);
      expect(lines.map(({ field }) => field)).toEqual(listFields(document));
      expect(lines.filter(({ outcome, detail }) => outcome !== 'same' && detail === null)).toEqual([]);
      expect(JSON.stringify({ lines, records, missing })).not.toContain(secret);
      expectValid(records);
    }),
    { numRuns: 500 },
  );
});

test('an alias without a name is left out', () => {
  const entry = { model_name: 'gpt-4o', litellm_params: { model: 'openai/gpt-4o' } };
  const { lines, records } = translate({
    model_list: [entry],
    router_settings: { model_group_alias: { '': 'gpt-4o' } },
  });
  expectValid(records);
  expect(lines.at(-1)).toMatchObject({ outcome: 'unsupported' });
});

test('a file that is too large or too deep is rejected', () => {
  const deep = JSON.parse(`${'{"a":'.repeat(40)}1${'}'.repeat(40)}`) as Record<string, unknown>;
  expect(() => translate(deep)).toThrow('nested more than 32 levels deep');
  const many = Object.fromEntries(Array.from({ length: 20_001 }, (_each, index) => [`a${index}`, index]));
  expect(() => translate(many)).toThrow('more than 20000 fields');
  const entries = Array.from({ length: 1_500 }, (_each, index) => ({
    model_name: `m${index}`,
    litellm_params: { model: `openai/m${index}`, api_key: `os.environ/K${index}` },
  }));
  expect(() => translate({ model_list: entries })).toThrow('becomes 3000 records; the maximum is 2000');
});

test('a model never has more targets than a config can have', () => {
  const group = (name: string, count: number) =>
    Array.from({ length: count }, (_each, index) => ({
      model_name: name,
      litellm_params: { model: 'openai/x', api_key: `os.environ/K${index}`, rpm: 1 },
    }));
  const { records, lines } = translate({
    model_list: [...group('a', 60), ...group('b', 30), ...group('c', 12)],
    router_settings: { fallbacks: [{ b: ['c', 'a'] }] },
  });
  expectValid(records);
  expect(lines.at(-1)).toMatchObject({ outcome: 'changed', detail: 'Cut off after 5 fallbacks and 50 targets.' });
  expect(lines.find(({ field }) => field === 'model_list[59].model_name')).toMatchObject({ outcome: 'unsupported' });
});

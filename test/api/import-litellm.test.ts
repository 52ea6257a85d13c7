import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { parseAllDocuments, stringify } from 'yaml';
import { setUp } from './cli-kit.ts';

// `sluice import litellm`, against a server.

const at = setUp({ worker: false });

const literal = 'sk-literal-Zq81x7Secret0000';
const env = { POOL_KEY: 'sk-pool-Zq81x7Secret1111' };
const run = async (...args: string[]) => {
  const ended = await at.cli.run(args, { env });
  for (const secret of [literal, env.POOL_KEY]) expect(ended.stdout + ended.stderr).not.toContain(secret);
  return ended;
};

const budgets = `
litellm_settings:
  max_budget: 100
  budget_duration: 30d
  default_key_generate_params: { rpm_limit: 60 }
`;

/** The servers of all entries are the simulator, which answers any key. Under a budget, a model needs a price. */
const config = () => `
x-price: &price { input_cost_per_token: 0.000001, output_cost_per_token: 0.000002 }
model_list:
  - model_name: chat
    litellm_params: { model: openai/sim-chat, api_base: '${at.platform.simulatorUrl}', api_key: os.environ/POOL_KEY, rpm: 600 }
    model_info: *price
  - model_name: chat
    litellm_params: { model: openai/sim-chat-2, api_base: '${at.platform.simulatorUrl}', api_key: ${literal}, rpm: 300 }
    model_info: *price
  - model_name: broken
    litellm_params: { model: openai/sim-fault-400, api_base: '${at.platform.simulatorUrl}', api_key: os.environ/POOL_KEY }
    model_info: *price
  - model_name: 'any/*'
    litellm_params: { model: 'openai/*', api_base: '${at.platform.simulatorUrl}', api_key: os.environ/POOL_KEY }
    model_info: *price
  - model_name: azure
    litellm_params:
      model: azure/gpt-4o
      api_base: https://contoso.openai.azure.com
      api_version: '2024-10-21'
      api_key: os.environ/POOL_KEY
router_settings:
  fallbacks: [{ broken: [chat] }]
  model_group_alias: { gpt-4: chat }
  num_retries: 1
general_settings: { master_key: ${literal} }
${budgets}`;

test('a plan needs no server and changes nothing', async () => {
  await at.write('config.yaml', config());
  const planned = await at.cli.run(['import', 'litellm', 'config.yaml', '--plan'], {
    env: { ...env, SLUICE_URL: 'http://127.0.0.1:9' },
  });
  expect(planned.code).toBe(0);
  expect(planned.stdout).not.toContain(literal);
  const lines = planned.stdout.trimEnd().split('\n');
  expect(lines.map((line) => JSON.parse(line) as object)).toContainEqual({
    field: 'general_settings.master_key',
    outcome: 'unsupported',
    detail: 'Sluice has its own admin key. Create keys for clients with sluice keys create.',
  });
  expect((await run('usage-limits', 'list')).stdout).toBe('');
  expect((await run('virtual-keys', 'list')).stdout).not.toContain('openai-compatible');
});

test('the records are written to a file that sluice apply takes, without secrets', async () => {
  const written = await run('import', 'litellm', 'config.yaml', '--out', 'records.yaml');
  expect(written).toMatchObject({ code: 0 });
  const text = await at.read('records.yaml');
  expect(text).toContain('key: ${env:POOL_KEY}');
  expect(text).not.toContain(literal);
  const documents = parseAllDocuments(text).map((document) => document.toJS() as { kind: string });
  expect(documents.filter(({ kind }) => kind === 'model')).toHaveLength(5);
  const folder = path.join(at.cli.folder, 'records');
  await mkdir(folder);
  await writeFile(path.join(folder, 'all.yaml'), documents.map((document) => stringify(document)).join('---\n'));
  const variable = /\$\{env:(VIRTUAL_KEY_\w+)\}/.exec(text)?.[1] ?? '';
  const apply = async () => await at.cli.run(['apply', '-f', 'records'], { env: { ...env, [variable]: literal } });
  const first = await apply();
  expect(first.stderr).toBe(`done: ${documents.length} created, 0 changed, 0 deleted, 0 unchanged\n`);
  expect((await apply()).stderr).toBe(`done: 0 created, 0 changed, 0 deleted, ${documents.length} unchanged\n`);
  const state = path.join(folder, '.sluice-state.json');
  expect(await readFile(state, 'utf8')).not.toContain(literal);
  // Also without its state, because an import has none.
  await rm(state);
  expect((await apply()).stderr).toBe(`done: 0 created, 0 changed, 0 deleted, ${documents.length} unchanged\n`);
});

test('an import that applies its records shows each step, and a repeat changes nothing', async () => {
  await at.write('budgets.yaml', budgets.replace('100', '200'));
  const first = await run('import', 'litellm', 'budgets.yaml', '--apply', '--table');
  expect(first.code).toBe(0);
  expect(first.stdout).toContain(
    '~ usage_limit_policy/all calls budget\n    - credit_limit: 10000\n    + credit_limit: 20000\n',
  );
  expect(first.stderr).toContain('done: 0 created, 1 changed, 0 deleted, 1 unchanged\n');
  const again = await run('import', 'litellm', 'budgets.yaml', '--apply');
  expect(again.stderr).toContain('done: 0 created, 0 changed, 0 deleted, 2 unchanged\n');
});

test('a variable that is not set is named, and nothing is applied', async () => {
  await at.write(
    'unset.yaml',
    `model_list: [{ model_name: a, litellm_params: { model: os.environ/NOT_SET } }]\n${budgets}`,
  );
  expect(await run('import', 'litellm', 'unset.yaml', '--apply')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('error: These variables are not set: NOT_SET.') as string,
  });
});

test('a file that is not a configuration is rejected', async () => {
  await at.write('list.yaml', '- 1\n');
  expect(await run('import', 'litellm', 'list.yaml')).toMatchObject({ code: 2 });
  expect(await run('import', 'litellm', 'none.yaml')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('none.yaml cannot be read: it does not exist.') as string,
  });
  expect(await run('import', 'litellm', 'config.yaml', '--plan', '--apply')).toMatchObject({ code: 2 });
});

test('imported models answer calls under their public names, also by alias, wildcard and fallback', async () => {
  const applied = await run('import', 'litellm', 'config.yaml', '--apply');
  expect(applied).toMatchObject({ code: 0 });
  const again = await run('import', 'litellm', 'config.yaml', '--apply');
  expect(again.stderr).toContain('done: 0 created, 0 changed, 0 deleted,');
  for (const model of ['chat', 'gpt-4', 'broken', 'any/sim-chat']) {
    const response = await fetch(`${at.platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${at.platform.adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: 'hello' }] }),
    });
    expect({ model, status: response.status }).toEqual({ model, status: 200 });
  }
});

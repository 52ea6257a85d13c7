import { cp, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { setUp } from './cli-kit.ts';

// Records as files: `sluice apply`, `diff` and `export`.

const at = setUp({ worker: false });

const secret = 'sk-provider-secret-of-this-test';
const env = { OPENAI_KEY: secret };
const write = async (name: string, text: string): Promise<void> => {
  await mkdir(path.join(at.cli.folder, 'records'), { recursive: true });
  await writeFile(path.join(at.cli.folder, 'records', name), text);
};
const run = async (...args: string[]) => {
  const ended = await at.cli.run(args, { env });
  expect(ended.stdout + ended.stderr).not.toContain(secret);
  return ended;
};
const apply = (...args: string[]) => run('apply', '-f', 'records', '--table', ...args);

const everything = `
kind: prompt
slug: reply
spec:
  name: Reply
  collection_id: support
  virtual_key: provider
  model: small
  parameters: {max_tokens: 100}
  string: '[{"role":"user","content":"Answer {{question}} kindly."}]'
---
kind: config
slug: careful
name: Careful
spec:
  config:
    virtual_key: provider
    retry: {attempts: 3}
---
kind: virtual_key
slug: provider
spec:
  name: A provider
  provider: openai
  key: \${env:OPENAI_KEY}
---
kind: collection
slug: support
spec: {name: Support}
---
kind: label
name: urgent
spec: {color_code: '#ff0000'}
---
kind: usage_limit_policy
name: ten dollars for each key
spec:
  type: cost
  credit_limit: 1000
  periodic_reset: monthly
  conditions: []
  group_by: [{key: api_key}]
`;

test('diff shows what apply would do, apply does it in the order of what needs what, and a repeat changes nothing', async () => {
  await write('all.yaml', everything);
  const before = await run('diff', '-f', 'records', '--exit-code');
  expect(before.code).toBe(1);
  const names = before.stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as { action: string; kind: string });
  expect(names.map(({ action, kind }) => `${action} ${kind}`)).toEqual([
    'create virtual_key',
    'create config',
    'create collection',
    'create label',
    'create prompt',
    'create usage_limit_policy',
  ]);
  const first = await apply();
  expect(first).toMatchObject({ code: 0, stderr: 'done: 6 created, 0 changed, 0 deleted, 0 unchanged\n' });
  expect(first.stdout).toContain(
    '+ virtual_key/provider\n    + name: "A provider"\n    + provider: "openai"\n    + key: "(secret)"\n',
  );
  const again = await apply();
  expect(again).toMatchObject({ code: 0, stdout: '', stderr: 'done: 0 created, 0 changed, 0 deleted, 6 unchanged\n' });
  expect(await run('diff', '-f', 'records', '--exit-code')).toMatchObject({ code: 0 });
  expect(await readFile(path.join(at.cli.folder, 'records/.sluice-state.json'), 'utf8')).not.toContain(secret);
});

test('what differs is shown member by member and changed, also where somebody changed it by hand', async () => {
  await write(
    'all.yaml',
    everything.replace('attempts: 3', 'attempts: 5').replace('max_tokens: 100', 'max_tokens: 50'),
  );
  await run('labels', 'update', await idOfLabel(), '--set', 'color_code=#00ff00');
  const changed = await apply();
  expect(changed.stderr).toBe('done: 0 created, 3 changed, 0 deleted, 3 unchanged\n');
  expect(changed.stdout).toContain('~ config/careful\n    - config: ');
  expect(changed.stdout).toContain('~ label/urgent\n    - color_code: "#00ff00"\n    + color_code: "#ff0000"\n');
  const prompt = JSON.parse((await run('prompts', 'get', 'reply')).stdout) as Record<string, unknown>;
  expect(prompt).toMatchObject({ parameters: { max_tokens: 50 } });
  expect((await apply()).stderr).toBe('done: 0 created, 0 changed, 0 deleted, 6 unchanged\n');
});

test('only what an apply of the folder made is pruned, and only when asked', async () => {
  await run('labels', 'create', '--set', 'name=by-hand');
  await write('all.yaml', everything.slice(0, everything.indexOf('---\nkind: label')));
  const kept = await apply();
  expect(kept.stderr).toBe(
    'No file contains label/urgent, usage_limit_policy/ten dollars for each key anymore. To delete them, add --prune.\n' +
      'done: 0 created, 2 changed, 0 deleted, 2 unchanged\n',
  );
  const pruned = await apply('--prune');
  expect(pruned.stderr).toBe('done: 0 created, 0 changed, 2 deleted, 4 unchanged\n');
  const labels = (await run('labels', 'list')).stdout;
  expect(labels).toContain('by-hand');
  expect(labels).not.toContain('urgent');
});

test('a secret in a file, a missing variable and a wrong document are refused before anything changes', async () => {
  const refused = async (text: string): Promise<string> => {
    await rm(path.join(at.cli.folder, 'wrong'), { recursive: true, force: true });
    await mkdir(path.join(at.cli.folder, 'wrong'));
    await writeFile(path.join(at.cli.folder, 'wrong/a.yaml'), text);
    const ended = await run('apply', '-f', 'wrong');
    expect(ended.code).toBe(1);
    return ended.stderr.split('\n')[0] ?? '';
  };
  expect(await refused('kind: virtual_key\nslug: a\nspec: {name: a, provider: openai, key: sk-plain}')).toBe(
    'error: wrong/a.yaml: key is a secret and must be a reference: ${env:NAME} or ${file:/path}. It is read by apply.',
  );
  expect(await refused('kind: virtual_key\nslug: a\nspec: {name: a, provider: openai, key: "${env:NOT_SET}"}')).toBe(
    'error: The variable NOT_SET is not set.',
  );
  expect(await refused('kind: colour\nspec: {}')).toMatch(
    /^error: wrong\/a\.yaml: kind must be one of secret_reference, /,
  );
  expect(await refused('kind: label\nname: a\nspec: {}\n---\nkind: label\nname: a\nspec: {}')).toMatch(
    /^error: label\/a is in /,
  );
  expect(await refused('kind: [')).toMatch(/^error: wrong\/a\.yaml is neither JSON nor YAML: /);
});

test('export writes files that apply takes without a change, and no secrets', async () => {
  // A member may write this; whoever exports and applies it must not publish a file of their own.
  const stolen = path.join(at.cli.folder, 'id_rsa');
  await writeFile(stolen, 'PRIVATE KEY');
  await run('partials', 'create', '--set', 'name=Stolen', '--set', 'slug=stolen', '--set', `string=\${file:${stolen}}`);
  expect(await run('export', '-d', 'exported')).toMatchObject({ code: 0 });
  const files = await readdir(path.join(at.cli.folder, 'exported'), { recursive: true });
  expect(files).toEqual(
    expect.arrayContaining(['configs/careful.yaml', 'prompts/reply.yaml', 'virtual-keys/provider.yaml']),
  );
  const key = await readFile(path.join(at.cli.folder, 'exported/virtual-keys/provider.yaml'), 'utf8');
  expect(key).toContain('key: ${env:VIRTUAL_KEY_PROVIDER_KEY}');
  const diff = await run('diff', '-f', 'exported', '--table');
  expect(diff).toMatchObject({ code: 0, stdout: '' });
  // Another workspace gets the same records from them.
  const workspace = JSON.parse(
    (await run('workspaces', 'create', '--set', 'name=Second', '--set', 'slug=second')).stdout,
  ) as { id: string };
  const made = await run('keys', 'create', '--set', 'name=second', '--workspace', workspace.id);
  const { key: value } = JSON.parse(made.stdout) as { key: string };
  await cp(path.join(at.cli.folder, 'exported'), path.join(at.cli.folder, 'copied'), { recursive: true });
  await rm(path.join(at.cli.folder, 'copied/virtual-keys/simulator.yaml'), { force: true });
  const copied = await at.cli.run(['apply', '-f', 'copied'], {
    env: { SLUICE_API_KEY: value, VIRTUAL_KEY_PROVIDER_KEY: secret },
  });
  expect(copied.stderr).toMatch(/^done: \d+ created, 0 changed, 0 deleted, 1 unchanged\n$/);
  const partial = await at.cli.run(['partials', 'get', 'stolen'], { env: { SLUICE_API_KEY: value } });
  expect(JSON.parse(partial.stdout)).toMatchObject({ string: `\${file:${stolen}}` });
});

async function idOfLabel(): Promise<string> {
  const [label] = (await run('labels', 'list')).stdout.trimEnd().split('\n');
  return (JSON.parse(label ?? '{}') as { id: string }).id;
}

test('a public model is applied after its credentials, unchanged by a repeat, and exported as it was written', async () => {
  await mkdir(path.join(at.cli.folder, 'models'), { recursive: true });
  const file = path.join(at.cli.folder, 'models', 'models.yaml');
  const text = `
kind: model
slug: openai-any
name: openai/*
spec:
  targets:
    - {provider: '@for-models', model: '*'}
    - {provider: '@for-models', model: spare, weight: 2}
  retry: {attempts: 1}
  price: {input: '2.5', output: '10'}
  allowed: {roles: [admin]}
---
kind: virtual_key
slug: for-models
name: For models
spec:
  provider: openai
  key: \${env:OPENAI_KEY}
`;
  await writeFile(file, text);
  const applied = (...args: string[]) => run('apply', '-f', 'models', '--table', ...args);
  const first = await applied();
  expect(first.stderr).toBe('done: 2 created, 0 changed, 0 deleted, 0 unchanged\n');
  expect(first.stdout.indexOf('virtual_key/for-models')).toBeLessThan(first.stdout.indexOf('model/openai-any'));
  expect((await applied()).stderr).toBe('done: 0 created, 0 changed, 0 deleted, 2 unchanged\n');
  await writeFile(file, text.replace('attempts: 1', 'attempts: 2'));
  expect((await applied()).stdout).toContain('    - retry: {"attempts":1}\n    + retry: {"attempts":2}\n');
  expect(await run('export', '-d', 'exported-models')).toMatchObject({ code: 0 });
  const exported = path.join(at.cli.folder, 'exported-models/public-models/openai-any.yaml');
  expect(await readFile(exported, 'utf8')).not.toContain('null');
  expect(await run('diff', '-f', 'exported-models/public-models', '--table')).toMatchObject({ code: 0, stdout: '' });
});

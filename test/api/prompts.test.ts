import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createWorkspace } from './second-workspace.ts';

let platform: TestPlatform;
let portkey: Portkey;
beforeAll(async () => {
  platform = await startPlatform({
    worker: false,
    environment: { SLUICE_PROMPTS_MAX: '40', SLUICE_PROMPT_MAX: '4KiB' },
  });
  portkey = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
});
afterAll(() => platform?.stop());

type Body = Record<string, unknown> & { data: Record<string, unknown>[]; error: { code: string; message: string } };

async function ask(method: string, path: string, body?: object, key = platform.adminKey) {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Body };
}

test('the client of Portkey makes, reads, changes and deletes collections', async () => {
  const [first] = (await portkey.collections.list()).data;
  expect(first).toMatchObject({ name: 'Default', slug: 'default', is_default: true, parent_collection_id: null });
  const outer = await portkey.collections.create({ name: 'Support team' });
  const inner = await portkey.collections.create({ name: 'Drafts', parent_collection_id: outer.slug });
  expect(outer.slug).toBe('support-team');
  const retrieved = await portkey.collections.retrieve(outer.slug);
  expect(retrieved).toMatchObject({
    is_default: false,
    collection_details: { child_collections_count: 1, prompts_count: 0 },
    child_collections: [{ id: inner.id, name: 'Drafts', collection_details: { child_collections_count: 0 } }],
  });
  expect(await portkey.collections.update(inner.id, { name: 'Old drafts' })).toMatchObject({ name: 'Old drafts' });
  const listed = await portkey.collections.list({ search: 'DRAFT', current_page: 0, page_size: 5 });
  expect(listed).toMatchObject({ object: 'list', total: 1, has_more: false, data: [{ id: inner.id }] });
  await portkey.collections.delete(inner.id);
  expect((await ask('GET', `/collections/${inner.id}`)).status).toBe(404);
});

test('collections nest five deep, and only empty ones are deleted', async () => {
  let parent: string | undefined;
  for (const name of ['one', 'two', 'three', 'four', 'five']) {
    parent = (await ask('POST', '/collections', { name, parent_collection_id: parent })).body['id'] as string;
  }
  expect(await ask('POST', '/collections', { name: 'six', parent_collection_id: parent })).toMatchObject({
    status: 400,
  });
  expect(await ask('POST', '/collections', { name: 'x', parent_collection_id: 'nowhere' })).toMatchObject({
    status: 400,
    body: { error: { code: 'collection_not_found' } },
  });
  expect(await ask('DELETE', '/collections/four')).toMatchObject({
    status: 409,
    body: { error: { code: 'collection_not_empty' } },
  });
  expect(await ask('DELETE', '/collections/default')).toMatchObject({
    status: 409,
    body: { error: { code: 'default_collection' } },
  });
  await ask('POST', '/prompts', { name: 'In five', collection_id: 'five', string: 'x' });
  expect((await ask('DELETE', '/collections/five')).status).toBe(409);
  expect((await ask('PUT', '/prompts/in-five', { collection_id: 'default' })).body).toMatchObject({
    prompt_version: 1,
  });
  expect((await ask('DELETE', '/collections/five')).body).toMatchObject({ deleted: true });
});

test('every workspace has one default collection, however many ask first', async () => {
  const key = await createWorkspace(platform);
  const lists = await Promise.all(Array.from({ length: 8 }, () => ask('GET', '/collections', undefined, key)));
  expect(new Set(lists.map(({ body }) => body.data[0]?.['id'])).size).toBe(1);
  expect(lists.map(({ body }) => body['total'])).toEqual(Array.from({ length: 8 }, () => 1));
});

test('the client of Portkey makes, reads, changes and deletes labels; universal ones are seen everywhere', async () => {
  const label = await portkey.labels.create({ name: 'production', description: 'live', color_code: '#00ff00' });
  expect(await portkey.labels.retrieve(label.id)).toMatchObject({
    name: 'production',
    color_code: '#00ff00',
    is_universal: false,
    status: 'active',
  });
  expect(await portkey.labels.update(label.id, { description: 'the live one' })).toMatchObject({
    name: 'production',
    description: 'the live one',
  });
  const everywhere = await portkey.labels.create({ name: 'everywhere', organisation_id: 'org_default' });
  const key = await createWorkspace(platform);
  const workspaceId = (await ask('POST', '/admin/workspaces', { name: 'theirs' })).body['id'] as string;
  expect((await ask('GET', '/labels', undefined, key)).body).toMatchObject({
    total: 1,
    data: [{ id: everywhere.id, is_universal: true, workspace_id: null, organisation_id: 'org_default' }],
  });
  expect((await ask('PUT', `/labels/${everywhere.id}`, { name: 'mine' }, key)).status).toBe(403);
  expect((await ask('DELETE', `/labels/${everywhere.id}`, undefined, key)).status).toBe(403);
  expect((await ask('GET', `/labels/${label.id}`, undefined, key)).status).toBe(404);
  expect((await ask('POST', '/labels', { name: 'u', organisation_id: 'org_default' }, key)).status).toBe(403);
  expect((await ask('POST', '/labels', { name: 'u', organisation_id: 'org_other' })).status).toBe(404);
  expect(await portkey.labels.create({ name: 'theirs', workspace_id: workspaceId })).toMatchObject({
    workspace_id: workspaceId,
  });
  expect(await ask('POST', '/labels', { name: 'everywhere' })).toMatchObject({
    status: 409,
    body: { error: { code: 'label_exists' } },
  });
  for (const name of ['12', 'latest', 'a b', 'a@b', '']) {
    expect(await ask('POST', '/labels', { name })).toMatchObject({ status: 400 });
  }
  const found = await portkey.labels.list({ search: 'every', current_page: 0, page_size: 10 });
  expect(found).toMatchObject({ total: 1, data: [{ id: everywhere.id }] });
  await portkey.labels.delete(everywhere.id);
  expect((await ask('GET', `/labels/${everywhere.id}`)).status).toBe(404);
});

test('the client of Portkey makes, reads, changes, publishes and deletes partials', async () => {
  const made = await portkey.prompts.partials.create({ name: 'House rules', string: 'Be kind, {{name}}.' });
  expect(made).toMatchObject({ slug: 'house-rules', version_id: `${made['id']}@1` });
  const changed = await portkey.prompts.partials.update('house-rules', { string: 'Be brief.', description: 'shorter' });
  expect(changed).toMatchObject({ prompt_partial_version_id: `${made['id']}@2`, string: 'Be brief.' });
  expect(await portkey.prompts.partials.retrieve('house-rules')).toMatchObject({
    version: 1,
    string: 'Be kind, {{name}}.',
  });
  await portkey.prompts.partials.publish('house-rules', { version: 2 });
  expect(await portkey.prompts.partials.retrieve('house-rules')).toMatchObject({
    version: 2,
    version_description: 'shorter',
  });
  const versions = (await ask('GET', '/prompts/partials/house-rules/versions')).body as unknown;
  expect(versions).toMatchObject([
    { id: `${made['id']}@2`, prompt_partial_id: made['id'], string: 'Be brief.', prompt_version_status: 'active' },
    { version: 1, prompt_version_status: 'archived', description: null },
  ]);
  expect(Object.values(await portkey.prompts.partials.versions.list('house-rules'))[0]).toMatchObject({ version: 2 });
  const listed = (await ask('GET', '/prompts/partials')).body as unknown;
  expect(listed).toMatchObject([{ slug: 'house-rules', status: 'active', object: 'partial' }]);
  expect(Object.values(await portkey.prompts.partials.list())[0]).toMatchObject({ slug: 'house-rules' });
  await ask('PUT', '/prompts/partials/house-rules', { status: 'archived' });
  expect(await ask('POST', '/prompts', { name: 'n', string: '{{>house-rules}}' })).toMatchObject({
    status: 400,
    body: { error: { code: 'prompt_partial_not_found' } },
  });
  await portkey.prompts.partials.delete('house-rules');
  expect((await ask('GET', '/prompts/partials/house-rules')).status).toBe(404);
});

const chat = (content: string) => JSON.stringify([{ role: 'user', content }]);

test('the client of Portkey makes, reads, changes, publishes and deletes prompts', async () => {
  const made = await portkey.prompts.create({
    name: 'Support reply',
    collection_id: 'default',
    string: chat('Hello {{name}}'),
    parameters: { temperature: 0.2 },
    virtual_key: 'simulator',
    model: 'sim-small',
    version_description: 'first',
  });
  expect(made).toMatchObject({ object: 'prompt', slug: 'support-reply', version_id: `${made['id']}@1` });
  const first = await portkey.prompts.retrieve('support-reply');
  expect(first).toMatchObject({
    id: made['id'],
    prompt_version: 1,
    prompt_version_id: `${made['id']}@1`,
    prompt_version_status: 'active',
    prompt_version_description: 'first',
    prompt_version_label_id: null,
    parameters: { temperature: 0.2 },
    virtual_key: 'simulator',
    is_raw_template: false,
  });
  const second = await portkey.prompts.update('support-reply', { string: chat('Hi {{name}}') });
  expect(second).toMatchObject({ id: made['id'], slug: 'support-reply', prompt_version_id: `${made['id']}@2` });
  expect(await portkey.prompts.retrieve('support-reply')).toMatchObject({ prompt_version: 1, last_version: 2 });
  expect(await portkey.prompts.publish('support-reply', { version: 2 })).toMatchObject({
    string: chat('Hi {{name}}'),
    model: 'sim-small',
    prompt_version_description: null,
  });
  const versions = (await ask('GET', '/prompts/support-reply/versions')).body as unknown;
  expect(versions).toMatchObject([
    { id: `${made['id']}@2`, prompt_id: made['id'], prompt_version: 2, status: 'active', object: 'prompt' },
    { prompt_version: 1, prompt_version_status: 'archived', prompt_description: 'first', label_id: null },
  ]);
  expect(Object.values(await portkey.prompts.versions.list('support-reply'))[1]).toMatchObject({ prompt_version: 1 });
  const one = await portkey.prompts.versions.retrieve('support-reply', `${made['id']}@1`);
  expect(one).toMatchObject({ id: made['id'], string: chat('Hello {{name}}'), prompt_version: 1 });
  const listed = await portkey.prompts.list({ search: 'support', current_page: 0, page_size: 10 });
  expect(listed).toMatchObject({ total: 1, data: [{ slug: 'support-reply', collection_id: first['collection_id'] }] });
  for (const collection_id of ['default', String(first['collection_id'])]) {
    expect((await portkey.prompts.list({ collection_id })).data).toContainEqual(
      expect.objectContaining({ slug: 'support-reply' }),
    );
  }
  expect(await portkey.prompts.list({ collection_id: 'support-team' })).toMatchObject({ total: 0 });
  await portkey.prompts.delete('support-reply');
  expect((await ask('GET', '/prompts/support-reply')).status).toBe(404);
  expect((await ask('POST', '/prompts', { name: 'Support reply', string: 'x' })).body['slug']).toBe('support-reply');
});

test('a label is on one version of a prompt, names it, and is gone when it is deleted', async () => {
  const label = await portkey.labels.create({ name: 'staging' });
  const other = await portkey.labels.create({ name: 'canary' });
  await ask('POST', '/prompts', { name: 'Labelled', string: 'one' });
  await ask('PUT', '/prompts/labelled', { string: 'two' });
  const put = (version: number | string, label_id: string | null) =>
    portkey.prompts.versions.update('labelled', String(version), { label_id } as { label_id: string });
  expect(await put(1, label.id)).toMatchObject({ prompt_version: 1, prompt_version_label_id: label.id });
  expect(await portkey.prompts.retrieve('labelled@staging')).toMatchObject({ string: 'one' });
  expect(await put(2, label.id)).toMatchObject({ prompt_version: 2, prompt_version_label_id: label.id });
  expect(await portkey.prompts.retrieve('labelled@staging')).toMatchObject({ string: 'two', prompt_version: 2 });
  expect(await portkey.prompts.retrieve('labelled@1')).toMatchObject({ prompt_version_label_id: null });
  expect(await portkey.prompts.retrieve('labelled@latest')).toMatchObject({ prompt_version: 2 });
  await put(2, other.id);
  expect((await ask('GET', '/prompts/labelled@staging')).status).toBe(404);
  await put(2, null);
  expect((await ask('GET', '/prompts/labelled@canary')).status).toBe(404);
  await put(1, label.id);
  await portkey.labels.delete(label.id);
  expect((await ask('GET', '/prompts/labelled@staging')).status).toBe(404);
  expect(await portkey.prompts.retrieve('labelled')).toMatchObject({ prompt_version_label_id: null });
  expect(await ask('PUT', '/prompts/labelled/versions/1', { label_id: 'nowhere' })).toMatchObject({
    status: 400,
    body: { error: { code: 'label_not_found' } },
  });
  expect((await ask('PUT', '/prompts/labelled/versions/9', { label_id: other.id })).status).toBe(404);
});

test('a patch changes what it names; another change empties the tools that it leaves out', async () => {
  const tools = [{ type: 'function', function: { name: 'f', parameters: {} } }];
  await ask('POST', '/prompts', {
    name: 'Patched',
    string: 'one',
    tools,
    tool_choice: 'auto',
    model: 'm',
    parameters: { n: 1 },
  });
  const patched = (await ask('PUT', '/prompts/patched', { patch: true, string: 'two' })).body;
  expect(patched).toMatchObject({ prompt_version: 2, string: 'two', tools, tool_choice: 'auto', model: 'm' });
  const replaced = (await ask('PUT', '/prompts/patched', { string: 'three' })).body;
  expect(replaced).toMatchObject({
    prompt_version: 3,
    tools: null,
    tool_choice: null,
    model: 'm',
    parameters: { n: 1 },
  });
  const renamed = (await ask('PUT', '/prompts/patched', { name: 'Renamed', prompt_id: undefined })).body;
  expect(renamed).toMatchObject({ name: 'Renamed', last_version: 3 });
});

test.each([
  ['a template that cannot be read', { string: 'a {{#b}}' }, 'invalid_template', /unclosed section "b"/],
  ['a message list that is no JSON', { string: '[{"role":"user"' }, 'invalid_template', /not valid JSON/],
  ['a partial that is not there', { string: '{{>nowhere}}' }, 'prompt_partial_not_found', /nowhere/],
  ['a virtual key that is not there', { string: 'x', virtual_key: '@nowhere' }, 'virtual_key_not_found', /nowhere/],
  ['a collection that is not there', { string: 'x', collection_id: 'nowhere' }, 'collection_not_found', /nowhere/],
  [
    'messages among the parameters',
    { string: 'x', parameters: { messages: [] } },
    'invalid_value',
    /parameters.messages/,
  ],
  ['a version that is too large', { string: 'x'.repeat(5_000) }, 'prompt_too_large', /at most 4096/],
  ['text that cannot be stored', { string: 'x\u0000' }, 'invalid_value', /U\+0000/],
])('%s is refused when the prompt is made', async (_name, members, code, message) => {
  const { status, body } = await ask('POST', '/prompts', { name: 'Refused', ...members });
  expect({ status, error: body.error }).toMatchObject({
    status: 400,
    error: { code, message: expect.stringMatching(message) },
  });
});

test('no prompt gets the slug under which partials have their routes', async () => {
  expect((await ask('POST', '/prompts', { name: 'Partials', string: 'x' })).body['slug']).toBe('partials-2');
  expect((await ask('POST', '/prompts', { name: 'x', slug: 'partials', string: 'x' })).status).toBe(409);
});

test('a workspace has as many prompts as the operator allows, and its records are what the log says', async () => {
  const key = await createWorkspace(platform);
  for (let number = 0; number < 40; number += 1) await ask('POST', '/labels', { name: `l${number}` }, key);
  expect(await ask('POST', '/labels', { name: 'one-more' }, key)).toMatchObject({
    status: 409,
    body: { error: { code: 'too_many_records' } },
  });
  const check = await checkInlineModels(platform.database.pool, inlineModels);
  expect(check.difference).toBeNull();
});

test('a version belongs to one prompt: its ID is not found under another', async () => {
  const version = async (name: string) =>
    String((await ask('POST', '/prompts', { name, string: name })).body['version_id']);
  const [one, two] = [await version('Version one'), await version('Version two')];
  const label = await portkey.labels.create({ name: 'of-one-version' });
  expect(await ask('GET', `/prompts/version-one/versions/${one}`)).toMatchObject({
    status: 200,
    body: { string: 'Version one' },
  });
  expect((await ask('GET', '/prompts/version-one/versions/version-one@1')).status).toBe(200);
  const missing = { status: 404, body: { error: { code: 'prompt_version_not_found', param: 'version' } } };
  expect(await ask('GET', `/prompts/version-one/versions/${two}`)).toMatchObject(missing);
  expect(await ask('PUT', `/prompts/version-one/versions/${two}`, { label_id: label.id })).toMatchObject(missing);
  expect((await ask('GET', '/prompts/version-one@of-one-version')).status).toBe(404);
  for (const wrong of ['x', '0', `${two}x`]) {
    expect((await ask('GET', `/prompts/version-one/versions/${wrong}`)).status).toBe(400);
  }
  const { body: partial } = await ask('POST', '/prompts/partials', { name: 'Versioned', string: 'x' });
  const ofPrompt = await ask('GET', `/prompts/partials/${String(partial['slug'])}/versions/${two}`);
  expect(ofPrompt.status).toBe(404);
});

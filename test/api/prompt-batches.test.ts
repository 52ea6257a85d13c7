import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { createBatch, ended, resultsOf, runBatch } from './batch-kit.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

const sdk = sdks[0] as Sdk;
let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
let client: Client;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  upstream.script((reply) =>
    reply.json(200, {
      id: 'c',
      object: 'chat.completion',
      model: 'm',
      choices: [{ index: 0, message: { content: 'x' } }],
    }),
  );
  await platform.startWorker();
});
afterAll(() => scripted.stop());

const messages = (content: string) => JSON.stringify([{ role: 'user', content }]);
const line = (id: string, body: object) => ({ custom_id: id, method: 'POST', url: '/v1/chat/completions', body });

async function send(method: string, path: string, body?: object): Promise<Record<string, string>> {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    ...(body ? { body: JSON.stringify(body) } : {}),
  });
  if (!response.ok) throw new Error(await response.text());
  return (await response.json()) as Record<string, string>;
}

const makePrompt = (name: string, members: object = {}) =>
  send('POST', '/prompts', {
    name,
    string: messages('Hello {{name}}'),
    virtual_key: 'scripted',
    model: 'm',
    ...members,
  });

test('lines may name a prompt and variables, beside lines that bring their own messages', async () => {
  await makePrompt('In batches', { parameters: { temperature: 0.5 } });
  await send('PUT', '/prompts/in-batches', { string: messages('Bye {{name}}') });
  upstream.requests.length = 0;
  const batch = await runBatch(sdk, client, [
    line('a', { prompt_id: 'in-batches', variables: { name: '"Ada"' } }),
    line('b', { prompt_id: 'in-batches@2', variables: { name: 'Bob' }, temperature: 1, model: 'm-2' }),
    line('c', { model: '@scripted/m-3', messages: [{ role: 'user', content: 'own' }] }),
  ]);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 3, completed: 3, failed: 0 } });
  const sent = upstream.requests.map(({ body }) => JSON.parse(body.toString()) as { model: string });
  expect(sent.toSorted((one, other) => one.model.localeCompare(other.model))).toEqual([
    { model: 'm', messages: [{ role: 'user', content: 'Hello "Ada"' }], temperature: 0.5 },
    { model: 'm-2', messages: [{ role: 'user', content: 'Bye Bob' }], temperature: 1 },
    { model: 'm-3', messages: [{ role: 'user', content: 'own' }] },
  ]);
  const logged = await eventually(
    () =>
      platform.database.pool.query(
        `select prompt_slug, prompt_version from request_log where batch_id = $1 and prompt_slug is not null order by 2`,
        [batch.id],
      ),
    ({ rows }) => rows.length === 2,
  );
  expect(logged.rows).toEqual([
    { prompt_slug: 'in-batches', prompt_version: 1 },
    { prompt_slug: 'in-batches', prompt_version: 2 },
  ]);
  const check = await checkInlineModels(platform.database.pool, inlineModels);
  expect(check.difference).toBeNull();
});

test('each line that cannot name its prompt is an error of the file', async () => {
  await makePrompt('Checked');
  await makePrompt('A text', { string: 'text' });
  const bodies = [
    { prompt_id: 'nowhere' },
    { prompt_id: 'checked@7' },
    { prompt_id: 'checked@production' },
    { prompt_id: 'checked', variables: 'x' },
    { prompt_id: 'checked', messages: [] },
    { prompt_id: 'checked', stream: true },
    { prompt_id: 12 },
    { prompt_id: 'a-text' },
  ];
  const batch = await runBatch(
    sdk,
    client,
    bodies.map((body, index) => line(`l${index}`, body)),
  );
  expect(batch.status).toBe('failed');
  expect(batch.errors?.data?.map(({ code, line: at, param }) => [at, code, param])).toEqual([
    [1, 'prompt_not_found', 'body.prompt_id'],
    [2, 'prompt_not_found', 'body.prompt_id'],
    [3, 'prompt_not_found', 'body.prompt_id'],
    [4, 'invalid_type', 'body.variables'],
    [5, 'invalid_value', 'body.messages'],
    [6, 'streaming_unsupported', 'body.stream'],
    [7, 'invalid_type', 'body.prompt_id'],
    [8, 'prompt_not_for_call', 'body.prompt_id'],
  ]);
});

test('what only shows when a prompt is rendered is the error of its line', async () => {
  await makePrompt('Without a model', { model: null });
  await makePrompt('Two kinds', { string: 'text' });
  await send('PUT', '/prompts/two-kinds', { string: messages('chat') });
  const batch = await ended(
    client,
    await createBatch(sdk, client, [
      line('none', { prompt_id: 'without-a-model', variables: { name: 'Ada' } }),
      line('good', { prompt_id: 'two-kinds@latest' }),
      line('text', { prompt_id: 'two-kinds@1' }),
    ]),
  );
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 1, failed: 2 } });
  const { errors } = await resultsOf(client, batch);
  expect(errors.map(({ custom_id: id, error }) => [id, error?.code])).toEqual([
    ['none', 'missing_required_parameter'],
    ['text', 'prompt_not_for_call'],
  ]);
});

test('a pinned prompt stays what it was: published, changed, deleted and made again', async () => {
  const { prompts } = platform.api.platform.access;
  await send('POST', '/prompts/partials', { name: 'Sign', string: 'yours' });
  const { id } = await makePrompt('Pinned', { string: messages('one {{>sign}}') });
  const response = await postJson(platform, '/prompts/pinned/render', { variables: {} });
  expect(response.status).toBe(200);
  const { rows } = await platform.database.pool.query<{ workspace_id: string }>(
    'select workspace_id from resource where id = $1',
    [id],
  );
  const workspaceId = rows[0]?.workspace_id ?? '';
  const pins = await prompts.pin(workspaceId, ['pinned'], 'prompt_id');
  const query = { workspaceId, name: 'pinned', param: 'prompt_id', variables: {}, hyperparameters: {} };
  const asText = async () => (await prompts.render(query, pins)).body['messages'];
  const expected = [{ role: 'user', content: 'one yours' }];
  expect(await asText()).toEqual(expected);
  await send('PUT', '/prompts/pinned', { string: messages('two') });
  await send('PUT', '/prompts/pinned/makeDefault', { version: 2 });
  await send('PUT', '/prompts/partials/sign', { string: 'theirs' });
  await send('PUT', '/prompts/partials/sign/makeDefault', { version: 2 });
  expect(await asText()).toEqual(expected);
  await send('DELETE', '/prompts/pinned');
  await send('DELETE', '/prompts/partials/sign');
  await makePrompt('Pinned', { string: messages('another') });
  expect(await asText()).toEqual(expected);
  expect((await prompts.render(query)).body['messages']).toEqual([{ role: 'user', content: 'another' }]);
});

test('the prompt of a batch’s config stays what it was for all lines', async () => {
  await makePrompt('Of a config', { string: messages('first {{name}}') });
  const publishOther = async () => {
    await send('PUT', '/prompts/of-a-config', { string: messages('second') });
    await send('PUT', '/prompts/of-a-config/makeDefault', { version: 2 });
  };
  upstream.requests.length = 0;
  let isPublished = false;
  upstream.script(async (reply) => {
    if (isPublished) return reply.json(200, { id: 'c', object: 'chat.completion', model: 'm', choices: [] });
    await publishOther();
    isPublished = true;
    return reply.json(500, { error: { message: 'try again' } });
  });
  const config = { virtual_key: 'scripted', prompt_id: 'of-a-config', variables: { name: 'Ada' } };
  const batch = await runBatch(sdk, client, [line('a', { model: 'm', messages: [{ role: 'user', content: 'own' }] })], {
    gateway_options: { config },
  } as object);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 1 } });
  const sent = upstream.requests.map(({ body }) => (JSON.parse(body.toString()) as { messages: object[] }).messages[0]);
  expect(sent).toEqual([
    { role: 'user', content: 'first Ada' },
    { role: 'user', content: 'first Ada' },
  ]);
});

test('a batch whose config names no prompt that exists fails before any line runs', async () => {
  const config = { virtual_key: 'scripted', prompt_id: 'nowhere' };
  const batch = await runBatch(sdk, client, [line('a', { model: 'm', messages: [{ role: 'user', content: 'x' }] })], {
    gateway_options: { config },
  } as object);
  expect(batch).toMatchObject({
    status: 'failed',
    errors: { data: [{ code: 'prompt_not_found', param: 'config.prompt_id' }] },
  });
});

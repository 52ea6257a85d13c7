import { toFile } from 'openai';
import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, toJsonl } from './batch-kit.ts';
import { tokenOf } from './people-kit.ts';

// Every method that the official client of Portkey has, unmodified: it is called here, or there is a reason why not. What a
// method answers in detail is tested with its area.

/** By the longest beginning of a method's name. */
const reasons: Record<string, string> = {
  assistants: 'forwarded by the client of OpenAI that is inside; test/api/pass-through.test.ts has that one',
  audio: 'as assistants',
  beta: 'as assistants',
  conversations: 'as assistants',
  images: 'as assistants',
  moderations: 'as assistants',
  responses: 'as assistants',
  threads: 'as assistants',
  vectorStores: 'as assistants',
  'chat.completions.messages': 'stored completions are not offered',
  'chat.completions.retrieve': 'stored completions are not offered',
  'chat.completions.update': 'stored completions are not offered',
  'chat.completions.list': 'stored completions are not offered',
  'chat.completions.delete': 'stored completions are not offered',
  'chat.completions.runTools': 'a loop of the client around chat.completions.create',
  'fineTuning.checkpoints': 'permissions between projects of OpenAI are not offered',
  'fineTuning.alpha': 'graders are not offered',
  'files.retrieveContent': 'deprecated in favour of files.content, which it calls',
  generations: 'deprecated in favour of prompts.completions; its path has the version twice (/v1/v1/…)',
  webhooks: 'checks signatures inside the client and calls nothing',
  evals: 'not offered',
  containers: 'not offered',
  videos: 'not offered',
  chatkit: 'not offered',
  realtime: 'not offered',
  mcpServers: 'not offered',
  mcpIntegrations: 'not offered',
  logs: 'called in test/api/log-exports.test.ts',
  integrations: 'called in test/api/integrations.test.ts',
  providers: 'called in test/api/integrations.test.ts',
};

/** What every resource of the client inherits. */
const inherited = new Set([
  'constructor',
  'post',
  'put',
  'getMethod',
  'deleteMethod',
  '_post',
  '_put',
  '_get',
  '_delete',
]);
const isResource = (value: unknown): value is object =>
  typeof value === 'object' && value !== null && 'client' in value && 'getMethod' in value;
const methodsOf = (resource: object): string[] =>
  Object.getOwnPropertyNames(Object.getPrototypeOf(resource)).filter((name) => !inherited.has(name));

function allMethods(resource: object, place = ''): string[] {
  return Object.entries(resource).flatMap(([name, child]: [string, unknown]) =>
    isResource(child)
      ? [...methodsOf(child).map((method) => `${place}${name}.${method}`), ...allMethods(child, `${place}${name}.`)]
      : [],
  );
}

const called = new Set<string>();

/** The client itself, which notes the names of the methods that are called through it. */
function watched<Resource extends object>(resource: Resource, place = ''): Resource {
  return new Proxy(resource, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name);
      const path = `${place}${String(name)}`;
      if (isResource(value)) return watched(value, `${path}.`);
      if (place === '' || typeof value !== 'function' || !methodsOf(target).includes(String(name))) return value;
      return (...given: unknown[]): unknown => {
        called.add(path);
        return Reflect.apply(value, target, given);
      };
    },
  });
}

let platform: TestPlatform;
let client: Portkey;
let plain: Portkey;
beforeAll(async () => {
  platform = await startPlatform();
  plain = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  client = watched(plain);
});
afterAll(() => platform.stop());

const model = '@simulator/sim-small';
const messages = [{ role: 'user' as const, content: 'hello' }];

/** Answers as the client's types do not describe them. */
const loose = (value: unknown) => value as Record<string, string> & { data: Record<string, unknown>[] };

test('calls to models', async () => {
  expect((await client.chat.completions.create({ model, messages })).choices).toHaveLength(1);
  const parsed = await client.chat.completions.parse({ model, messages });
  expect(loose(parsed)['object']).toBe('chat.completion');
  const stream = (await client.chat.completions.stream({ model, messages })) as unknown as {
    finalContent: () => Promise<string | null>;
  };
  expect(await stream.finalContent()).toEqual(expect.any(String));
  expect((await client.completions.create({ model, prompt: 'hello' })).choices).toHaveLength(1);
  expect(loose(await client.embeddings.create({ model, input: 'hello' })).data).toHaveLength(1);
  const { id } = (await client.models.list()).data[0] ?? { id: '' };
  expect(await client.models.retrieve(id)).toMatchObject({ id, object: 'model' });
  // The simulator has no models to delete and says so, as OpenAI does for those of its own.
  await expect(client.models.delete(model)).rejects.toMatchObject({ status: 404 });
});

test('files and batches', async () => {
  const file = await toFile(Buffer.from(toJsonl([chatLine('hello')])), 'lines.jsonl');
  const { id = '' } = loose(await client.files.create({ file, purpose: 'batch' }));
  expect(await client.files.retrieve(id)).toMatchObject({ id, purpose: 'batch' });
  expect(loose(await client.files.list({})).data).toContainEqual(expect.objectContaining({ id }));
  expect(await client.files.waitForProcessing(id, {})).toMatchObject({ id, status: 'processed' });
  // The client loses the bytes: it copies the members of the answer's stream, which has none of its own.
  expect(await client.files.content(id)).toMatchObject({ getHeaders: expect.any(Function) });

  const asked = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const;
  const batch = loose(await client.batches.create(asked));
  const batchId = batch['id'] ?? '';
  await expect(client.batches.retrieve('batch_none')).rejects.toMatchObject({ status: 404 });
  await eventually(
    async () => loose(await client.batches.retrieve(batchId)),
    ({ status }) => status === 'completed',
    { timeoutMs: 30_000 },
  );
  expect(loose(await client.batches.list({})).data).toContainEqual(expect.objectContaining({ id: batchId }));
  const output: unknown = await client.batches.output(batchId);
  expect(JSON.stringify(output)).toContain('chat.completion');
  await expect(client.batches.cancel(batchId)).rejects.toMatchObject({ status: 409 });
  expect(await client.files.delete(id)).toMatchObject({ id, deleted: true });
});

test('uploads in parts', async () => {
  const { uploads } = client;
  const bytes = Buffer.from(toJsonl([chatLine('hello')]));
  const asked = {
    bytes: bytes.length,
    filename: 'in.jsonl',
    mime_type: 'application/jsonl',
    purpose: 'batch',
  } as const;
  const { id = '' } = loose(await uploads.create(asked));
  const part = loose(await uploads.parts.create(id, { data: await toFile(bytes, 'part') }));
  expect(await uploads.complete(id, { part_ids: [part['id'] ?? ''] })).toMatchObject({ id, status: 'completed' });
  const other = loose(await uploads.create(asked));
  expect(await uploads.cancel(other['id'] ?? '')).toMatchObject({ status: 'cancelled' });
});

test('fine-tuning jobs', async () => {
  const turns = [...messages, { role: 'assistant', content: 'yes' }];
  const lines = toJsonl(Array.from({ length: 10 }, () => ({ messages: turns })));
  const file = await toFile(Buffer.from(lines), 'train.jsonl');
  const { id: training_file = '' } = loose(await client.files.create({ file, purpose: 'fine-tune' }));
  const { id = '' } = loose(await client.fineTuning.jobs.create({ model, training_file } as never));
  expect(await client.fineTuning.jobs.retrieve(id)).toMatchObject({ id, object: 'fine_tuning.job' });
  expect(loose(await client.fineTuning.jobs.list({})).data).toContainEqual(expect.objectContaining({ id }));
  expect(loose(await client.fineTuning.jobs.listEvents(id, {}))).toMatchObject({ object: 'list' });
  expect(loose(await client.fineTuning.jobs.checkpoints.list(id, {}))).toMatchObject({ object: 'list' });
  expect(await client.fineTuning.jobs.cancel(id)).toMatchObject({ id });
});

test('people and workspaces', async () => {
  const { users, workspaces } = client.admin;
  const workspaceId = loose(await workspaces.create({ name: 'Methods' }))['id'] ?? '';
  expect(loose(await workspaces.retrieve({ workspaceId }))['name']).toBe('Methods');
  expect(loose(await workspaces.list({})).data).toContainEqual(expect.objectContaining({ id: workspaceId }));
  expect(await workspaces.update({ workspaceId, description: 'all' })).toMatchObject({ description: 'all' });

  const invite = { email: 'm@example.org', role: 'member', workspaces: [{ id: workspaceId, role: 'member' }] };
  const { id: inviteId = '' } = loose(await users.invites.create(invite));
  expect(await users.invites.retrieve({ inviteId })).toMatchObject({ status: 'pending' });
  expect(loose(await users.invites.list()).data).toContainEqual(expect.objectContaining({ id: inviteId }));
  const { invite_link = '' } = loose(await users.invites.resend({ inviteId }));
  const other = loose(await users.invites.create({ email: 'n@example.org', role: 'member' }));
  expect(await users.invites.delete({ inviteId: other['id'] ?? '' })).toMatchObject({ deleted: true });

  const accepted = await fetch(`${platform.baseUrl}/admin/users/invites/accept`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ token: tokenOf(invite_link), first_name: 'M' }),
  });
  const { id: userId } = (await accepted.json()) as { id: string };
  expect(await users.retrieve({ userId })).toMatchObject({ id: userId });
  expect(loose(await users.list({})).data).toContainEqual(expect.objectContaining({ id: userId }));
  const members = workspaces.users;
  expect(await members.retrieve({ workspaceId, userId })).toMatchObject({ role: 'member' });
  expect(await members.update({ workspaceId, userId, role: 'manager' })).toMatchObject({ role: 'manager' });
  expect(loose(await members.list({ workspaceId })).data).toHaveLength(1);
  expect(await members.delete({ workspaceId, userId })).toMatchObject({ deleted: true });
  expect(loose(await members.create({ workspaceId, users: [{ id: userId, role: 'member' }] })).data).toHaveLength(1);
  expect(await users.update({ userId, role: 'admin' })).toMatchObject({ role: 'admin' });
  expect(await users.delete({ userId })).toMatchObject({ deleted: true });
  expect(await workspaces.delete({ workspaceId, name: 'Methods' })).toMatchObject({ deleted: true });
});

test('API keys, virtual keys and configs', async () => {
  const made = await client.apiKeys.create({
    type: 'workspace',
    'sub-type': 'service',
    name: 'm',
    scopes: ['chat.write'],
  });
  const { id = '' } = loose(made);
  expect(await client.apiKeys.retrieve({ id })).toMatchObject({ id, name: 'm' });
  expect(loose(await client.apiKeys.list({})).data).toContainEqual(expect.objectContaining({ id }));
  await client.apiKeys.update({ id, name: 'n' });
  await client.apiKeys.delete({ id });
  await expect(client.apiKeys.retrieve({ id })).rejects.toMatchObject({ status: 404 });
  // The client does not name the workspace of a key again.
  const { id: workspace_id = '' } = loose(await plain.admin.workspaces.create({ name: 'keys' }));
  const ofOther = { type: 'workspace', 'sub-type': 'service', name: 'm', scopes: ['chat.write'], workspace_id };
  const { id: other = '' } = loose(await client.apiKeys.create(ofOther));
  await client.apiKeys.update({ id: other, name: 'n' });
  expect(await client.apiKeys.retrieve({ id: other })).toMatchObject({ id: other, name: 'n', workspace_id });
  await client.apiKeys.delete({ id: other });
  await plain.admin.workspaces.delete({ workspaceId: workspace_id, name: 'keys' });

  const slug = (await client.virtualKeys.create({ name: 'm', provider: 'openai', key: 'sk-1' }))['slug'] as string;
  expect(await client.virtualKeys.retrieve({ slug })).toMatchObject({ slug });
  expect(loose(await client.virtualKeys.list()).data).toContainEqual(expect.objectContaining({ slug }));
  expect(await client.virtualKeys.update({ slug, note: 'x' })).toMatchObject({ note: 'x' });
  await client.virtualKeys.delete({ slug });
  await expect(client.virtualKeys.retrieve({ slug })).rejects.toMatchObject({ status: 404 });

  const config = loose(await client.configs.create({ name: 'm', config: { virtual_key: 'simulator' } }))['slug'] ?? '';
  expect(await client.configs.retrieve({ slug: config })).toMatchObject({ slug: config });
  expect(loose(await client.configs.list()).data).toContainEqual(expect.objectContaining({ slug: config }));
  expect(await client.configs.update({ slug: config, name: 'n' })).toMatchObject({ name: 'n' });
  await client.configs.delete({ slug: config });
  await expect(client.configs.retrieve({ slug: config })).rejects.toMatchObject({ status: 404 });
});

test('prompts, partials, collections and labels', async () => {
  const { id: collection_id = '' } = loose(await client.collections.create({ name: 'm' }));
  expect(await client.collections.retrieve(collection_id)).toMatchObject({ name: 'm' });
  expect(loose(await client.collections.list()).data).toContainEqual(expect.objectContaining({ id: collection_id }));
  expect(await client.collections.update(collection_id, { name: 'n' })).toMatchObject({ name: 'n' });
  const { id: label_id = '' } = loose(await client.labels.create({ name: 'm' }));
  expect(await client.labels.retrieve(label_id)).toMatchObject({ name: 'm' });
  expect(loose(await client.labels.list()).data).toContainEqual(expect.objectContaining({ id: label_id }));
  expect(await client.labels.update(label_id, { description: 'd' })).toMatchObject({ description: 'd' });

  const { partials, versions, completions } = client.prompts;
  const partial = loose(await partials.create({ name: 'rules', string: 'Be kind.' }))['slug'] ?? '';
  expect(Object.values(await partials.list())).toContainEqual(expect.objectContaining({ slug: partial }));
  expect(await partials.update(partial, { string: 'Be brief.' })).toMatchObject({ string: 'Be brief.' });
  expect(await partials.publish(partial, { version: 2 })).toMatchObject({ version: 2 });
  expect(await partials.retrieve(partial)).toMatchObject({ version: 2 });
  expect(Object.values(await partials.versions.list(partial)).slice(0, 2)).toMatchObject([{}, {}]);

  const parameters = { model: 'sim-small' };
  const saying = (content: string) => JSON.stringify([{ role: 'user', content }]);
  const body = { name: 'm', collection_id, string: saying('{{name}}'), parameters, virtual_key: 'simulator' };
  const slug = loose(await client.prompts.create(body))['slug'] ?? '';
  expect(await client.prompts.retrieve(slug)).toMatchObject({ prompt_version: 1 });
  expect(loose(await client.prompts.list()).data).toContainEqual(expect.objectContaining({ slug }));
  await client.prompts.update(slug, { string: saying('{{>rules}} Hello {{name}}') });
  expect(await client.prompts.publish(slug, { version: 2 })).toMatchObject({ prompt_version: 2 });
  expect(Object.values(await versions.list(slug)).slice(0, 2)).toMatchObject([{}, {}]);
  expect(await versions.retrieve(slug, '1')).toMatchObject({ prompt_version: 1 });
  expect(await versions.update(slug, '2', { label_id })).toMatchObject({ prompt_version_label_id: label_id });
  const rendered = await client.prompts.render({ promptID: slug, variables: { name: 'Ada' } });
  expect(JSON.stringify(rendered)).toContain('Be brief. Hello Ada');
  const completed = await completions.create({ promptID: slug, variables: { name: 'Ada' } });
  expect(loose(completed)['object']).toBe('chat.completion');
  const streamed: string[] = [];
  const stream = await completions.create({ promptID: slug, variables: { name: 'Ada' }, stream: true });
  for await (const chunk of stream as unknown as AsyncIterable<{ object: string }>) streamed.push(chunk.object);
  expect(new Set(streamed)).toEqual(new Set(['chat.completion.chunk']));

  await client.prompts.delete(slug);
  await partials.delete(partial);
  await client.labels.delete(label_id);
  await client.collections.delete(collection_id);
  await expect(client.collections.retrieve(collection_id)).rejects.toMatchObject({ status: 404 });
});

test('guardrails and feedback', async () => {
  const checks = [{ id: 'default.isAllLowerCase', parameters: {} }];
  const made = loose(await client.guardrails.create({ name: 'm', checks, actions: { deny: true } } as never));
  const guardrail_id = made['slug'] ?? '';
  expect(await client.guardrails.retrieve({ guardrail_id })).toMatchObject({ name: 'm' });
  expect(loose(await client.guardrails.list({})).data).toContainEqual(expect.objectContaining({ slug: guardrail_id }));
  expect(await client.guardrails.update({ guardrail_id, name: 'n' })).toMatchObject({ name: 'n' });
  await client.guardrails.delete({ guardrail_id });
  await expect(client.guardrails.retrieve({ guardrail_id })).rejects.toMatchObject({ status: 404 });

  const given = await client.feedback.create({ traceID: 'trace-m', value: 1 });
  const feedbackID = (given as unknown as { feedback_ids: string[] }).feedback_ids[0] ?? '';
  expect(await client.feedback.update({ feedbackID, value: 2 })).toMatchObject({ status: 'success' });
});

test('analytics', async () => {
  const range = {
    time_of_generation_min: new Date(Date.now() - 3_600_000).toISOString(),
    time_of_generation_max: new Date(Date.now() + 60_000).toISOString(),
  };
  const { graphs, groups, summary } = client.analytics;
  for (const name of methodsOf(plain.analytics.graphs) as 'requests'[]) {
    expect([name, await graphs[name](range)]).toMatchObject([name, { data_points: expect.any(Array) }]);
  }
  for (const name of ['users', 'aiModels', 'workspaces'] as const) {
    expect([name, await groups[name](range)]).toMatchObject([name, { object: 'list' }]);
  }
  expect(await groups.metadata('team', range)).toMatchObject({ object: 'list' });
  expect(await groups.groupedData('model', range)).toMatchObject({ object: 'list' });
  expect(loose(await summary.cache(range))).toMatchObject({ object: expect.any(String) });
});

test('no method of the client is left out, and no reason is for a method that was called', () => {
  const methods = allMethods(plain);
  expect(methods.length).toBeGreaterThan(150);
  const beginnings = Object.keys(reasons);
  const isExcused = (method: string): boolean =>
    beginnings.some((beginning) => method === beginning || method.startsWith(`${beginning}.`));
  expect(methods.filter((method) => !called.has(method) && !isExcused(method))).toEqual([]);
  expect([...called].filter(isExcused)).toEqual([]);
  process.stdout.write(`Portkey's client: ${called.size} of ${methods.length} methods called\n`);
});

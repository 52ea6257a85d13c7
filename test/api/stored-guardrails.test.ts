import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import { completion } from '#test/forwarding-rig.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { chatLine, resultsOf, runBatch } from './batch-kit.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';
import { getFailureCode, sdks } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
let portkey: Portkey;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  portkey = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
});
afterAll(() => scripted.stop());
beforeEach(() => {
  upstream.requests.length = 0;
  upstream.script((reply) => reply.json(200, completion));
});

const without = (word: string) => [{ id: 'default.contains', parameters: { operator: 'none', words: [word] } }];
const feedback = { value: -5, weight: 1, metadata: '{"user":"user_x"}' };
const denying = { deny: true, async: false, on_success: { feedback }, on_fail: { feedback } };

const create = (name: string, word: string, actions: object = denying) =>
  portkey.guardrails.create({ name, checks: without(word), actions: actions as typeof denying });

type Json = Record<string, unknown>;
async function call(method: string, route: string, body?: unknown, key = platform.adminKey) {
  const response = await fetch(`${platform.baseUrl}${route}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Json };
}

async function ask(config: object | string, content: string, key = platform.adminKey) {
  const sent = { model: '@scripted/m', messages: [{ role: 'user', content }] };
  const value = typeof config === 'string' ? config : JSON.stringify(config);
  const response = await postJson({ ...platform, adminKey: key }, '/chat/completions', sent, {
    'x-gateway-config': value,
  });
  return { status: response.status, body: (await response.json()) as { error?: Json; hook_results?: Json } };
}

test("Portkey's client creates, lists, retrieves, changes and deletes guardrails", async () => {
  const created = await create('No apples', 'Apple');
  expect(created).toMatchObject({
    id: expect.stringMatching(/^guardrail_/),
    slug: 'no-apples',
    version_id: `${created.id}@1`,
  });
  const workspaceId = String((await call('GET', `/guardrails/${created.id}`)).body['workspace_id']);
  const listed = await portkey.guardrails.list({
    workspace_id: workspaceId,
    organisation_id: 'org_default',
    page_size: 100,
    current_page: 0,
  });
  expect(listed).toMatchObject({
    object: 'list',
    total: 1,
    data: [
      {
        id: created.id,
        slug: 'no-apples',
        name: 'No apples',
        status: 'active',
        workspace_id: workspaceId,
        owner_id: expect.any(String),
      },
    ],
  });
  const found = await portkey.guardrails.retrieve({ guardrail_id: created.slug });
  expect(found).toMatchObject({ id: created.id, checks: without('Apple'), actions: denying, updated_by: null });
  expect(new Date(found.created_at).toISOString()).toBe(found.created_at);
  const changed = await portkey.guardrails.update({
    guardrail_id: created.id,
    workspace_id: workspaceId,
    checks: [...without('Pear'), { id: 'default.isAllLowerCase', name: 'quiet', is_enabled: false }],
  });
  expect(changed).toMatchObject({ slug: 'no-apples', version_id: `${created.id}@2` });
  expect(await portkey.guardrails.update({ guardrail_id: created.id, name: 'No pears' })).toMatchObject({
    name: 'No pears',
    version_id: `${created.id}@2`,
    updated_by: found.owner_id,
  });
  const versions = (await call('GET', '/guardrails/no-apples/versions')).body['data'];
  expect(versions).toMatchObject([{ version: 2 }, { version: 1, checks: without('Apple'), actions: denying }]);
  expect(await portkey.guardrails.delete({ guardrail_id: created.id })).toMatchObject({ id: created.id });
  expect(await getFailureCode(portkey.guardrails.retrieve({ guardrail_id: created.id }))).toMatchObject({
    status: 404,
  });
  expect(await checkInlineModels(platform.database.pool, inlineModels)).toMatchObject({ difference: null });
});

test('a config names a guardrail by slug or id, in either form, and a change of it counts at once', async () => {
  const { id, slug } = await create('Fruit', 'Apple');
  for (const named of [slug, id, { id: slug }, { type: 'guardrail', id }]) {
    const denied = await ask({ input_guardrails: [named] }, 'An Apple a day');
    expect(denied).toMatchObject({
      status: 446,
      body: { hook_results: { before_request_hooks: [{ id: slug, name: 'Fruit', deny: true, feedback }] } },
    });
  }
  expect(upstream.requests).toHaveLength(0);
  const stored = { before_request_hooks: [{ id: slug }], virtual_key: 'scripted' };
  expect((await call('POST', '/configs', { name: 'fruity', config: stored })).status).toBe(200);
  expect((await ask('fruity', 'An Apple a day')).status).toBe(446);
  await portkey.guardrails.update({ guardrail_id: id, checks: without('Pear') });
  expect((await ask('fruity', 'An Apple a day')).status).toBe(200);
  expect((await ask('fruity', 'A Pear a day')).status).toBe(446);
  await portkey.guardrails.update({ guardrail_id: id, actions: { ...denying, deny: false } });
  expect((await ask('fruity', 'A Pear a day')).status).toBe(246);
  await portkey.guardrails.update({
    guardrail_id: id,
    checks: [{ ...without('Pear')[0], is_enabled: false } as never],
  });
  expect((await ask('fruity', 'A Pear a day')).status).toBe(200);
});

test('the record of a call names each guardrail, its version and its result', async () => {
  const { id, slug } = await create('Recorded', 'Apple');
  await portkey.guardrails.update({ guardrail_id: id, checks: without('Pear') });
  const config = { input_guardrails: [slug, { id: 'mine', checks: without('Fig') }], output_guardrails: [slug] };
  for (const text of ['Plum', 'Pear', 'Fig']) {
    const sent = { model: '@scripted/m', messages: [{ role: 'user', content: text }] };
    const headers = { 'x-gateway-config': JSON.stringify(config), 'x-gateway-trace-id': 'recorded-trace' };
    await (await postJson(platform, '/chat/completions', sent, headers)).text();
  }
  const { body } = await eventually(
    () => call('GET', '/logs?trace_id=recorded-trace'),
    ({ body: list }) => (list['data'] as unknown[]).length === 3,
  );
  const stored = { id, slug, version: 2, verdict: 'passed' };
  const [first, second] = [
    { kind: 'input_guardrails', ...stored },
    { kind: 'input_guardrails', id: 'mine', slug: null, version: null, verdict: 'passed' },
  ];
  const answered = { kind: 'output_guardrails', ...stored };
  const records = body['data'] as { id: string; guardrails: unknown }[];
  expect(records.map(({ guardrails }) => guardrails)).toEqual([
    [first, { ...second, verdict: 'failed' }, answered],
    [{ ...first, verdict: 'denied' }, second],
    [first, second, answered],
  ]);
  expect((await call('GET', `/logs/${records[0]?.id}`)).body['guardrails']).toEqual(records[0]?.guardrails);
});

test('a guardrail that a record names is not deleted, and one that is gone is never passed over', async () => {
  const { id, slug } = await create('Needed', 'Apple');
  await call('POST', '/configs', {
    name: 'needs-it',
    config: { targets: [{ virtual_key: 'scripted', output_guardrails: [slug] }] },
  });
  expect(await call('DELETE', `/guardrails/${slug}`)).toMatchObject({
    status: 409,
    body: { error: { code: 'guardrail_in_use', message: expect.stringContaining("config 'needs-it'") } },
  });
  await call('PUT', '/configs/needs-it', {
    config: { virtual_key: 'scripted', output_guardrails: [{ id: slug, ...without('x')[0], checks: without('x') }] },
  });
  await call('PUT', '/configs/needs-it', { config: { virtual_key: 'scripted' } });
  await call('PUT', '/admin/guardrails', { output_guardrails: [id] });
  expect((await call('DELETE', `/guardrails/${slug}`)).status).toBe(409);
  expect((await ask({}, 'x')).status).toBe(200);
  await call('PUT', '/admin/guardrails', {});
  expect((await call('DELETE', `/guardrails/${slug}`)).status).toBe(200);
  for (const named of [slug, id]) {
    expect(await ask({ input_guardrails: [named] }, 'x')).toMatchObject({
      status: 400,
      body: { error: { code: 'guardrail_not_found' } },
    });
  }
  const config = { input_guardrails: [slug] };
  expect(await call('POST', '/configs', { name: 'late', config })).toMatchObject({
    status: 400,
    body: { error: { code: 'guardrail_not_found', param: 'config' } },
  });
  expect((await call('PUT', '/admin/guardrails', config)).status).toBe(400);
});

test('a guardrail of the organisation can be named in every workspace, where only the organisation changes it', async () => {
  const shared = { name: 'For all', organisation_id: 'org_default', checks: without('Apple'), actions: { deny: true } };
  expect((await call('POST', '/guardrails', shared)).body).toMatchObject({ slug: 'for-all', workspace_id: null });
  const key = await createWorkspace(platform);
  expect((await call('GET', '/guardrails', undefined, key)).body).toMatchObject({ data: [{ slug: 'for-all' }] });
  expect((await call('PUT', '/guardrails/for-all', { name: 'Mine' }, key)).status).toBe(403);
  expect((await call('POST', '/guardrails', shared, key)).status).toBe(403);
  const config = { virtual_key: 'x', input_guardrails: ['for-all'] };
  expect((await call('POST', '/configs', { name: 'theirs', config }, key)).status).toBe(200);
  const headers = {
    'x-gateway-provider': 'openai-compatible',
    'x-gateway-custom-host': upstream.url.href,
    authorization: 'Bearer sk',
  };
  const sent = { model: 'm', messages: [{ role: 'user', content: 'Apple' }] };
  const denied = await postJson(platform, '/chat/completions', sent, {
    ...headers,
    'x-gateway-api-key': key,
    'x-gateway-config': '{"input_guardrails":["for-all"]}',
  });
  expect(denied.status).toBe(446);
  expect((await call('DELETE', '/guardrails/for-all')).status).toBe(409);
  await call('DELETE', '/configs/theirs', undefined, key);
  expect((await call('DELETE', '/guardrails/for-all')).status).toBe(200);
});

test('the guardrails of a workspace can be stored ones, and judge batch lines as well', async () => {
  const { slug } = await create('Everybody', 'Apple');
  await call('PUT', '/admin/guardrails', { input_guardrails: [slug] });
  expect((await call('GET', '/admin/guardrails')).body).toMatchObject({ input_guardrails: [slug] });
  expect((await ask({}, 'Apple')).status).toBe(446);
  const [sdk] = sdks;
  if (!sdk) throw new Error('no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const worker = await platform.startWorker();
  const lines = ['Apple', 'Plum'].map((text) =>
    chatLine(text, { model: '@scripted/m', messages: [{ role: 'user', content: text }] }),
  );
  const { output, errors } = await resultsOf(client, await runBatch(sdk, client, lines));
  await worker.stop();
  expect(output.map((line) => line.custom_id)).toEqual(['Plum']);
  expect(errors).toMatchObject([{ custom_id: 'Apple', response: { status_code: 446 } }]);
  const { body } = await call('GET', '/logs?kind=batch&limit=2');
  expect((body['data'] as Json[]).map(({ guardrails }) => guardrails)).toEqual(
    expect.arrayContaining([
      [expect.objectContaining({ slug, version: 1, verdict: 'denied' })],
      [expect.objectContaining({ slug, version: 1, verdict: 'passed' })],
    ]),
  );
  await call('PUT', '/admin/guardrails', {});
});

test('the default guardrails of a workspace judge its calls, and cannot be deleted meanwhile', async () => {
  const { slug } = await create('By default', 'Apple');
  const workspaceId = String((await call('GET', `/guardrails/${slug}`)).body['workspace_id']);
  const set = (names: string[]) =>
    call('PUT', `/admin/workspaces/${workspaceId}`, { defaults: { input_guardrails: names, output_guardrails: [] } });
  expect((await set([slug])).status).toBe(200);
  expect((await ask({}, 'Apple')).status).toBe(446);
  expect((await call('DELETE', `/guardrails/${slug}`)).status).toBe(409);
  expect((await set(['nothing'])).status).toBe(400);
  await set([]);
  expect((await ask({}, 'Apple')).status).toBe(200);
});

test('the feedback of a guardrail is stored for the trace of its call', async () => {
  const { slug } = await create('Judge', 'Apple', {
    on_fail: { feedback: { value: -7, weight: 0.5, metadata: '{"by":"judge"}' } },
    on_success: { feedback: { value: 3 } },
  });
  for (const text of ['Apple', 'Plum']) {
    const sent = { model: '@scripted/m', messages: [{ role: 'user', content: text }] };
    const headers = { 'x-gateway-config': `{"input_guardrails":["${slug}"]}`, 'x-gateway-trace-id': 'judged-trace' };
    await postJson(platform, '/chat/completions', sent, headers);
  }
  const stored = await eventually(
    () =>
      platform.database.db
        .selectFrom('feedback')
        .select(['value', 'weight', 'metadata', 'source'])
        .where('trace_id', '=', 'judged-trace')
        .orderBy('value')
        .execute(),
    (rows) => rows.length === 2,
  );
  expect(stored.map((row) => ({ ...row, weight: Number(row.weight) }))).toEqual([
    { value: -7, weight: 0.5, metadata: { by: 'judge' }, source: 'guardrail' },
    { value: 3, weight: 1, metadata: null, source: 'guardrail' },
  ]);
});

test('nobody sees the secrets of a webhook, which is called with them, also after another change', async () => {
  const headers = { 'x-token': 'CANARY-in-a-header' };
  const webhook = { webhookURL: `${upstream.url.origin}/hook?key=CANARY-in-a-query`, headers };
  const body = { name: 'hooked', checks: [{ id: 'default.webhook', parameters: webhook }], actions: { deny: true } };
  const created = await call('POST', '/guardrails', body);
  const changed = await call('PUT', '/guardrails/hooked', { actions: { deny: false } });
  const answers = [
    created,
    changed,
    await call('GET', '/guardrails'),
    await call('GET', '/guardrails/hooked/versions'),
  ];
  for (const answer of answers) {
    expect(JSON.stringify(answer)).not.toContain('CANARY');
    expect(JSON.stringify(answer)).toContain('/[redacted]');
  }
  upstream.script((reply, { path }) => reply.json(200, path.startsWith('/hook') ? { verdict: true } : completion));
  expect((await ask({ input_guardrails: ['hooked'] }, 'x')).status).toBe(200);
  expect(upstream.requests[0]).toMatchObject({ path: '/hook?key=CANARY-in-a-query', headers });
  const { rows } = await platform.database.pool.query<{ text: string }>(
    'select data::text as text from event union all select data::text from resource_version',
  );
  expect(rows.filter(({ text }) => text.includes('CANARY'))).toEqual([]);
});

test('the guardrails of a workspace are not there for another one', async () => {
  const { id, slug } = await create('Ours', 'Apple');
  const key = await createWorkspace(platform);
  for (const name of [id, slug]) {
    for (const method of ['GET', 'PUT', 'DELETE']) {
      expect((await call(method, `/guardrails/${name}`, method === 'GET' ? undefined : {}, key)).status).toBe(404);
    }
    expect((await ask({ input_guardrails: [name] }, 'x', key)).body.error).toMatchObject({
      code: 'guardrail_not_found',
    });
    expect((await call('POST', '/configs', { name: 'x', config: { input_guardrails: [name] } }, key)).status).toBe(400);
  }
  expect((await call('GET', '/guardrails', undefined, key)).body).toMatchObject({ total: 0, data: [] });
});

test.each<[string, object, string]>([
  ['no check', { checks: [] }, 'checks'],
  ['an unknown check', { checks: [{ id: 'default.magic', parameters: {} }] }, 'checks[0].id'],
  [
    'an unknown parameter',
    { checks: [{ id: 'default.endsWith', parameters: { sufix: 'x' } }] },
    'checks[0].parameters.suffix',
  ],
  ['a pattern that RE2 does not know', { checks: [{ id: 'regexMatch', parameters: { rule: '(?=x)' } }] }, 'checks'],
  [
    'a webhook at a forbidden address',
    { checks: [{ id: 'webhook', parameters: { webhookURL: 'http://169.254.169.254/' } }] },
    'checks',
  ],
  [
    'keys at a forbidden address',
    { checks: [{ id: 'jwt', parameters: { jwksUri: 'http://10.0.0.1/' }, is_enabled: false }] },
    'checks',
  ],
  ['an unknown action', { checks: without('x'), actions: { denny: true } }, 'actions.denny'],
])('%s is refused, with where it stands', async (_what, body, param) => {
  expect(await call('POST', '/guardrails', { name: 'bad', ...body })).toMatchObject({
    status: 400,
    body: { error: { param } },
  });
});

test('a guardrail without actions says that it refuses nothing', async () => {
  const body = { name: 'Only reports', checks: without('Apple') };
  const nothing = { deny: false, async: false, on_success: {}, on_fail: {} };
  const made = await call('POST', '/guardrails', body);
  expect(made).toMatchObject({ status: 200, body: { actions: nothing } });
  const at = `/guardrails/${String(made.body['id'])}`;
  // What was answered can be sent back.
  expect(await call('PUT', at, { actions: made.body['actions'] })).toMatchObject({ status: 200 });
  expect(await call('PUT', at, { actions: { deny: true } })).toMatchObject({
    status: 200,
    body: { actions: { ...nothing, deny: true } },
  });
});

import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, runBatch } from './batch-kit.ts';
import { sdks } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// Who changed what, when and from where, as clients read it.

type Body = Record<string, unknown>;
type Record_ = {
  id: string;
  action: string;
  resource_type: string;
  method: string | null;
  uri: string | null;
  resource_id: string;
  user_id: string;
  timestamp: string;
  request_body: string;
  response_status_code: number | null;
};

let platform: TestPlatform;
let otherKey: string;
beforeAll(async () => {
  platform = await startPlatform();
  otherKey = await createWorkspace(platform);
});
afterAll(() => platform.stop());

async function call(method: string, path: string, { key, body }: { key?: string; body?: Body } = {}) {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: { 'x-gateway-api-key': key ?? platform.adminKey, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return {
    status: response.status,
    requestId: response.headers.get('x-request-id'),
    body: (await response.json()) as Body,
  };
}

const recordsOf = async (query: string, key?: string): Promise<Record_[]> =>
  (await call('GET', `/audit-logs?${query}`, key === undefined ? {} : { key })).body['records'] as Record_[];

test('a change is in the audit log: who, what, when, by which request and from which address', async () => {
  const made = await call('POST', '/configs', {
    body: { name: 'Audited', slug: 'audited', config: { retry: { attempts: 2 } } },
  });
  const id = String(made.body['id']);
  await call('PUT', '/configs/audited', { body: { name: 'Renamed' } });
  await call('DELETE', '/configs/audited');
  const records = await eventually(
    () => recordsOf(`resource_id=${id}`),
    (found) => found.length === 3,
  );
  expect(records.map(({ action }) => action)).toEqual(['deleted', 'updated', 'created']);
  expect(records[2]).toMatchObject({
    method: 'POST',
    uri: '/v1/configs',
    request_id: made.requestId,
    user_type: 'api_key',
    user_id: expect.stringMatching(/^key_/),
    response_status_code: 200,
    resource_type: 'config',
    client_ip: '127.0.0.1',
  });
  expect(JSON.parse(records[2]?.request_body ?? '')).toMatchObject({
    name: 'Audited',
    config: { retry: { attempts: 2 } },
  });
  expect(records[0]).toMatchObject({ method: 'DELETE', uri: '/v1/configs/audited' });
});

test('a refused request is in the audit log with 403', async () => {
  const made = await call('POST', '/api-keys', { body: { name: 'reader', scopes: ['files.read'] } });
  const keyId = String(made.body['id']);
  expect((await call('GET', '/configs', { key: String(made.body['key']) })).status).toBe(403);
  await platform.api.facts.flush();
  const [record] = await eventually(
    () => recordsOf(`user_id=${keyId}&response_status_code=403`),
    (found) => found.length === 1,
  );
  expect(record).toMatchObject({
    action: 'request_refused',
    method: 'GET',
    uri: '/v1/configs',
    client_ip: '127.0.0.1',
    resource_id: keyId,
  });
  expect(JSON.parse(record?.request_body ?? '')).toMatchObject({ code: 'missing_scope', count: 1 });
  // What was made is there too, and neither the key nor what it could be guessed by.
  const [created] = await recordsOf(`resource_id=${keyId}&action=created`);
  expect(created?.request_body).toContain('"name":"reader"');
  expect(created?.request_body).not.toMatch(/digest|sk-/);
});

test('a refused change is in the audit log with its status and code, and without what was sent', async () => {
  const made = await call('POST', '/api-keys', { body: { name: 'writer', scopes: ['configs.write'] } });
  const [key, keyId] = [String(made.body['key']), String(made.body['id'])];
  const invalid = { name: 'x', config: { retry: 'sk-abcdefghijklmnop' } };
  for (let times = 0; times < 3; times += 1)
    expect((await call('POST', '/configs', { key, body: invalid })).status).toBe(400);
  expect((await call('DELETE', '/configs/none', { key })).status).toBe(404);
  await platform.api.facts.flush();
  const records = await eventually(
    () => recordsOf(`user_id=${keyId}&action=request_refused`),
    (found) => found.reduce((sum, { request_body: body }) => sum + Number(JSON.parse(body).count), 0) === 4,
  );
  expect(new Set(records.map((record) => `${record.method} ${record.uri} ${record.response_status_code}`))).toEqual(
    new Set(['POST /v1/configs 400', 'DELETE /v1/configs/:slug 404']),
  );
  expect(JSON.stringify(records)).not.toContain('sk-abcdefghijklmnop');
});

test('wrong keys are in the audit log of the organisation, by address', async () => {
  for (let times = 0; times < 3; times += 1)
    expect((await call('GET', '/files', { key: 'slk_wrong' })).status).toBe(401);
  await platform.api.facts.flush();
  const records = await eventually(
    () => recordsOf('workspace_id=org_default&resource_type=organisation&action=request_refused'),
    (found) => found.reduce((sum, { request_body: body }) => sum + Number(JSON.parse(body).count), 0) === 3,
  );
  expect(records[0]).toMatchObject({ response_status_code: 401, client_ip: '127.0.0.1', user_type: 'system' });
  const { reasons, addresses } = JSON.parse(records[0]?.request_body ?? '');
  expect([Object.keys(reasons), addresses]).toEqual([
    ['wrong_key'],
    [{ address: '127.0.0.1', count: expect.any(Number) }],
  ]);
});

test('the events of a batch and of its files name the event that caused them, and the batch', async () => {
  const [sdk] = sdks;
  if (sdk === undefined) throw new Error('no client package');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const batch = await runBatch(sdk, client, [chatLine('one'), chatLine('two')]);
  type Event = { id: string; type: string; metadata: { causation_id?: string; correlation_id?: string } };
  const eventsOf = async (stream: string): Promise<Event[]> =>
    (await call('GET', `/events?stream=${stream}`)).body['data'] as Event[];
  const events = await eventually(
    () => eventsOf(batch.id),
    (found) => found.at(-1)?.type === 'batch.completed',
  );
  const ids = events.map(({ id }) => id);
  expect(new Set(events.map(({ metadata }) => metadata.correlation_id))).toEqual(new Set([batch.id]));
  const causes = events.map(({ metadata }) => ids.indexOf(metadata.causation_id ?? ''));
  expect(causes.every((cause, index) => cause < index && (cause >= 0 || index === 0))).toBe(true);
  const [output] = await eventsOf(String(batch.output_file_id));
  expect(output?.metadata).toMatchObject({ correlation_id: batch.id, causation_id: expect.any(String) });
  expect(ids).toContain(output?.metadata.causation_id);
});

test('reads of files and of results of a batch are counted for the key, each with its IDs', async () => {
  const [sdk] = sdks;
  if (sdk === undefined) throw new Error('no client package');
  const made = await call('POST', '/api-keys', { body: { name: 'reader' } });
  const client = new sdk.OpenAI({ apiKey: String(made.body['key']), baseURL: platform.baseUrl });
  const batch = await runBatch(sdk, client, [chatLine('read')]);
  const id = String(batch.output_file_id);
  for (let times = 0; times < 3; times += 1) await (await client.files.content(id)).text();
  await client.get(`/batches/${batch.id}/lines/1`);
  await platform.api.facts.flush();
  const records = await eventually(
    () => recordsOf(`user_id=${String(made.body['id'])}&action=contents_read`),
    (found) => found.reduce((sum, { request_body: body }) => sum + Number(JSON.parse(body).count), 0) === 4,
  );
  const read = records.map(({ request_body: body }) => JSON.parse(body));
  expect(new Set(read.map(({ kind, ids }) => `${kind} ${ids}`))).toEqual(
    new Set([`file ${id}`, `batch_results ${batch.id}`]),
  );
});

test('the start of a process is an event of the organisation, with settings and without secrets', async () => {
  const records = await eventually(
    () => recordsOf('workspace_id=org_default&action=process_started'),
    (found) => found.length === 2,
  );
  const started = records.map(({ request_body: body }) => JSON.parse(body));
  expect(new Set(started.map((each) => each.process))).toEqual(new Set(['api', 'worker']));
  expect(started[0]).toMatchObject({ node_version: process.version, settings: { DATABASE_URL: 'set' } });
  expect(JSON.stringify(records)).not.toContain(platform.environment['SLUICE_MASTER_KEY']);
});

test('filters and both ways of paging give every record once, newest first', async () => {
  for (const name of ['p1', 'p2', 'p3', 'p4', 'p5']) await call('POST', '/configs', { body: { name, config: {} } });
  const all = await eventually(
    () => recordsOf('limit=100'),
    (found) => found.filter(({ request_body: body }) => /"name":"p\d"/.test(body)).length === 5,
  );
  expect(all.map(({ timestamp }) => timestamp)).toEqual(
    all
      .map(({ timestamp }) => timestamp)
      .toSorted()
      .toReversed(),
  );
  const byCursor: string[] = [];
  for (let after = ''; ;) {
    const page = await call('GET', `/audit-logs?limit=2${after}`);
    const records = page.body['records'] as Record_[];
    byCursor.push(...records.map(({ id }) => id));
    if (page.body['has_more'] !== true) break;
    after = `&after=${records.at(-1)?.id}`;
  }
  expect(byCursor).toEqual(all.map(({ id }) => id));
  const second = await call('GET', '/audit-logs?current_page=1&page_size=2');
  expect(second.body).toMatchObject({ object: 'analytics-graph', total: all.length, has_more: true });
  expect((second.body['records'] as Record_[]).map(({ id }) => id)).toEqual(byCursor.slice(2, 4));
  const between = `start_time=${all[3]?.timestamp}&end_time=${all[1]?.timestamp}`;
  const times = (await recordsOf(between)).map(({ timestamp }) => timestamp);
  expect(times.length).toBeGreaterThanOrEqual(3);
  expect(times.every((time) => time >= (all[3]?.timestamp ?? '') && time <= (all[1]?.timestamp ?? ''))).toBe(true);
  for (const { resource_type } of await recordsOf('resource_type=virtual_key'))
    expect(resource_type).toBe('virtual_key');
});

test('a page with large records is written record by record', async () => {
  const key = await createWorkspace(platform);
  const string = 'x'.repeat(200_000);
  for (let number = 0; number < 3; number += 1) {
    const made = await call('POST', '/prompts', { key, body: { name: `p${number}`, string } });
    expect(made.status).toBe(200);
  }
  const list = async () => {
    const response = await fetch(`${platform.baseUrl}/audit-logs?resource_type=prompt`, {
      headers: { 'x-gateway-api-key': key },
    });
    const { records } = (await response.json()) as { records: Record_[] };
    return { length: response.headers.get('content-length'), records };
  };
  const { length, records } = await eventually(list, (page) => page.records.length === 3);
  expect(length).toBeNull();
  expect(records.map(({ request_body: body }) => body.includes(string))).toEqual([true, true, true]);
});

test('an organisation key sees the changes of all workspaces, of people and of integrations', async () => {
  const workspace = String((await call('POST', '/admin/workspaces', { body: { name: 'Audited team' } })).body['id']);
  const ids: unknown[] = [workspace];
  const make = async (path: string, body: Body) => ids.push((await call('POST', path, { body })).body['id']);
  await make('/configs', { name: 'theirs', config: {}, workspace_id: workspace });
  await make('/configs', { name: 'ours', config: {} });
  await make('/integrations', { name: 'Shared', ai_provider_id: 'openai', key: 'sk-1' });
  await make('/admin/users/invites', {
    email: 'audited@example.org',
    role: 'member',
    workspaces: [{ id: workspace, role: 'member' }],
  });
  const all = () => recordsOf('organisation_id=org_default&method=POST&page_size=100');
  const found = await eventually(all, (records) => ids.every((id) => records.some((each) => each.resource_id === id)));
  const created = found.filter(({ resource_id: id, action }) => ids.includes(id) && action === 'created');
  expect(created.map(({ resource_type: type }) => type).toSorted()).toEqual([
    'config',
    'config',
    'integration',
    'invite',
    'workspace',
  ]);
  for (const record of found) expect(record).toMatchObject({ organisation_id: 'org_default' });
  // Pages go on over the bounds of workspaces.
  const byCursor: string[] = [];
  for (let after = ''; ;) {
    const { body } = await call('GET', `/audit-logs?limit=3&method=POST${after}`);
    byCursor.push(...(body['records'] as Record_[]).map(({ id }) => id));
    if (body['has_more'] !== true) break;
    after = `&after=${byCursor.at(-1)}`;
  }
  expect(byCursor).toEqual((await all()).map(({ id }) => id));
  const theirs = await recordsOf(`workspace_id=${workspace}&resource_type=config`);
  expect(theirs.map(({ resource_id: id }) => id)).toEqual([ids[1]]);
  // A key of a workspace still sees its own workspace alone.
  const own = await recordsOf('limit=100', otherKey);
  expect(own.some(({ resource_id: id }) => ids.includes(id))).toBe(false);
});

test.each(['user_type=cat', 'resource_type=configs', 'action=create', 'country=DE', 'method=get'])(
  'an unknown value of a filter is refused, since an empty list would read as no changes: %s',
  async (query) => {
    expect((await call('GET', `/audit-logs?${query}`)).status).toBe(400);
  },
);

test('another organisation has no audit log here', async () => {
  const { status, body } = await call('GET', '/audit-logs?organisation_id=org_of_others');
  expect({ status, body }).toMatchObject({ status: 404, body: { error: { param: 'organisation_id' } } });
});

test.each(['after=0193a000-0000-7000-8000-000000000001', 'after=x', 'start_time=soon', 'method=PATCH', 'colour=red'])(
  'the query %s is refused',
  async (query) => {
    expect((await call('GET', `/audit-logs?${query}`)).status).toBe(400);
  },
);

test('a workspace sees neither activity nor events of another', async () => {
  const made = await call('POST', '/configs', { body: { name: 'Private', config: {} } });
  const id = String(made.body['id']);
  const [mine] = await eventually(
    () => recordsOf(`resource_id=${id}`),
    (found) => found.length === 1,
  );
  expect(await recordsOf(`resource_id=${id}`, otherKey)).toEqual([]);
  expect((await call('GET', `/audit-logs?after=${mine?.id}`, { key: otherKey })).status).toBe(400);
  expect((await call('GET', `/events?stream=${id}`, { key: otherKey })).body).toMatchObject({
    data: [],
    has_more: false,
  });
  expect((await call('GET', `/events?after=${mine?.id}`, { key: otherKey })).status).toBe(400);
  const { workspace_id: workspaceId } = (await recordsOf('limit=1'))[0] as unknown as { workspace_id: string };
  const foreign = await call('GET', `/audit-logs?workspace_id=${workspaceId}`, { key: otherKey });
  expect(foreign.status).toBe(404);
});

test('both need the scope audit.read', async () => {
  const made = await call('POST', '/api-keys', { body: { name: 'blind', scopes: ['logs.read'] } });
  const key = String(made.body['key']);
  expect((await call('GET', '/audit-logs', { key })).status).toBe(403);
  expect((await call('GET', '/events', { key })).status).toBe(403);
  const auditor = await call('POST', '/api-keys', { body: { name: 'auditor', scopes: ['audit.read'] } });
  expect((await call('GET', '/audit-logs', { key: String(auditor.body['key']) })).status).toBe(200);
});

test('the log of a workspace is read oldest first, in pages, by stream and by type', async () => {
  const made = await call('POST', '/configs', { body: { name: 'Logged', slug: 'logged', config: {} } });
  const id = String(made.body['id']);
  await call('PUT', '/configs/logged', { body: { name: 'Logged again' } });
  const events = async (query: string) =>
    (await call('GET', `/events?${query}`)).body as { data: Body[]; has_more: boolean; last_id: string };
  const ofStream = await eventually(
    () => events(`stream=${id}`),
    ({ data }) => data.length === 2,
  );
  expect(ofStream.data).toMatchObject([
    {
      object: 'event',
      type: 'config.created',
      stream: id,
      stream_version: 1,
      schema_version: 1,
      data: { name: 'Logged' },
      metadata: { request_id: made.requestId, address: '127.0.0.1', method: 'POST' },
      sha256: expect.stringMatching(/^[0-9a-f]{64}$/),
    },
    { type: 'config.updated', stream_version: 2, data: { name: 'Logged again' } },
  ]);
  expect((await events(`stream=${id}&type=config.updated`)).data).toHaveLength(1);
  const all: Body[] = [];
  for (let after = ''; ;) {
    const page = await events(`limit=3${after}`);
    all.push(...page.data);
    if (!page.has_more) break;
    after = `&after=${page.last_id}`;
  }
  const ids = all.map(({ id: eventId }) => eventId);
  expect(new Set(ids).size).toBe(ids.length);
  // The refusal of the test before may be recorded at any moment.
  const ours = all.filter(({ type }) => type !== 'api_key.request_refused').map(({ id: eventId }) => eventId);
  expect(ours.slice(-2)).toEqual(ofStream.data.map(({ id: eventId }) => eventId));
  const created = all.filter(({ type }) => type === 'config.created').map(({ id: eventId }) => eventId);
  expect((await events('type=config.created&limit=100')).data.map(({ id: eventId }) => eventId)).toEqual(created);
  expect(JSON.stringify(all)).not.toContain('digest');
});

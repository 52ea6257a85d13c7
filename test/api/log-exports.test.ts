import { parquetReadObjects } from 'hyparquet';
import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

// Exports of the request log, by the official client of Portkey where it has a method.

const publicUrl = 'https://llm.example.com/gate';

let platform: TestPlatform;
let client: Portkey;
const traces = Array.from({ length: 5 }, (_, index) => `export-${index}`);

beforeAll(async () => {
  platform = await startPlatform({ environment: { SLUICE_PUBLIC_URL: `${publicUrl}/` } });
  client = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  for (const trace of traces) {
    const response = await send('POST', '/chat/completions', {
      body: { model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hello' }] },
      headers: { 'x-gateway-trace-id': trace, 'x-gateway-metadata': '{"formula":"=1+1"}' },
    });
    if (!response.ok) throw new Error(`the call was answered with ${response.status}`);
  }
  await eventually(
    async () => (await send('GET', `/logs?trace_id=${traces.join(',')}`)).json() as Promise<{ data: unknown[] }>,
    ({ data }) => data.length === traces.length,
  );
});
afterAll(() => platform?.stop());

function send(
  method: string,
  path: string,
  { body, headers = {} }: { body?: object; headers?: Record<string, string> } = {},
): Promise<Response> {
  return fetch(platform.baseUrl + path, {
    method,
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
}

const requestedData = ['id', 'trace_id', 'is_success', 'cost', 'total_units', 'ai_org', 'metadata'];

async function exported(body: object): Promise<{ id: string; url: string }> {
  const created = await client.logs.exports.create({ requestedData, filters: { trace_id: traces }, ...body });
  const exportId = created.id ?? '';
  await client.logs.exports.start({ exportId });
  const isEnded = ({ status }: { status?: string }): boolean => status !== 'in_progress';
  const ended = await eventually(() => client.logs.exports.retrieve({ exportId }), isEnded);
  expect(ended).toMatchObject({ status: 'success', total_records: expect.any(Number) });
  const link = (await (await send('GET', `/logs/exports/${exportId}/download`)).json()) as { signed_url: string };
  return { id: exportId, url: behindTheProxy(link.signed_url) };
}

/** What a proxy at the public address makes of a link. */
function behindTheProxy(link: string): string {
  expect(link.startsWith(`${publicUrl}/v1/`)).toBe(true);
  return link.replace(`${publicUrl}/v1`, platform.baseUrl);
}

test('an export is created as a draft with what matches, changed, started and downloaded as lines of JSON', async () => {
  const draft = await client.logs.exports.create({ requestedData, filters: { trace_id: 'none' }, description: 'all' });
  expect(draft).toMatchObject({ object: 'export', total: 0 });
  const exportId = draft.id ?? '';
  const changed = await client.logs.exports.update({ exportId, filters: { trace_id: traces }, requestedData });
  expect(changed).toMatchObject({ id: exportId, total: 5, object: 'export' });
  expect(await client.logs.exports.retrieve({ exportId })).toMatchObject({
    status: 'draft',
    description: 'all',
    filters: { trace_id: traces },
    requested_data: requestedData,
    organisation_id: 'org_default',
  });
  expect(await client.logs.exports.start({ exportId })).toMatchObject({ object: 'export', message: 'Export started' });
  const isEnded = ({ status }: { status?: string }): boolean => status === 'success';
  const ended = await eventually(() => client.logs.exports.retrieve({ exportId }), isEnded);
  expect(ended).toMatchObject({ total_records: 5 });
  const link = (await (await send('GET', `/logs/exports/${exportId}/download`)).json()) as { signed_url: string };
  const url = behindTheProxy(link.signed_url);
  const file = await fetch(url);
  expect(file.headers.get('content-type')).toBe('application/x-ndjson');
  const lines = (await file.text()).trimEnd().split('\n');
  const rows = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  expect(rows.map((row) => row['trace_id'])).toEqual(traces.toReversed());
  expect(rows[0]).toEqual({
    id: expect.stringMatching(/^log_/),
    trace_id: 'export-4',
    is_success: true,
    cost: expect.any(Number),
    total_units: expect.any(Number),
    ai_org: 'simulator',
    metadata: { formula: '=1+1' },
  });
  const list = await client.logs.exports.list({});
  expect(list).toMatchObject({ object: 'list', total: 1, data: [{ id: exportId, status: 'success' }] });
});

test('CSV begins with its columns, and texts that a spreadsheet would run are guarded', async () => {
  const trace = '=HYPERLINK("x")';
  await send('POST', '/chat/completions', {
    body: { model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hello' }] },
    headers: { 'x-gateway-trace-id': trace },
  });
  const find = async () => (await send('GET', '/logs?limit=1')).json() as Promise<{ data: { trace_id: string }[] }>;
  await eventually(find, ({ data }) => data[0]?.trace_id === trace);
  const filters = { trace_id: trace };
  const create = await send('POST', '/logs/exports', {
    body: { filters, requested_data: ['trace_id', 'is_success', 'ai_org'], format: 'csv' },
  });
  const { id } = (await create.json()) as { id: string };
  await client.logs.exports.start({ exportId: id });
  await eventually(
    () => client.logs.exports.retrieve({ exportId: id }),
    ({ status }) => status === 'success',
  );
  const link = (await (await send('GET', `/logs/exports/${id}/download`)).json()) as { signed_url: string };
  const text = await (await fetch(behindTheProxy(link.signed_url))).text();
  expect(text).toBe(`trace_id,is_success,ai_org\n"'=HYPERLINK(""x"")",true,simulator\n`);
});

test('a page of the matching calls is exported, and Parquet has its values', async () => {
  const filters = { trace_id: traces.join(','), current_page: 1, page_size: 2 };
  const { url } = await exported({ filters, format: 'parquet' });
  const rows = await parquetReadObjects({ file: await (await fetch(url)).arrayBuffer() });
  expect(rows).toMatchObject([
    { trace_id: 'export-2', is_success: true, ai_org: 'simulator', metadata: { formula: '=1+1' } },
    { trace_id: 'export-1', cost: expect.any(Number) },
  ]);
});

describe('a link', () => {
  test('works for its own export alone, and not without its token', async () => {
    const first = await exported({});
    const second = await exported({});
    expect((await fetch(first.url)).status).toBe(200);
    const token = new URL(first.url).searchParams.get('token') ?? '';
    const tokens = [token, '', `9999999999${token.slice(token.indexOf('.'))}`];
    const links = tokens.map(
      (each, index) => `/logs/exports/${index === 0 ? second.id : first.id}/content?token=${each}`,
    );
    for (const path of links) {
      const response = await fetch(platform.baseUrl + path);
      expect({ path, status: response.status }).toEqual({ path, status: 403 });
    }
  });
});

test('a draft has no file, a stopped export neither, and neither can be started or changed again', async () => {
  const { id: exportId = '' } = await client.logs.exports.create({ requestedData, filters: {} });
  expect((await send('GET', `/logs/exports/${exportId}/download`)).status).toBe(409);
  expect(await client.logs.exports.cancel({ exportId })).toMatchObject({ message: 'Export cancelled' });
  expect((await send('POST', `/logs/exports/${exportId}/cancel`)).status).toBe(200);
  expect((await send('POST', `/logs/exports/${exportId}/start`)).status).toBe(409);
  expect((await send('PUT', `/logs/exports/${exportId}`, { body: { description: 'x' } })).status).toBe(409);
  expect((await send('GET', `/logs/exports/${exportId}/download`)).status).toBe(409);
  expect((await send('DELETE', `/logs/exports/${exportId}`)).status).toBe(200);
  expect((await send('GET', `/logs/exports/${exportId}`)).status).toBe(404);
});

test.each([
  [{ filters: { cost_min: -1 }, requested_data: ['id'] }, 'filters.cost_min'],
  [{ filters: { colour: 'red' }, requested_data: ['id'] }, 'filters.colour'],
  [{ filters: {}, requested_data: ['secret'] }, 'requested_data[0]'],
  [{ filters: {}, requested_data: [] }, 'requested_data'],
  [{ requested_data: ['id'] }, 'filters'],
])('%j is refused', async (body, param) => {
  const response = await send('POST', '/logs/exports', { body });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { param: expect.stringContaining(param.split('[')[0] ?? '') } });
});

test('filters can name the workspace as those of analytics do', async () => {
  const create = (filters: object, more: object = {}, headers: Record<string, string> = {}) =>
    send('POST', '/logs/exports', { body: { requested_data: ['id'], filters, ...more }, headers });
  const own = await create({ workspace_slug: 'default', trace_id: traces });
  const { id, ...made } = (await own.json()) as { id: string; total: number };
  expect({ answered: own.status, ...made }).toMatchObject({ answered: 200, total: 5 });
  const other = (await (await send('POST', '/admin/workspaces', { body: { name: 'Exports' } })).json()) as {
    id: string;
  };
  const { key } = (await (await send('POST', '/api-keys', { body: { name: 'x', workspace_id: other.id } })).json()) as {
    key: string;
  };
  const theirs = await create({ workspace_slug: other.id });
  const foreign = (await theirs.json()) as { id: string; workspace_id: string };
  expect(foreign).toMatchObject({ workspace_id: other.id, total: 0 });
  // An organisation key reaches it by its ID.
  expect((await send('POST', `/logs/exports/${foreign.id}/cancel`)).status).toBe(200);
  const both = await create({ workspace_slug: 'default' }, { workspace_id: other.id });
  expect(await both.json()).toMatchObject({ error: { param: 'filters.workspace_slug' } });
  const byKey = { authorization: `Bearer ${key}` };
  expect((await create({ workspace_slug: other.id }, {}, byKey)).status).toBe(200);
  expect((await create({ workspace_slug: 'default' }, {}, byKey)).status).toBe(404);
  const moved = { filters: { workspace_slug: other.id, trace_id: 'none' } };
  expect((await send('PUT', `/logs/exports/${id}`, { body: moved })).status).toBe(400);
});

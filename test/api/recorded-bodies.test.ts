import path from 'node:path';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { sweepRecordedBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { eventually } from '#test/eventually.ts';
import { chatLine, runBatch } from './batch-kit.ts';
import { postJson } from './scripted-provider.ts';
import { sdks } from './sdk.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { readFilesBelow } from '#test/read-files-below.ts';

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

type Json = Record<string, unknown>;
type Details = { id: string; request: { body: Json | null }; response: { body: Json | null } };

async function call(method: string, url: string, body?: object, key = platform.adminKey) {
  const response = await fetch(platform.baseUrl + url, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  const isJson = response.headers.get('content-type')?.includes('json') === true;
  return { status: response.status, text, body: (isJson ? JSON.parse(text) : {}) as Json };
}

const record = async (recording: object | null): Promise<void> => {
  const { body } = await call('PUT', '/admin/workspaces/default', { defaults: { recording } });
  expect(body).toMatchObject({ defaults: { recording } });
};

/** Makes a call in a trace of its own, and returns its record once it is complete. */
async function made(traceId: string, request: object, options: { key?: string; isRecorded?: boolean } = {}) {
  const { key = platform.adminKey, isRecorded = true } = options;
  const response = await fetch(`${platform.baseUrl}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', 'x-gateway-trace-id': traceId },
    body: JSON.stringify({ model: '@simulator/sim-small', ...request }),
  });
  const answer = await response.text();
  return { answer, details: await recordOf(traceId, ({ request: { body } }) => !isRecorded || body !== null) };
}

async function recordOf(traceId: string, isComplete: (details: Details) => boolean): Promise<Details> {
  const details = await eventually(
    async () => {
      const { body } = await call('GET', `/logs?trace_id=${traceId}`);
      const [row] = body['data'] as { id: string }[];
      return row === undefined ? null : ((await call('GET', `/logs/${row.id}`)).body as unknown as Details);
    },
    (found) => found !== null && isComplete(found),
  );
  if (details === null) throw new Error('no record');
  return details;
}

const say = (content: string) => ({ messages: [{ role: 'user', content }] });

test('bodies are recorded only where a workspace or a key asks for it, and a key can say no', async () => {
  const before = await made('before', say('a quiet word'), { isRecorded: false });
  expect([before.details.request.body, before.details.response.body]).toEqual([null, null]);
  const keyOf = async (record_bodies: boolean): Promise<string> => {
    const { body } = await call('POST', '/api-keys', { name: `records ${record_bodies}`, defaults: { record_bodies } });
    expect(body['defaults']).toMatchObject({ record_bodies });
    return String(body['key']);
  };
  const [loud, quiet] = [await keyOf(true), await keyOf(false)];
  const one = await made('key-on', say('a loud word'), { key: loud });
  expect(one.details.request.body).toMatchObject(say('a loud word'));
  expect(one.details.response.body).toEqual(JSON.parse(one.answer));
  await record({ bodies: true });
  const silent = await made('key-off', say('a quiet word'), { key: quiet, isRecorded: false });
  expect(silent.details.request.body).toBeNull();
  expect((await made('workspace-on', say('a common word'))).details.request.body).toMatchObject(say('a common word'));
});

test('what patterns match, and whatever looks like a credential, is not stored', async () => {
  await record({ bodies: true, redact: [String.raw`\b\d{4}-\d{4}\b`], retention_days: 7 });
  const { details } = await made('redacted', say('card 1234-5678 and key sk-abcdefghijklmnop, please'));
  expect(details.request.body).toMatchObject(say('card [redacted] and key [redacted], please'));
  const { rows } = await sql<{ days: number }>`
    select round(extract(epoch from expires_at - created_at) / 86400)::int as days from recorded_bodies
    order by created_at desc limit 1`.execute(platform.database.db);
  expect(rows).toEqual([{ days: 7 }]);
  const refused = await call('PUT', '/admin/workspaces/default', {
    defaults: { recording: { bodies: true, redact: ['(?=x)'] } },
  });
  expect([refused.status, refused.text]).toEqual([400, expect.stringContaining('RE2')]);
});

test('a pattern that matches everywhere leaves nothing to read, and does no harm', async () => {
  await record({ bodies: true, redact: ['x*'] });
  const { details } = await made('everywhere', say('y'.repeat(300_000)));
  expect(details.request.body).toEqual({ '[redacted]': [{ '[redacted]': '[redacted]' }] });
});

test('what stands at the start of a line, is written as an escape, or is cut by a stream is redacted too', async () => {
  await record({ bodies: true, redact: [String.raw`\b\d{4}-\d{4}\b`] });
  const { details } = await made('lines', say('card:\n1234-5678'));
  expect(details.request.body).toMatchObject(say('card:\n[redacted]'));
  const spelled = await fetch(`${platform.baseUrl}/responses`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${platform.adminKey}`,
      'content-type': 'application/json',
      'x-gateway-trace-id': 'spelled',
    },
    body: '{"model":"@simulator/sim-small","stream":true,"input":"say \\u0031234-5678"}',
  });
  const answer = await spelled.text();
  const { request, response } = await recordOf('spelled', ({ request: { body } }) => body !== null);
  expect(request.body).toMatchObject({ input: 'say [redacted]' });
  expect(answer).toContain('data: ');
  expect(JSON.stringify(response.body)).not.toMatch(/1234-5678/);
});

test('of a stream the assembled answer is recorded, and of a failed call what the caller was told', async () => {
  await record({ bodies: true });
  const { answer, details } = await made('streamed', { ...say('stream, please'), stream: true });
  const said = answer
    .split('\n')
    .filter((line) => line.startsWith('data: {'))
    .map(
      (line) =>
        (JSON.parse(line.slice(6)) as { choices: { delta: { content?: string } }[] }).choices[0]?.delta.content ?? '',
    )
    .join('');
  expect(said.length).toBeGreaterThan(10);
  expect(details.response.body).toMatchObject({ choices: [{ message: { role: 'assistant', content: said } }] });
  const failed = await made('failed', { ...say('x'), model: '@simulator/sim-fault-503' });
  expect(JSON.stringify(failed.details.response.body)).toContain('error');
});

test('of a call that passes through both texts are recorded, and of speech the request alone', async () => {
  await record({ bodies: true });
  const relayed = async (traceId: string, url: string, body: object): Promise<{ answer: string; details: Details }> => {
    const response = await fetch(platform.baseUrl + url, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${platform.adminKey}`,
        'content-type': 'application/json',
        'x-gateway-trace-id': traceId,
      },
      body: JSON.stringify(body),
    });
    const answer = await response.text();
    const details = await recordOf(traceId, ({ request }) => request.body !== null);
    return { answer, details };
  };
  const moderation = { model: '@simulator/omni-moderation-latest', input: 'pass this on' };
  const { answer, details } = await relayed('relayed', '/moderations', moderation);
  expect(details.request.body).toMatchObject({ input: 'pass this on' });
  expect(details.response.body).toEqual(JSON.parse(answer));
  const speech = { model: '@simulator/sim-speech', input: 'say this', voice: 'alloy' };
  const spoken = await relayed('spoken', '/audio/speech', speech);
  expect(spoken.details).toMatchObject({ request: { body: { input: 'say this' } }, response: { body: null } });
});

test('a response is recorded as it was answered, and a stream as the response that it ends with', async () => {
  await record({ bodies: true });
  const send = async (traceId: string, stream: boolean): Promise<{ answer: string; details: Details }> => {
    const headers = { 'x-gateway-trace-id': traceId };
    const body = { model: '@simulator/sim-small', input: 'record this', stream };
    const answer = await (await postJson(platform, '/responses', body, headers)).text();
    return { answer, details: await recordOf(traceId, ({ request }) => request.body !== null) };
  };
  const whole = await send('whole-response', false);
  expect(whole.details.response.body).toEqual(JSON.parse(whole.answer));
  const { details, answer } = await send('streamed-response', true);
  expect(answer).toContain('event: response.completed');
  expect(details.response.body).toEqual(JSON.parse(whole.answer));
});

test('the record of a line of a batch shows what is in the files of the batch, to whoever may read batches', async () => {
  await record(null);
  const [sdk] = sdks;
  if (sdk === undefined) throw new Error('no client package');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const batch = await runBatch(sdk, client, [chatLine('shown')]);
  const { body: list } = await eventually(
    () => call('GET', `/logs?batch_id=${batch.id}`),
    ({ body }) => (body['data'] as unknown[]).length === 1,
  );
  const [row] = list['data'] as { id: string }[];
  const shown = (await call('GET', `/logs/${row?.id}`)).body as unknown as Details;
  expect(shown.request.body).toMatchObject({ messages: [{ role: 'user', content: 'Say shown.' }] });
  expect(shown.response.body).toMatchObject({ object: 'chat.completion' });
  const { body: reader } = await call('POST', '/api-keys', { name: 'log reader', scopes: ['logs.read'] });
  const hidden = (await call('GET', `/logs/${row?.id}`, undefined, String(reader['key']))).body;
  expect(hidden).toMatchObject({ id: row?.id, request: { body: null }, response: { body: null } });
});

test('recorded bodies need bodies.read, and reading them leaves an event', async () => {
  await record({ bodies: true });
  const { details } = await made('audited', say('an audited word'));
  const keyWith = async (...scopes: string[]) => {
    const { body } = await call('POST', '/api-keys', { name: scopes.join(' '), scopes });
    return { id: String(body['id']), key: String(body['key']) };
  };
  const reader = await keyWith('logs.read', 'logs.write');
  const shown = (await call('GET', `/logs/${details.id}`, undefined, reader.key)).body;
  expect(shown).toMatchObject({ id: details.id, request: { body: null }, response: { body: null } });
  const draft = { filters: { trace_id: 'audited' }, requested_data: ['trace_id', 'request'], format: 'ndjson' };
  const refused = { status: 403, body: { error: { code: 'missing_scope' } } };
  expect(await call('POST', '/logs/exports', draft, reader.key)).toMatchObject(refused);
  const harmless = await call('POST', '/logs/exports', { ...draft, requested_data: ['trace_id'] }, reader.key);
  expect(harmless.status).toBe(200);
  const at = `/logs/exports/${String(harmless.body['id'])}`;
  expect(await call('PUT', at, { requested_data: ['response'] }, reader.key)).toMatchObject(refused);
  const auditor = await keyWith('logs.read', 'bodies.read');
  const seen = (await call('GET', `/logs/${details.id}`, undefined, auditor.key)).body;
  expect(seen).toMatchObject({ request: { body: say('an audited word') } });
  // Events are listed when all transactions that began before them have ended, also those of other tests.
  const events = await eventually(
    async () => (await call('GET', `/events?stream=${auditor.id}&type=api_key.contents_read`)).body['data'] as object[],
    ({ length }) => length > 0,
  );
  expect(events).toMatchObject([{ data: { kind: 'recorded_bodies', count: 1, ids: [details.id] } }]);
  const { body: none } = await call('GET', `/events?stream=${reader.id}&type=api_key.contents_read`);
  expect(none['data']).toEqual([]);
});

test('an export has the recorded bodies where its columns are the request and the answer', async () => {
  await record({ bodies: true });
  const long = await made('exported-1', say('z'.repeat(900_000)));
  const { answer } = await made('exported-2', say('a word to export'));
  const exportOf = async (requestedData: string[], format: string): Promise<string> => {
    const { body: draft } = await call('POST', '/logs/exports', {
      filters: { trace_id: 'exported-1,exported-2' },
      requested_data: requestedData,
      format,
    });
    await call('POST', `/logs/exports/${String(draft['id'])}/start`);
    await eventually(
      () => call('GET', `/logs/exports/${String(draft['id'])}`),
      ({ body }) => body['status'] === 'success',
    );
    const download = `/logs/exports/${String(draft['id'])}/download`;
    const { body: reader } = await call('POST', '/api-keys', { name: 'no bodies', scopes: ['logs.read'] });
    const status = requestedData.includes('request') ? 403 : 200;
    expect((await call('GET', download, undefined, String(reader['key']))).status).toBe(status);
    const { body: link } = await call('GET', download);
    return await (await fetch(String(link['signed_url']))).text();
  };
  const rows = (await exportOf(['trace_id', 'request', 'response'], 'ndjson'))
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Pick<Details, 'request' | 'response'>);
  expect(rows).toMatchObject([
    { trace_id: 'exported-2', request: { body: say('a word to export') } },
    { trace_id: 'exported-1', request: { body: long.details.request.body } },
  ]);
  expect(rows[0]?.response.body).toEqual(JSON.parse(answer));
  expect(await exportOf(['trace_id', 'request'], 'csv')).toContain('a word to export');
  expect(await exportOf(['trace_id', 'ai_model'], 'ndjson')).not.toContain('a word to export');
});

test('nothing of them lies in the blobs or the database in clear', async () => {
  await record({ bodies: true });
  await made('hidden', say('an unmistakable sentence'));
  const files = await readFilesBelow(path.join(platform.dataDir, 'blobs'));
  expect(files.length).toBeGreaterThan(0);
  expect(files.filter(({ text }) => text.includes('unmistakable'))).toEqual([]);
  const { rows } = await sql<{ row: string }>`
    select to_jsonb(request_log)::text as row from request_log union all select to_jsonb(event)::text from event`.execute(
    platform.database.db,
  );
  expect(rows.filter(({ row }) => row.includes('unmistakable'))).toEqual([]);
});

test('after their time bodies and keys are gone, and the record stays', async () => {
  await record({ bodies: true });
  const { details } = await made('swept', say('soon gone'));
  const { db } = platform.database;
  await sql`update recorded_bodies set expires_at = now() - interval '1 second'`.execute(db);
  await sql`update secret set created_at = now() - interval '4 days' where owner_id like 'body_key_%'`.execute(db);
  const blobs = await createDiskBlobStore({ folder: path.join(platform.dataDir, 'blobs') });
  expect((await sweepRecordedBodies(db, blobs)).size).toBeGreaterThan(0);
  const { body } = await call('GET', `/logs/${details.id}`);
  expect(body).toMatchObject({ id: details.id, request: { body: null }, response: { body: null } });
  const { rows } = await sql`select from secret where owner_id like 'body_key_%'`.execute(db);
  expect(rows).toEqual([]);
});

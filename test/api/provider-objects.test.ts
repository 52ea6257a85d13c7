import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { canary, startScriptedPlatform } from './scripted-provider.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// Files, batches, fine-tuning jobs and models that live at a provider, by their ids on the routes of ours.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
});
afterAll(() => scripted.stop());
beforeEach(() => {
  upstream.requests.length = 0;
});

const reached = (): string[] => upstream.requests.map(({ method, path }) => `${method} ${path}`);

async function call(method: string, path: string, headers: Record<string, string>, key = platform.adminKey) {
  const response = await fetch(platform.baseUrl + path, { method, headers: { 'x-gateway-api-key': key, ...headers } });
  return { status: response.status, body: (await response.json()) as { error?: { code: string | null } } };
}
const atProvider = { 'x-gateway-virtual-key': 'scripted' };

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({
      apiKey: platform.adminKey,
      baseURL: platform.baseUrl,
      defaultHeaders: atProvider,
      maxRetries: 0,
    });
  });

  test('objects that are not ours are read, cancelled and deleted at the provider of the headers', async () => {
    upstream.script((reply) => reply.json(200, { id: 'there', data: [], has_more: false }));
    expect(await client.files.retrieve('file-there')).toMatchObject({ id: 'there' });
    await client.files.delete('file-there');
    // As OpenAI's ids are, and ours too.
    const batchId = `batch_${randomBytes(16).toString('hex')}`;
    await client.batches.retrieve(batchId);
    await client.batches.cancel(batchId);
    await client.fineTuning.jobs.retrieve('ftjob-there');
    await client.fineTuning.jobs.cancel('ftjob-there');
    await client.fineTuning.jobs.pause('ftjob-there');
    await client.fineTuning.jobs.resume('ftjob-there');
    await client.fineTuning.jobs.listEvents('ftjob-there', { limit: 2, after: 'ftevent-1' });
    await client.fineTuning.jobs.checkpoints.list('ftjob-there', { limit: 2 });
    expect(reached()).toEqual([
      'GET /v1/files/file-there',
      'DELETE /v1/files/file-there',
      `GET /v1/batches/${batchId}`,
      `POST /v1/batches/${batchId}/cancel`,
      'GET /v1/fine_tuning/jobs/ftjob-there',
      'POST /v1/fine_tuning/jobs/ftjob-there/cancel',
      'POST /v1/fine_tuning/jobs/ftjob-there/pause',
      'POST /v1/fine_tuning/jobs/ftjob-there/resume',
      expect.stringMatching(/^GET \/v1\/fine_tuning\/jobs\/ftjob-there\/events\?/),
      'GET /v1/fine_tuning/jobs/ftjob-there/checkpoints?limit=2',
    ]);
    for (const { headers } of upstream.requests) expect(headers['authorization']).toBe(`Bearer ${canary}`);
  });

  test('the content of such a file comes byte by byte', async () => {
    const bytes = randomBytes(300_000);
    upstream.script(async (reply) => {
      reply.head(200, { 'content-type': 'application/octet-stream' });
      await reply.write(bytes);
      reply.end();
    });
    const content = Buffer.from(await (await client.files.content('file-there')).arrayBuffer());
    expect(content.equals(bytes)).toBe(true);
    expect(reached()).toEqual(['GET /v1/files/file-there/content']);
  });

  test('what the provider does not have either is its own 404', async () => {
    upstream.script((reply) => reply.json(404, { error: { message: 'No such file there', type: 'x', code: null } }));
    const error = await getFailureCode(client.files.retrieve('file-nowhere'));
    expect(error).toMatchObject({ status: 404, message: expect.stringContaining('No such file there') });
  });

  test('ours always win, and never reach a provider', async () => {
    const file = await client.files.create({
      file: await sdk.toFile(Buffer.from('{}\n'), 'a.jsonl'),
      purpose: 'batch',
    });
    expect(await client.files.retrieve(file.id)).toMatchObject({ id: file.id, filename: 'a.jsonl' });
    await client.files.delete(file.id);
    expect(await getFailureCode(client.files.retrieve(file.id))).toMatchObject({ status: 404, param: 'id' });
    expect(reached()).toEqual([]);
  });

  test('a model is deleted at the provider of the headers or of its name', async () => {
    upstream.script((reply) => reply.json(200, { id: 'ft:any:org::1', object: 'model', deleted: true }));
    expect(await client.models.delete('ft:any:org::1')).toMatchObject({ deleted: true });
    const plain = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
    await plain.models.delete('@scripted/ft:any:org::1');
    await plain.models.delete('@scripted/org/model');
    expect(reached()).toEqual([
      'DELETE /v1/models/ft:any:org::1',
      'DELETE /v1/models/ft:any:org::1',
      'DELETE /v1/models/org%2Fmodel',
    ]);
    expect(await getFailureCode(plain.models.delete('ft:any:org::1'))).toMatchObject({
      status: 400,
      code: 'missing_credentials',
    });
    for (const name of ['..', '@scripted/../files', '@scripted/a?b']) {
      const path = `/models/${encodeURIComponent(name).replaceAll('.', '%2E')}`;
      expect(await call('DELETE', path, {})).toMatchObject({ status: 404 });
    }
    expect(reached()).toHaveLength(3);
  });
});

test('an id in a form that only we make is never forwarded, whoever asks', async () => {
  const other = await createWorkspace(platform);
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new File(['{}\n'], 'a.jsonl'));
  const headers = { 'x-gateway-api-key': platform.adminKey };
  const uploaded = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
  const { id } = (await uploaded.json()) as { id: string };
  const own = { 'x-gateway-provider': 'openai-compatible', 'x-gateway-custom-host': upstream.url.href };
  for (const path of [
    `/files/${id}`,
    `/files/${id}/content`,
    `/fine_tuning/jobs/ftjob-${randomBytes(16).toString('hex')}`,
  ]) {
    expect(await call('GET', path, own, other)).toMatchObject({ status: 404 });
  }
  expect(await call('DELETE', `/files/${id}`, own, other)).toMatchObject({ status: 404 });
  expect(reached()).toEqual([]);
});

test('without a provider in the headers nothing is forwarded', async () => {
  expect(await call('GET', '/files/file-there', {})).toMatchObject({ status: 404 });
  expect(await call('GET', '/batches/batch_there', {})).toMatchObject({ status: 404 });
  expect(reached()).toEqual([]);
});

test('a provider without such objects says so', async () => {
  const headers = { 'x-gateway-provider': 'anthropic', authorization: 'Bearer sk-ant-1' };
  const answer = await call('GET', '/files/file-there', headers);
  expect(answer).toMatchObject({ status: 400, body: { error: { code: 'unsupported_operation' } } });
});

test('the scopes of a key hold for objects at a provider too', async () => {
  const response = await fetch(`${platform.baseUrl}/api-keys`, {
    method: 'POST',
    headers: { 'x-gateway-api-key': platform.adminKey, 'content-type': 'application/json' },
    body: JSON.stringify({ name: 'reader', scopes: ['files.read', 'models.read'] }),
  });
  const { key } = (await response.json()) as { key: string };
  upstream.script((reply) => reply.json(200, { id: 'there' }));
  expect(await call('GET', '/files/file-there', atProvider, key)).toMatchObject({ status: 200 });
  for (const path of ['/files/file-there', '/models/ft:any']) {
    expect(await call('DELETE', path, atProvider, key)).toMatchObject({ status: 403 });
  }
  expect(reached()).toEqual(['GET /v1/files/file-there']);
});

import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLines, createBatch, ended } from './batch-kit.ts';
import { sdks } from './sdk.ts';

// Processes whose clock is two hours ahead of the database's. Every deadline is a time of the database's clock.

const hourMs = 3_600_000;
const sdk = sdks[0] as (typeof sdks)[number];
let platform: TestPlatform;

beforeAll(async () => {
  platform = await startPlatform({ movableClock: true, environment: { SLUICE_BATCH_EXPIRY: '1h' } });
  await platform.passTime(-2 * hourMs);
  // The next poll of the keys brings the news.
  const { databaseClock } = platform.api.platform;
  await eventually(
    () => databaseClock.now(),
    (now) => now < Date.now() - hourMs,
  );
});
afterAll(() => platform.stop());

const call = async (method: string, path: string, options: { key?: string; body?: object } = {}) => {
  const { key = platform.adminKey, body } = options;
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body ? { body: JSON.stringify(body) } : {}),
  });
  return { status: response.status, body: (await response.json()) as Record<string, never> };
};

const chat = (key: string, model: string) =>
  call('POST', '/chat/completions', { key, body: { model, messages: [{ role: 'user', content: 'hello' }] } });

const inDatabaseTime = (ms: number): string => new Date(Date.now() - 2 * hourMs + ms).toISOString();

test('a line of a batch is tried again until the deadline of the batch, not until it is that late here', async () => {
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
  const created = await createBatch(sdk, client, chatLines(3, { model: '@simulator/sim-fault-500-then-ok-2' }));
  const batch = await ended(client, created);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 3, completed: 3, failed: 0 } });
});

test('files and keys live until their time has come by the clock of the database', async () => {
  const { files } = platform.api.platform;
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('expires_after[anchor]', 'created_at');
  form.set('expires_after[seconds]', '3600');
  form.set('file', new Blob(['{}\n']), 'input.jsonl');
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  const uploaded = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
  const { id } = (await uploaded.json()) as { id: string };
  const expires_at = inDatabaseTime(hourMs);
  const made = await call('POST', '/api-keys', { body: { name: 'for an hour', expires_at } });
  const key = String(made.body['key']);
  const virtual = { name: 'hour', slug: 'hour', provider: 'openai-compatible', key: 'k', expires_at };
  const custom_host = platform.simulatorUrl;
  expect((await call('POST', '/virtual-keys', { body: { ...virtual, custom_host } })).status).toBe(200);

  await files.expire();
  expect((await call('GET', `/files/${id}`)).status).toBe(200);
  expect((await call('GET', '/files?limit=1')).body).toMatchObject({ data: [{ id }] });
  expect((await chat(key, '@hour/sim-small')).status).toBe(200);

  await platform.passTime(hourMs + 1_000);
  await eventually(
    () => chat(platform.adminKey, '@hour/sim-small'),
    ({ body }) => (body as { error?: { code?: string } }).error?.code === 'virtual_key_expired',
  );
  expect((await chat(key, '@simulator/sim-small')).status).toBe(401);
  expect((await call('GET', `/files/${id}`)).status).toBe(404);
  expect((await call('DELETE', `/files/${id}`)).status).toBe(404);
  await files.expire();
  const row = platform.database.db.selectFrom('file').select('deleted_at').where('id', '=', id);
  expect((await row.executeTakeFirstOrThrow()).deleted_at).not.toBeNull();
});

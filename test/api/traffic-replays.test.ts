import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, runBatch } from './batch-kit.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

const [sdk] = sdks as [Sdk];
let platform: TestPlatform;
let client: Client;
beforeAll(async () => {
  platform = await startPlatform();
  client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  await send('PUT', '/admin/workspaces/default', { defaults: { recording: { bodies: true } } });
});
afterAll(() => platform.stop());

type Json = Record<string, unknown>;
type Replay = Json & { id: string; status: string; batch_id: string; judge: { batch_id: string; seed: number } | null };

async function send(method: string, url: string, body?: object, headers: Record<string, string> = {}) {
  const response = await fetch(platform.baseUrl + url, {
    method,
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, headers: response.headers, body: (await response.json()) as Json };
}

const ended = async ({ id }: { id: string }): Promise<Replay> =>
  await eventually(
    async () => (await send('GET', `/replays/${id}`)).body as Replay,
    ({ status }) => status === 'completed' || status === 'failed',
    { timeoutMs: 60_000 },
  );

const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const response_format = { type: 'json_schema', json_schema: { name: 'city', schema } };

/** Makes live calls, waits until all of them are recorded with their bodies, and returns the filters that select them. */
async function call(...requests: Json[]): Promise<{ metadata: { test: string } }> {
  const test = randomUUID();
  for (const request of requests) {
    const body = { model: '@simulator/sim-small', ...request };
    const headers = { 'x-gateway-metadata': JSON.stringify({ test }) };
    const response = await fetch(`${platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    });
    await response.text();
  }
  const find = () => send('POST', '/replays', { filters: { metadata: { test } }, dry_run: true });
  const isRecorded = ({ body }: { body: Json }): boolean => {
    const { calls, left_out: out } = body['selection'] as { calls: number; left_out: Record<string, number> };
    return calls + (out['failed'] ?? 0) + (out['other_endpoint'] ?? 0) === requests.length;
  };
  await eventually(find, isRecorded);
  return { metadata: { test } };
}
const say = (content: string): Json => ({ messages: [{ role: 'user', content }] });

test('recorded calls are replayed with another model, and the report compares both sides', async () => {
  const filters = await call(
    say('one'),
    { ...say('two'), stream: true },
    { ...say('three'), response_format },
    { ...say('four'), model: '@simulator/sim-fault-400' },
  );
  const dry = await send('POST', '/replays', { filters, model: '@simulator/sim-large', dry_run: true });
  expect(dry.body).toMatchObject({
    object: 'traffic_replay.dry_run',
    selection: { calls: 3, left_out: { failed: 1 }, has_more: false },
    batch: { valid: true, request_counts: { total: 3 }, models: [{ model: '@simulator/sim-large', lines: 3 }] },
  });

  const same = await send('POST', '/replays', { filters });
  expect(same.body).toMatchObject({ status: 'running', filters, report: null, selection: { calls: 3 } });
  const equal = await ended(same.body as Replay);
  expect(equal).toMatchObject({
    status: 'completed',
    report: {
      original: { answered: 3, failed: 0, with_record: 3, valid: 1, invalid: 0 },
      replay: { answered: 3, failed: 0, with_record: 3, valid: 1, invalid: 0 },
      equal: 3,
      different: 0,
      not_compared: 0,
    },
  });
  const { data: batches } = (await send('GET', '/batches')).body as { data: Json[] };
  expect(batches.find(({ id }) => id === equal.batch_id)).toMatchObject({ metadata: { traffic_replay: equal.id } });

  const broken = await send('POST', '/replays', { filters, model: '@simulator/sim-fault-wrong-json' });
  expect(await ended(broken.body as Replay)).toMatchObject({
    report: { replay: { answered: 3, invalid: 1 }, equal: 0, different: 3 },
    differences: [{ kind: 'schema_broken' }, { kind: 'different' }, { kind: 'different' }],
  });
  const failing = await send('POST', '/replays', { filters, model: '@simulator/sim-fault-400' });
  expect(await ended(failing.body as Replay)).toMatchObject({
    report: { replay: { answered: 0, failed: 3 }, equal: 0, different: 0, not_compared: 3 },
    differences: [{ kind: 'replay_failed' }, { kind: 'replay_failed' }, { kind: 'replay_failed' }],
  });
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toBeNull();
});

test('a repeated request gets the first replay, which can be listed and deleted once it has ended', async () => {
  const body = { filters: await call(say('again')) };
  const once = { 'idempotency-key': randomUUID() };
  const first = await send('POST', '/replays', body, once);
  const again = await send('POST', '/replays', body, once);
  expect(again.body['id']).toBe(first.body['id']);
  expect(again.headers.get('idempotent-replayed')).toBe('true');
  const { id } = await ended(first.body as Replay);
  const { data } = (await send('GET', '/replays')).body as { data: Json[] };
  expect(data.find((each) => each['id'] === id)).not.toHaveProperty('differences');
  expect((await send('DELETE', `/replays/${id}`)).status).toBe(200);
  expect((await send('GET', `/replays/${id}`)).status).toBe(404);
});

test('the lines of a batch are replayed, and each names its original', async () => {
  const lines = [
    chatLine('a', say('first')),
    chatLine('b', { ...say('second'), model: '@simulator/sim-fault-400' }),
    chatLine('c', say('third')),
  ];
  const source = await runBatch(sdk, client, lines);
  const { body } = await send('POST', '/replays', { batch_id: source.id, model: '@simulator/sim-small' });
  const replay = await ended(body as Replay);
  expect(replay).toMatchObject({
    source_batch_id: source.id,
    report: { original: { answered: 2, failed: 1, with_record: 3 }, replay: { answered: 3, failed: 0 } },
    differences: expect.arrayContaining([
      { line: 2, custom_id: 'b', kind: 'original_failed', similarity: null, original_line: 2, verdict: null },
    ]),
  });
});

test('a judge compares different answers in a separate batch', async () => {
  const filters = await call(say('which one'), say('and this'));
  const { body } = await send('POST', '/replays', {
    filters,
    model: '@simulator/sim-large',
    judge: { model: '@simulator/sim-small', limit: 1, seed: 5 },
  });
  const replay = await ended(body as Replay);
  expect(replay).toMatchObject({
    status: 'completed',
    judge: { model: '@simulator/sim-small', limit: 1, seed: 5 },
    verdicts: { judged: 1 },
  });
  const { wins, ties, losses, unclear } = replay['verdicts'] as Record<string, number>;
  expect((wins ?? 0) + (ties ?? 0) + (losses ?? 0) + (unclear ?? 0)).toBe(1);
});

test('a replay needs the right to read bodies, something to replay, and a batch that has ended', async () => {
  const { body: key } = await send('POST', '/api-keys', { name: 'no bodies', scopes: ['batches.write', 'chat.write'] });
  const headers = { authorization: `Bearer ${String(key['key'])}` };
  const refused = await send('POST', '/replays', { filters: {} }, headers);
  expect([refused.status, refused.body]).toMatchObject([403, { error: { code: 'missing_scope' } }]);
  const nothing = await send('POST', '/replays', { filters: { metadata: { test: 'nothing' } } });
  expect([nothing.status, nothing.body]).toMatchObject([409, { error: { code: 'nothing_to_replay' } }]);
  const both = await send('POST', '/replays', { filters: {}, batch_id: 'batch_1' });
  expect([both.status, both.body]).toMatchObject([400, { error: { param: 'batch_id' } }]);
  expect((await send('POST', '/replays', { batch_id: 'batch_none' })).status).toBe(404);
});

import { afterAll, beforeAll, expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { chatLine, createBatch, ended, resultsOf, type Batch } from './batch-kit.ts';
import { postJson, storeVirtualKey } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

// BATCH-16: a batch that is paused starts no line, loses none, and goes on where it stopped.

const [sdk] = sdks as [Sdk];
let platform: TestPlatform;
let upstream: Upstream;
let client: Client;
let calls: string[] = [];
let isLimited = false;
/** How long an answer takes. */
let answerMs = 5;

type Paused = Batch & { paused_at: number | null };

beforeAll(async () => {
  upstream = await startUpstream();
  upstream.script(async (reply, { body }) => {
    const { messages } = JSON.parse(body.toString()) as { messages: { content: string }[] };
    calls.push(messages[0]?.content ?? '');
    if (isLimited) return reply.json(429, { error: { message: 'Slow down.' } }, { 'retry-after': '60' });
    await sleep(answerMs);
    const choices = [{ index: 0, message: { role: 'assistant', content: 'Yes' }, finish_reason: 'stop' }];
    reply.json(200, { id: 'x', object: 'chat.completion', created: 1, model: 'any', choices });
  });
  const environment = { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', SLUICE_CALLS_MAX: '2', SLUICE_CHUNK_LINES: '20' };
  platform = await startPlatform({ environment });
  await storeVirtualKey(platform, 'scripted', upstream.url.href);
  client = new sdk.OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey });
});
afterAll(async () => {
  await platform.stop();
  await upstream.stop();
});

const lines = Array.from({ length: 100 }, (_value, index) =>
  chatLine(`line-${index + 1}`, { model: '@scripted/any', messages: [{ role: 'user', content: `line-${index + 1}` }] }),
);
const patience = { timeout: 15_000 };
const post = async ({ id }: { id: string }, what: 'pause' | 'resume'): Promise<Paused> => {
  const response = await postJson(platform, `/batches/${id}/${what}`, {});
  expect(response.status).toBe(200);
  return (await response.json()) as Paused;
};
const waitsOf = async ({ id }: { id: string }): Promise<object[]> =>
  ((await client.batches.retrieve(id)) as Batch & { waits: object[] }).waits;
/** Starts a batch, pauses it when it has results, and waits until none of its chunks is running. */
async function pauseHalfway(): Promise<{ batch: Paused; calls: number }> {
  calls = [];
  // Two calls at a time take 15 seconds for all lines, so that the pause comes before the end on a slow machine too.
  answerMs = 300;
  const created = await createBatch(sdk, client, lines);
  const completed = async (): Promise<number> =>
    (await client.batches.retrieve(created.id)).request_counts?.completed ?? 0;
  await expect.poll(completed, patience).toBeGreaterThan(0);
  const batch = await post(created, 'pause');
  expect(batch).toMatchObject({ status: 'in_progress', paused_at: expect.any(Number), expires_at: created.expires_at });
  const openStates = async (): Promise<string[]> => {
    const rows = await platform.database.db
      .selectFrom('batch_chunk')
      .select('state')
      .where('batch_id', '=', created.id)
      .where('state', '<>', 'done')
      .execute();
    return [...new Set(rows.map(({ state }) => state))];
  };
  await expect.poll(openStates, patience).toEqual(['ready']);
  answerMs = 5;
  return { batch, calls: calls.length };
}

test('a paused batch starts no line; resumed, it calls each of the others once', async () => {
  const { batch, calls: before } = await pauseHalfway();
  expect(before).toBeLessThan(100);
  expect((await waitsOf(batch))[0]).toMatchObject({ reason: 'paused', since: batch.paused_at, until: null });
  // A pause of a paused batch is no second event.
  expect((await post(batch, 'pause')).paused_at).toBe(batch.paused_at);
  const { request_counts: counts } = await client.batches.retrieve(batch.id);
  // All that was called has its result, and nothing was called since.
  expect(counts).toEqual({ total: 100, completed: before, failed: 0 });
  expect(calls).toHaveLength(before);
  const other = await ended(client, await createBatch(sdk, client, lines.slice(0, 2)));
  expect(other.status).toBe('completed');
  expect(calls).toHaveLength(before + 2);

  calls.splice(before);
  expect((await post(batch, 'resume')).paused_at).toBeNull();
  const done = await ended(client, batch);
  expect(await waitsOf(batch)).toEqual([]);
  expect(done).toMatchObject({ status: 'completed', request_counts: { total: 100, completed: 100, failed: 0 } });
  expect(new Set(calls).size).toBe(100);
  expect(calls).toHaveLength(100);
  const late = await postJson(platform, `/batches/${batch.id}/pause`, {});
  expect([late.status, await late.json()]).toMatchObject([
    409,
    { error: { message: expect.stringContaining("Cannot pause a batch with status 'completed'.") } },
  ]);
  expect((await postJson(platform, '/batches/batch_none/resume', {})).status).toBe(404);
}, 60_000);

test('a paused batch can be cancelled: what has a result keeps it', async () => {
  const { batch, calls: before } = await pauseHalfway();
  await client.batches.cancel(batch.id);
  const cancelled = (await ended(client, batch)) as Paused;
  expect(cancelled).toMatchObject({ status: 'cancelled', paused_at: null, request_counts: { completed: before } });
  const { customIds } = await resultsOf(client, cancelled);
  expect(customIds).toHaveLength(100);
  expect(calls).toHaveLength(before);
}, 60_000);

test('a batch says that its lines wait for a rate limit, for which model and until when', async () => {
  isLimited = true;
  const batch = await createBatch(sdk, client, lines.slice(0, 3));
  const limited = { reason: 'rate_limited', target: 'scripted', model: 'any', until: expect.any(Number) };
  await expect.poll(() => waitsOf(batch), patience).toMatchObject([{ ...limited, lines: expect.any(Number) }]);
  const { data } = await client.batches.list({ limit: 1 });
  expect(data[0]).not.toHaveProperty('waits');
  await client.batches.cancel(batch.id);
  expect((await ended(client, batch)).status).toBe('cancelled');
  expect(await waitsOf(batch)).toEqual([]);
}, 60_000);

test('a batch that no worker has begun is queued', async () => {
  const other = await startPlatform({ worker: false });
  try {
    const reader = new sdk.OpenAI({ baseURL: other.baseUrl, apiKey: other.adminKey });
    const { id } = await createBatch(sdk, reader, [chatLine('line-1')]);
    const shown = (await reader.batches.retrieve(id)) as Batch & { waits: object[] };
    expect(shown).toMatchObject({ status: 'validating', waits: [{ reason: 'queued' }] });
    await other.startWorker();
    expect(await ended(reader, { id })).toMatchObject({ status: 'completed', waits: [] });
  } finally {
    await other.stop();
  }
}, 60_000);

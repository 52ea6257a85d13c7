import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

// Anthropic's SDK, unchanged, with batches whose requests go to a provider that only has chat completions.

let platform: TestPlatform;
let client: Anthropic;

beforeAll(async () => {
  platform = await startPlatform();
  client = new Anthropic({ apiKey: platform.adminKey, baseURL: new URL(platform.baseUrl).origin, maxRetries: 0 });
});
afterAll(() => platform.stop());

const request = (custom_id: string, model = '@simulator/sim-small') => ({
  custom_id,
  params: { model, max_tokens: 100, messages: [{ role: 'user' as const, content: `Say\n${custom_id}.` }] },
});

const created: string[] = [];

async function create(batch: Parameters<typeof client.messages.batches.create>[0]) {
  const made = await client.messages.batches.create(batch);
  created.unshift(made.id);
  return made;
}

/** Waits for the end. A wait in vain shows what the batch waits for. */
async function ended(id: string) {
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  const { batch } = await eventually(
    async () => ({
      batch: await client.messages.batches.retrieve(id),
      detail: await (await fetch(`${platform.baseUrl}/batches/${id}`, { headers })).json(),
    }),
    ({ batch: { processing_status: status } }) => status === 'ended',
  );
  return batch;
}

async function resultsOf(id: string): Promise<Record<string, unknown>> {
  const results: Record<string, unknown> = {};
  for await (const { custom_id: customId, result } of await client.messages.batches.results(id))
    results[customId] = result;
  return results;
}

test('each request ends as a message or as an error', async () => {
  const requests = [request('good-1'), request('bad', '@simulator/sim-fault-400'), request('good-2')];
  const created = await create({ requests });
  expect(created).toMatchObject({ type: 'message_batch', processing_status: 'in_progress', results_url: null });
  const batch = await ended(created.id);
  expect(batch.request_counts).toEqual({ processing: 0, succeeded: 2, errored: 1, canceled: 0, expired: 0 });
  expect(await resultsOf(created.id)).toEqual({
    'good-1': { type: 'succeeded', message: expect.objectContaining({ type: 'message', role: 'assistant' }) },
    'good-2': { type: 'succeeded', message: expect.objectContaining({ stop_reason: 'end_turn' }) },
    bad: {
      type: 'errored',
      error: expect.objectContaining({
        type: 'error',
        error: expect.objectContaining({ type: 'invalid_request_error' }),
      }),
    },
  });
});

test('a batch that is cancelled says which requests were not made', async () => {
  const requests = Array.from({ length: 5 }, (_value, index) => request(`slow-${index}`, '@simulator/sim-small+3s'));
  const { id } = await create({ requests });
  const early = client.messages.batches.delete(id);
  await expect(early).rejects.toMatchObject({ status: 409 });
  expect((await client.messages.batches.cancel(id)).cancel_initiated_at).not.toBeNull();
  const { request_counts: counts } = await ended(id);
  const results = Object.values(await resultsOf(id));
  // None if it was cancelled before it ran. Requests that had begun by then still end.
  expect(results).toHaveLength(counts.canceled + counts.succeeded);
  expect(results.filter((result) => (result as { type: string }).type === 'canceled')).toHaveLength(counts.canceled);
});

test('a request that is wrong fails with its reason, and the others succeed', async () => {
  const streamed = request('streamed');
  const requests = [
    request('good'),
    { custom_id: 'bare', params: { model: '@simulator/sim-small' } as never },
    { ...streamed, params: { ...streamed.params, stream: true as never } },
    request('unknown', '@nowhere/sim-small'),
    request('unnamed', 'no-such-model'),
  ];
  const { id } = await create({ requests });
  expect((await ended(id)).request_counts).toMatchObject({ succeeded: 1, errored: 4 });
  const failed = (type: string, message: string) => ({
    type: 'errored',
    error: { type: 'error', error: { type, message: expect.stringContaining(message) } },
  });
  expect(await resultsOf(id)).toEqual({
    good: { type: 'succeeded', message: expect.objectContaining({ role: 'assistant' }) },
    bare: failed('invalid_request_error', 'messages'),
    streamed: failed('invalid_request_error', 'Streaming is not supported'),
    unknown: failed('invalid_request_error', "'nowhere'"),
    unnamed: failed('not_found_error', 'no-such-model'),
  });
});

test('a repeated ID refuses all requests, each with the reason', async () => {
  const { id } = await create({ requests: [request('same'), request('same')] });
  await ended(id);
  const error = expect.objectContaining({ type: 'invalid_request_error' });
  expect(await resultsOf(id)).toEqual({ same: { type: 'errored', error: { type: 'error', error } } });
});

test('lines that are not JSON have results as well', async () => {
  const { adminKey, baseUrl } = platform;
  const headers = { authorization: `Bearer ${adminKey}` };
  const form = new FormData();
  form.append('purpose', 'batch');
  form.append('file', new Blob(['{"custom_id":\n{"x":1}\n']), 'broken.jsonl');
  const uploaded = await fetch(`${baseUrl}/files`, { method: 'POST', headers, body: form });
  const { id: input_file_id } = (await uploaded.json()) as { id: string };
  const answer = await fetch(`${baseUrl}/batches`, {
    method: 'POST',
    headers: { ...headers, 'content-type': 'application/json' },
    body: JSON.stringify({ input_file_id, endpoint: '/v1/messages', completion_window: '24h' }),
  });
  const { id } = (await answer.json()) as { id: string };
  created.unshift(id);
  await ended(id);
  const results = [];
  for await (const result of await client.messages.batches.results(id)) results.push(result);
  expect(results).toMatchObject([{ custom_id: null, result: { type: 'errored' } }, { custom_id: null }]);
});

test('batches are listed in pages in both directions, without those of other endpoints', async () => {
  const all = (await client.messages.batches.list({ limit: 100 })).data.map(({ id }) => id);
  expect(all).toEqual(created);
  const first = await client.messages.batches.list({ limit: 2 });
  expect({ ids: first.data.map(({ id }) => id), more: first.has_more }).toEqual({ ids: all.slice(0, 2), more: true });
  const next = await client.messages.batches.list({ limit: 2, after_id: all[1] as string });
  expect({ ids: next.data.map(({ id }) => id), more: next.has_more }).toEqual({ ids: all.slice(2, 4), more: true });
  const before = await client.messages.batches.list({ limit: 1, before_id: all[2] as string });
  expect({ ids: before.data.map(({ id }) => id), more: before.has_more }).toEqual({ ids: [all[1]], more: true });
});

test('a deleted batch has no results any more', async () => {
  const [{ id } = { id: '' }] = (await client.messages.batches.list()).data;
  expect(await client.messages.batches.delete(id)).toEqual({ id, type: 'message_batch_deleted' });
  await expect(client.messages.batches.results(id)).rejects.toMatchObject({ status: 404, type: 'not_found_error' });
});

test.each<[string, unknown, string]>([
  ['no requests', { requests: [] }, 'the list is empty'],
  ['a request without an ID', { requests: [{ params: {} }] }, "needs a text as its 'custom_id'"],
  ['a request without params', { requests: [{ custom_id: 'a' }] }, "needs an object as its 'params'"],
])('%s is refused, and nothing is stored', async (_what, body, message) => {
  const headers = { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' };
  const files = async () =>
    (await (await fetch(`${platform.baseUrl}/files`, { headers })).json()) as { data: unknown[] };
  const before = (await files()).data.length;
  const response = await fetch(`${platform.baseUrl}/messages/batches`, {
    method: 'POST',
    headers,
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ type: 'error', error: { message: expect.stringContaining(message) } });
  expect((await files()).data).toHaveLength(before);
});

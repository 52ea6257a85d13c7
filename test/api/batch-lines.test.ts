import { afterAll, beforeAll, expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { chatLine, createBatch, ended, resultsOf, type Batch } from './batch-kit.ts';
import { postJson, storeVirtualKey } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

// What people look at when a batch did not go as they hoped: its lines, what made them fail, and the batch that repeats them.

const [sdk] = sdks as [Sdk];
let platform: TestPlatform;
let upstream: Upstream;
let client: Client;
/** Once the provider is well, it answers what it refused before. */
let isWell = false;

type Line = {
  line: number;
  custom_id: string;
  outcome: string;
  status_code: number | null;
  error: { code: string; message: string } | null;
  model: string | null;
  usage: object | null;
  result_id: string;
};
type Page = { data: Line[]; last_id: string | null; has_more: boolean; searched_lines: number };

const get = async (path: string): Promise<Response> =>
  await fetch(`${platform.baseUrl}${path}`, { headers: { authorization: `Bearer ${platform.adminKey}` } });
const linesOf = async ({ id }: { id: string }, query: Record<string, string> = {}): Promise<Page> => {
  const response = await get(`/batches/${id}/lines?${new URLSearchParams(query).toString()}`);
  expect(response.status).toBe(200);
  return (await response.json()) as Page;
};
const numbersOf = ({ data }: Page): number[] => data.map(({ line }) => line);
const patience = { timeout: 15_000 };
const codeOf = async (response: Response): Promise<string> =>
  ((await response.json()) as { error: { code: string } }).error.code;

beforeAll(async () => {
  upstream = await startUpstream();
  upstream.script(async (reply, { body }) => {
    const { model, messages } = JSON.parse(body.toString()) as { model: string; messages: { content: string }[] };
    const text = messages[0]?.content ?? '';
    if (text.includes('slow') && !isWell) await sleep(400);
    if (text.includes('bad') && !isWell)
      return reply.json(400, { error: { code: 'content_filter', message: 'This is not allowed.', type: 'invalid' } });
    if (text.includes('large') && !isWell)
      return reply.json(413, { error: { code: 'too_large', message: 'Too large.' } });
    const usage = { prompt_tokens: 5, completion_tokens: 7, total_tokens: 12 };
    const choices = [{ index: 0, message: { role: 'assistant', content: `Ohé ${text}` }, finish_reason: 'stop' }];
    reply.json(200, { id: 'x', object: 'chat.completion', created: 1, model: `${model}-2026`, choices, usage });
  });
  platform = await startPlatform({ environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', SLUICE_CALLS_MAX: '4' } });
  await storeVirtualKey(platform, 'scripted', upstream.url.href);
  client = new sdk.OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey });
});
afterAll(async () => {
  await platform.stop();
  await upstream.stop();
});

const line = (id: string, text: string): object =>
  chatLine(id, { model: '@scripted/any', messages: [{ role: 'user', content: text }] });
const run = async (lines: object[]): Promise<Batch> => await ended(client, await createBatch(sdk, client, lines));

test('lines are listed by number, found by what they ended as, and shown one by one with request and result', async () => {
  isWell = false;
  const batch = await run([
    ...Array.from({ length: 60 }, (_value, index) => line(`good-${index + 1}`, 'fine')),
    line('refused', 'bad words'),
    line('heavy', 'large thing'),
    ...Array.from({ length: 40 }, (_value, index) => line(`more-${index + 1}`, 'fine again')),
  ]);
  expect(batch.status).toBe('completed');
  const first = await linesOf(batch, { limit: '50' });
  expect(numbersOf(first)).toEqual(Array.from({ length: 50 }, (_value, index) => index + 1));
  expect(first.data[0]).toMatchObject({
    custom_id: 'good-1',
    outcome: 'completed',
    status_code: 200,
    error: null,
    model: 'any-2026',
    usage: { input_tokens: 5, output_tokens: 7 },
  });
  const rest = await linesOf(batch, { limit: '100', after: first.last_id ?? '' });
  expect(numbersOf(rest)).toEqual(Array.from({ length: 52 }, (_value, index) => index + 51));
  expect(rest.has_more).toBe(false);

  expect(numbersOf(await linesOf(batch, { outcome: 'failed' }))).toEqual([61, 62]);
  expect(numbersOf(await linesOf(batch, { outcome: 'failed', limit: '1' }))).toEqual([61]);
  expect(numbersOf(await linesOf(batch, { outcome: 'failed', limit: '1', after: '61' }))).toEqual([62]);
  expect(numbersOf(await linesOf(batch, { code: 'content_filter' }))).toEqual([61]);
  expect(numbersOf(await linesOf(batch, { status_code: '413' }))).toEqual([62]);
  expect(numbersOf(await linesOf(batch, { custom_id: 'more-7' }))).toEqual([69]);
  expect(numbersOf(await linesOf(batch, { model: 'any-2026', limit: '100' }))).toHaveLength(100);
  expect(numbersOf(await linesOf(batch, { search: 'large thing' }))).toEqual([62]);
  expect(numbersOf(await linesOf(batch, { search: 'Ohé fine again', limit: '100' }))).toHaveLength(40);
  expect(await linesOf(batch, { outcome: 'pending' })).toMatchObject({
    data: [],
    has_more: false,
    searched_lines: 102,
  });

  const one = (await (await get(`/batches/${batch.id}/lines/61`)).json()) as Line & Record<string, object>;
  expect(one).toMatchObject({
    line: 61,
    error: { code: 'content_filter', message: 'This is not allowed.' },
    request: { custom_id: 'refused', body: { messages: [{ content: 'bad words' }] } },
    result: { custom_id: 'refused', response: { status_code: 400 } },
  });
  const { errors } = await resultsOf(client, batch);
  expect(one.result_id).toBe(errors[0]?.id);
  await expect
    .poll(async () => ((await (await get(`/batches/${batch.id}/lines/62`)).json()) as { log: object | null }).log)
    .toMatchObject({ attempts: 1, provider: 'openai-compatible' });
  for (const unknown of ['0', '103', '99999999999', 'x']) {
    expect((await get(`/batches/${batch.id}/lines/${unknown}`)).status).toBe(/^\d{1,10}$/.test(unknown) ? 404 : 400);
  }
  expect((await get(`/batches/${batch.id}/lines?after=x`)).status).toBe(400);
  expect((await get('/batches/batch_none/lines')).status).toBe(404);
});

test('failed lines are grouped by cause, and a batch repeats them, once however often it is asked', async () => {
  isWell = false;
  const batch = await run([
    ...Array.from({ length: 5 }, (_value, index) => line(`bad-${index}`, 'bad')),
    line('good', 'fine'),
    line('large', 'large'),
  ]);
  const failures = (await (await get(`/batches/${batch.id}/failures`)).json()) as object;
  expect(failures).toEqual({
    object: 'batch.failures',
    batch_id: batch.id,
    failed_lines: 6,
    examined_lines: 6,
    groups: [
      { code: 'content_filter', status_code: 400, count: 5, lines: [1, 2, 3, 4, 5], message: 'This is not allowed.' },
      { code: 'too_large', status_code: 413, count: 1, lines: [7], message: 'Too large.' },
    ],
    other_lines: 0,
  });

  isWell = true;
  const headers = { 'idempotency-key': 'retry once' };
  const answers = await Promise.all(
    [1, 2].map(async () => (await postJson(platform, `/batches/${batch.id}/retry`, {}, headers)).json()),
  );
  const [retry, again] = answers as [Batch & { retry_of: string }, Batch];
  expect(again.id).toBe(retry.id);
  expect(retry).toMatchObject({ retry_of: batch.id, endpoint: '/v1/chat/completions' });
  const repeated = await ended(client, retry);
  expect(repeated.request_counts).toEqual({ total: 6, completed: 6, failed: 0 });
  const { customIds } = await resultsOf(client, repeated);
  expect(customIds.toSorted()).toEqual(['bad-0', 'bad-1', 'bad-2', 'bad-3', 'bad-4', 'large']);

  expect(await codeOf(await postJson(platform, `/batches/${repeated.id}/retry`, {}))).toBe('nothing_to_retry');
  expect(await codeOf(await postJson(platform, `/batches/${batch.id}/retry`, { lines: 'unfinished' }))).toBe(
    'nothing_to_retry',
  );
  await client.files.delete(batch.input_file_id);
  expect(await codeOf(await postJson(platform, `/batches/${batch.id}/retry`, {}))).toBe('input_file_deleted');
});

test('lines of a batch that was cancelled: shown while they wait, and repeated afterwards', async () => {
  isWell = false;
  const slow = Array.from({ length: 40 }, (_value, index) => line(`slow-${index + 1}`, 'slow'));
  const batch = await createBatch(sdk, client, [line('refused', 'bad'), ...slow]);
  await expect.poll(async () => (await linesOf(batch, { outcome: 'failed' })).data.length, patience).toBe(1);
  const pending = await linesOf(batch, { outcome: 'pending', limit: '1', after: '40' });
  expect(pending.data).toMatchObject([{ line: 41, custom_id: 'slow-40', status_code: null, error: null }]);
  expect(numbersOf(await linesOf(batch, { custom_id: 'slow-39' }))).toEqual([40]);
  const early = await postJson(platform, `/batches/${batch.id}/retry`, {});
  expect([early.status, await codeOf(early)]).toEqual([409, 'batch_not_ended']);
  await client.batches.cancel(batch.id);
  const cancelled = await ended(client, batch);
  expect(cancelled.status).toBe('cancelled');
  const missed = (await linesOf(batch, { code: 'batch_cancelled', limit: '100' })).data.map(({ custom_id: id }) => id);
  expect(missed).toContain('slow-40');
  const failures = (await (await get(`/batches/${batch.id}/failures`)).json()) as { groups: object[] };
  expect(failures.groups).toMatchObject([
    { code: 'batch_cancelled', count: missed.length },
    { code: 'content_filter', count: 1 },
  ]);
  isWell = true;
  const asked = { lines: 'unfinished', completion_window: 'immediate' };
  const retry = (await (await postJson(platform, `/batches/${batch.id}/retry`, asked)).json()) as Batch;
  expect(retry.completion_window).toBe('immediate');
  const { customIds } = await resultsOf(client, await ended(client, retry));
  expect(customIds).toEqual(missed);
});

type Result = {
  cursor: string;
  custom_id: string | null;
  object?: string;
  status?: string;
  error: { code: string } | null;
};
const streamOf = async ({ id }: { id: string }, query: Record<string, string> = {}): Promise<Result[]> => {
  const response = await get(`/batches/${id}/results?${new URLSearchParams(query).toString()}`);
  expect([response.status, response.headers.get('content-type')]).toEqual([200, 'application/x-ndjson']);
  return parseLines(await response.text());
};
const parseLines = (text: string): Result[] =>
  text
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Result);
/** The first result of a running batch, as soon as it arrives. */
async function firstOf({ id }: { id: string }): Promise<Result> {
  const response = await get(`/batches/${id}/results?wait=30`);
  let text = '';
  for await (const piece of response.body ?? []) {
    text += Buffer.from(piece).toString();
    if (text.includes('\n')) break; // Leaving the loop cancels the response.
  }
  return parseLines(text)[0] as Result;
}
const isResult = ({ object }: Result): boolean => object === undefined;

test('results are streamed while a batch runs, in the order in which they were settled, and from any cursor on', async () => {
  const lines = Array.from({ length: 150 }, (_value, index) =>
    chatLine(`r-${index}`, {
      model: '@scripted/m',
      messages: [{ role: 'user', content: index % 7 === 0 ? 'bad' : 'ok' }],
    }),
  );
  isWell = false;
  const batch = await createBatch(sdk, client, [
    ...lines,
    chatLine('last', { model: '@scripted/m', messages: [{ role: 'user', content: 'slow' }] }),
  ]);
  const streamed = await streamOf(batch, { wait: '30' });
  expect(streamed.at(-1)).toEqual({ object: 'batch.results_end', batch_id: batch.id, status: 'completed' });
  const results = streamed.filter(isResult);
  const done = await ended(client, batch);
  const { output, errors } = await resultsOf(client, done);
  const byId = (one: { custom_id: string | null }, other: { custom_id: string | null }): number =>
    String(one.custom_id).localeCompare(String(other.custom_id));
  expect(results.map(({ cursor: _cursor, ...line }) => line).toSorted(byId)).toEqual(
    [...output, ...errors].toSorted(byId),
  );
  expect(new Set(results.map(({ cursor }) => cursor)).size).toBe(151);
  for (const at of [0, 1, 63, 64, 65, 149, 150]) {
    const rest = await streamOf(batch, { after: results[at]?.cursor ?? '' });
    expect(rest.filter(isResult)).toEqual(results.slice(at + 1));
  }
  const failed = await streamOf(batch, { status: 'failed' });
  expect(
    failed
      .filter(isResult)
      .map((line) => String(line.custom_id))
      .toSorted((a, b) => a.localeCompare(b)),
  ).toEqual(errors.map(({ custom_id: id }) => id).toSorted((a, b) => a.localeCompare(b)));
});

test('a stream without a wait returns what there is; after a cancel it has the lines that were never called', async () => {
  isWell = false;
  const slow = (index: number) =>
    chatLine(`s-${index}`, { model: '@scripted/m', messages: [{ role: 'user', content: 'slow' }] });
  const batch = await createBatch(
    sdk,
    client,
    Array.from({ length: 60 }, (_value, index) => slow(index)),
  );
  expect(await streamOf(batch)).toEqual([]);
  const first = await firstOf(batch);
  await client.batches.cancel(batch.id);
  const rest = await streamOf(batch, { after: first.cursor, wait: '30' });
  expect(rest.at(-1)).toMatchObject({ object: 'batch.results_end', status: 'cancelled' });
  const all = [first, ...rest.filter(isResult)];
  expect(all.map((line) => String(line.custom_id)).toSorted()).toEqual(
    Array.from({ length: 60 }, (_value, index) => `s-${index}`).toSorted(),
  );
  const unanswered = all.filter(({ error }) => error?.code === 'batch_cancelled');
  expect(unanswered.length).toBeGreaterThan(0);
  const afterOne = await streamOf(batch, { after: unanswered[0]?.cursor ?? '', status: 'failed' });
  expect(afterOne.filter(isResult)).toEqual(unanswered.slice(1));
});

test('a stream refuses a cursor of another form and a wait of more than a minute', async () => {
  const batch = await createBatch(sdk, client, [chatLine('one', { model: '@scripted/m' })]);
  const refused = await get(`/batches/${batch.id}/results?after=1`);
  expect([refused.status, await codeOf(refused)]).toEqual([400, 'invalid_value']);
  const long = await get(`/batches/${batch.id}/results?wait=61`);
  expect(long.status).toBe(400);
});

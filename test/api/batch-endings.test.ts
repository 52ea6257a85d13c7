import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { sleep } from '#libs/kernel/sleep.ts';
import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type UpstreamReply } from '#test/upstream.ts';
import { chatLines, createBatch, ended, resultsOf, type Batch } from './batch-kit.ts';
import { storeVirtualKey } from './scripted-provider.ts';
import { getFailureCode, sdks, watchCalls, type Client, type Sdk } from './sdk.ts';

// BATCH-5 to BATCH-8, RESULT-4: batches that end early, or whose worker dies. They mostly wait, so they run side by side.

const slow = { model: '@simulator/sim-small+250ms' };
const endless = { model: '@simulator/sim-small+600000ms' };
// Less than the ten minutes that lines have after a cancel.
const windowMs = 300_000;
const window = { SLUICE_BATCH_EXPIRY: '5m' };
const completion = {
  object: 'chat.completion',
  model: 'any',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }],
};

const unanswered = {
  batch_cancelled: 'This request was cancelled before it could be executed.',
  batch_expired: 'This request could not be executed before the completion window expired.',
};

/** Both files of a batch that ended early: answered lines in one, all others in the other, each line once. */
async function expectDivided(
  client: Client,
  batch: Batch,
  { code, total }: { code: keyof typeof unanswered; total: number },
): Promise<void> {
  const { output, errors, customIds } = await resultsOf(client, batch);
  expect(customIds).toHaveLength(total);
  expect(new Set(customIds)).toEqual(new Set(chatLines(total).map((line) => line['custom_id'])));
  expect(batch.request_counts).toEqual({ total, completed: output.length, failed: 0 });
  expect(output.length).toBeGreaterThan(0);
  expect(errors.length).toBeGreaterThan(0);
  expect(output.map(({ response }) => response?.status_code)).toEqual(Array(output.length).fill(200));
  expect(errors).toEqual(
    errors.map(({ custom_id }) => ({
      id: expect.stringMatching(/^batch_req_[0-9a-f]{32}$/),
      custom_id,
      response: null,
      error: { code, message: unanswered[code] },
    })),
  );
}

const hasCompleted = (batch: Batch): boolean => (batch.request_counts?.completed ?? 0) > 0;

/** Eight calls at a time, so that a batch takes long enough to be interrupted. */
const environment = {
  SLUICE_CALLS_MAX: '8',
  SLUICE_CHUNK_LINES: '40',
  SLUICE_CHUNKS_MAX: '2',
  SLUICE_EGRESS_ALLOW: '127.0.0.0/8',
};

/** A platform for one test. */
async function ownPlatform(
  { onTestFinished }: TestContext,
  options: { worker?: boolean; movableClock?: boolean; environment?: Record<string, string> } = {},
): Promise<TestPlatform> {
  const platform = await startPlatform({ ...options, environment: { ...environment, ...options.environment } });
  onTestFinished(() => platform.stop());
  return platform;
}

/** Longer than housekeeping needs to look for overdue batches, once a second. */
const housekeepingMs = 2_500;

const clientOf = ({ OpenAI }: Sdk, { adminKey, baseUrl }: TestPlatform): Client =>
  new OpenAI({ apiKey: adminKey, baseURL: baseUrl });

/** Does the same with every SDK at once; resolves with what came of each, and the client that it was done with. */
function bySdk<Result>(
  platform: TestPlatform,
  work: (sdk: Sdk, client: Client) => Promise<Result>,
): Promise<{ client: Client; result: Result }[]> {
  const all = sdks.map(async (sdk) => {
    const client = clientOf(sdk, platform);
    return { client, result: await work(sdk, client) };
  });
  return Promise.all(all);
}

function startWorkerProcess({ onTestFinished }: TestContext, { environment }: TestPlatform): ChildProcess {
  const worker = spawn(process.execPath, ['apps/worker/main.ts'], {
    env: { ...process.env, ...environment, SLUICE_LOG_LEVEL: 'error' },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  onTestFinished(() => void worker.kill('SIGKILL'));
  return worker;
}

// The claims of a dead worker are missed after ten seconds; the same for every SDK, so it is done once, and begun first.
test.concurrent('after kill -9 in the middle of a batch every line is in exactly one file, and counted once', async (context) => {
  const platform = await ownPlatform(context, { worker: false });
  const [sdk, other] = sdks;
  if (!sdk || !other) throw new Error('two SDKs are needed');
  const [writer, reader] = [clientOf(sdk, platform), clientOf(other, platform)];
  const total = 120;
  const lines = chatLines(total, slow).map((line, index) =>
    index % 10 === 3 ? { ...line, body: { ...(line['body'] as object), model: '@simulator/sim-fault-400' } } : line,
  );
  const first = startWorkerProcess(context, platform);
  const { id } = await createBatch(sdk, writer, lines);
  await eventually(() => writer.batches.retrieve(id), hasCompleted);
  first.kill('SIGKILL');
  await once(first, 'exit');
  expect((await writer.batches.retrieve(id)).status).toBe('in_progress');
  startWorkerProcess(context, platform);
  const batch = await ended(writer, { id }, 100_000);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total, completed: 108, failed: 12 } });
  const { output, errors, customIds } = await resultsOf(reader, batch);
  expect([output.length, errors.length]).toEqual([108, 12]);
  expect(new Set(customIds)).toEqual(new Set(lines.map((line) => line['custom_id'])));
  expect(errors.map(({ response }) => response?.status_code)).toEqual(Array(12).fill(400));
  const tokens = output.map(({ response }) => response?.body['usage'] as { total_tokens: number });
  expect(batch.usage?.total_tokens).toBe(tokens.reduce((sum, usage) => sum + usage.total_tokens, 0));
}, 120_000);

describe.concurrent('cancelled while running', () => {
  let platform: TestPlatform;
  beforeAll(async () => {
    platform = await startPlatform({ environment });
  });
  afterAll(() => platform.stop());

  test.each(sdks)(
    'cancel while running answers cancelling, keeps what is done, and writes the rest as batch_cancelled ($name)',
    async (sdk) => {
      const client = clientOf(sdk, platform);
      const total = 120;
      const { id } = await createBatch(sdk, client, chatLines(total, slow));
      const running = await eventually(() => client.batches.retrieve(id), hasCompleted);
      expect(running.status).toBe('in_progress');
      const cancelling = await client.batches.cancel(id);
      expect(cancelling).toMatchObject({
        id,
        status: 'cancelling',
        cancelling_at: expect.any(Number),
        cancelled_at: null,
        output_file_id: null,
        error_file_id: null,
      });
      const batch = await ended(client, { id });
      expect(batch).toMatchObject({
        status: 'cancelled',
        cancelling_at: cancelling.cancelling_at,
        cancelled_at: expect.any(Number),
        finalizing_at: expect.any(Number),
        completed_at: null,
        expired_at: null,
        failed_at: null,
      });
      expect(batch.cancelled_at).toBeGreaterThanOrEqual(batch.cancelling_at ?? Number.POSITIVE_INFINITY);
      await expectDivided(client, batch, { code: 'batch_cancelled', total });
      expect(batch.request_counts?.completed).toBeGreaterThanOrEqual(running.request_counts?.completed ?? 0);
    },
  );

  test.for(sdks)(
    'cancelling twice is 200 twice, and again when it is cancelled ($name)',
    async (sdk, { onTestFinished }) => {
      const client = clientOf(sdk, platform);
      const sent = watchCalls(platform.baseUrl);
      // Lines that have no answer keep the batch from its end until it is cancelled for the second time.
      const upstream = await startUpstream();
      onTestFinished(() => upstream.stop());
      await storeVirtualKey(platform, sdk.name.replace(' ', '-'), upstream.url.href);
      const held: UpstreamReply[] = [];
      upstream.script((reply) => {
        if (upstream.requests.length === 1) reply.json(200, completion);
        else held.push(reply);
      });
      const { id } = await createBatch(sdk, client, chatLines(60, { model: `@${sdk.name.replace(' ', '-')}/any` }));
      await eventually(() => client.batches.retrieve(id), hasCompleted);
      const first = await client.batches.cancel(id);
      const second = await client.batches.cancel(id);
      upstream.script((reply) => reply.json(200, completion));
      for (const reply of held) reply.json(200, completion);
      expect(second).toMatchObject({ status: 'cancelling', cancelling_at: first.cancelling_at });
      const batch = await ended(client, { id });
      const third = await client.batches.cancel(id);
      // Only the answer to GET says what lines wait for and do.
      expect({ ...third, waits: [], gateway: expect.any(Object) }).toEqual(batch);
      expect(sent.to(new RegExp(`^POST /v1/batches/${id}/cancel$`))).toHaveLength(3);
    },
  );
});

test.concurrent('a batch that is cancelled before it runs has no line, no file and counts of 0', async (context) => {
  const platform = await ownPlatform(context, { worker: false });
  const cancelled = await bySdk(platform, async (sdk, client) => {
    const created = await createBatch(sdk, client, chatLines(3, slow));
    const cancelling = await client.batches.cancel(created.id);
    expect(cancelling).toMatchObject({ status: 'cancelling', in_progress_at: null });
    return created;
  });
  await platform.startWorker();
  for (const { client, result: created } of cancelled) {
    const batch = await ended(client, created);
    expect(batch).toMatchObject({
      status: 'cancelled',
      in_progress_at: null,
      output_file_id: null,
      error_file_id: null,
      errors: null,
      request_counts: { total: 0, completed: 0, failed: 0 },
    });
  }
  expect(platform.simulator.stats().requests).toEqual({});
});

test.concurrent('a batch past its window is expired, with its done lines kept and the rest batch_expired', async (context) => {
  const platform = await ownPlatform(context, { movableClock: true, environment: window });
  const total = 120;
  const running = await bySdk(platform, async (sdk, client) => {
    // The last lines outlast the window, so that the batch cannot be completed before it.
    const limited = chatLines(total, { model: '@simulator/sim-fault-429-after-99999' });
    const lines = [
      ...chatLines(total, slow).slice(0, 100),
      ...chatLines(total, endless).slice(100, 110),
      ...limited.slice(110),
    ];
    const created = await createBatch(sdk, client, lines);
    expect(created.expires_at).toBe(created.created_at + windowMs / 1_000);
    await eventually(() => client.batches.retrieve(created.id), hasCompleted);
    return created;
  });
  await platform.passTime(windowMs);
  for (const { client, result: created } of running) {
    const batch = await ended(client, created);
    expect(batch).toMatchObject({
      status: 'expired',
      expires_at: created.expires_at,
      expired_at: expect.any(Number),
      completed_at: null,
      cancelling_at: null,
      cancelled_at: null,
      failed_at: null,
    });
    expect(batch.expired_at).toBeGreaterThanOrEqual(created.expires_at ?? Number.POSITIVE_INFINITY);
    await expectDivided(client, batch, { code: 'batch_expired', total });
    const error = await getFailureCode(client.batches.cancel(batch.id));
    expect(error).toMatchObject({ status: 409, code: null });
    expect(error.message).toContain("Cannot cancel a batch with status 'expired'.");
  }
});

test.concurrent('a batch whose window ends while it is cancelling is cancelled', async (context) => {
  // One chunk of a batch at a time, so that the lines of the second have not begun when the batch is cancelled.
  const chunks = { SLUICE_CALLS_MAX: '256', SLUICE_CHUNK_LINES: '8', SLUICE_CHUNKS_MAX: '1' };
  const platform = await ownPlatform(context, { movableClock: true, environment: { ...window, ...chunks } });
  const upstream = await startUpstream();
  context.onTestFinished(() => upstream.stop());
  await storeVirtualKey(platform, 'scripted', upstream.url.href);
  const held: UpstreamReply[] = [];
  upstream.script((reply) => void held.push(reply));
  const running = await bySdk(platform, (sdk, client) =>
    createBatch(sdk, client, chatLines(12, { model: '@scripted/any' })),
  );
  await eventually(
    () => held.length,
    (count) => count === 16,
  );
  for (const { client, result } of running) {
    expect((await client.batches.cancel(result.id)).status).toBe('cancelling');
  }
  await platform.passTime(windowMs + 1_000);
  await sleep(housekeepingMs);
  for (const { client, result } of running) {
    expect((await client.batches.retrieve(result.id)).status).toBe('cancelling');
  }
  // Lines that were under way at the cancel may finish, also after the window.
  for (const reply of held) reply.json(200, completion);
  for (const { client, result } of running) {
    const batch = await ended(client, result);
    expect(batch).toMatchObject({
      status: 'cancelled',
      expired_at: null,
      request_counts: { total: 12, completed: 8, failed: 0 },
    });
    expect(batch.cancelled_at).toBeGreaterThan(batch.expires_at ?? Number.POSITIVE_INFINITY);
    await expectDivided(client, batch, { code: 'batch_cancelled', total: 12 });
  }
});

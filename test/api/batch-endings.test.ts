import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { describe, expect, test, type TestContext } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLines, createBatch, ended, resultsOf, type Batch } from './batch-kit.ts';
import { errorOf, sdks, watchCalls, type Client, type Sdk } from './sdk.ts';

// Checks 7, 20, 21, 25 and 26 of openai-semantics.md 4.4: batches that end early, or whose worker dies. They mostly wait,
// so they run side by side, each with a platform of its own.

const slow = { model: '@simulator/sim-small+250ms' };

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

/** A platform for one test: eight calls at a time, so that a batch takes long enough to be interrupted. */
async function ownPlatform(
  { onTestFinished }: TestContext,
  options: { worker?: boolean; environment?: Record<string, string> } = {},
): Promise<TestPlatform> {
  const environment = { SLUICE_CALLS_MAX: '8', SLUICE_CHUNK_LINES: '40', SLUICE_CHUNKS_MAX: '2' };
  const platform = await startPlatform({ ...options, environment: { ...environment, ...options.environment } });
  onTestFinished(() => platform.stop());
  return platform;
}

const clientOf = ({ OpenAI }: Sdk, { adminKey, baseUrl }: TestPlatform): Client =>
  new OpenAI({ apiKey: adminKey, baseURL: baseUrl });

describe.concurrent.each(sdks)('$name', (sdk) => {
  test('check 20: cancel while running answers cancelling, keeps what is done, and writes the rest as batch_cancelled', async (context) => {
    const client = clientOf(sdk, await ownPlatform(context));
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
  });

  test('check 21: cancelling twice is 200 twice, and again when it is cancelled', async (context) => {
    const platform = await ownPlatform(context);
    const client = clientOf(sdk, platform);
    const sent = watchCalls(platform.baseUrl);
    const { id } = await createBatch(sdk, client, chatLines(60, slow));
    await eventually(() => client.batches.retrieve(id), hasCompleted);
    const first = await client.batches.cancel(id);
    const second = await client.batches.cancel(id);
    expect(second).toMatchObject({ status: 'cancelling', cancelling_at: first.cancelling_at });
    const batch = await ended(client, { id });
    const third = await client.batches.cancel(id);
    expect(third).toEqual(batch);
    expect(sent.to(new RegExp(`^POST /v1/batches/${id}/cancel$`))).toHaveLength(3);
  });

  test('check 20: a batch that is cancelled before it runs has no line, no file and counts of 0', async (context) => {
    const platform = await ownPlatform(context, { worker: false });
    const client = clientOf(sdk, platform);
    const created = await createBatch(sdk, client, chatLines(3, slow));
    const cancelling = await client.batches.cancel(created.id);
    expect(cancelling).toMatchObject({ status: 'cancelling', in_progress_at: null });
    await platform.startWorker();
    const batch = await ended(client, created);
    expect(batch).toMatchObject({
      status: 'cancelled',
      in_progress_at: null,
      output_file_id: null,
      error_file_id: null,
      errors: null,
      request_counts: { total: 0, completed: 0, failed: 0 },
    });
    expect(platform.simulator.stats().requests).toEqual({});
  });

  test('check 25: a batch past its window is expired, with its done lines kept and the rest batch_expired', async (context) => {
    const client = clientOf(sdk, await ownPlatform(context, { environment: { SLUICE_BATCH_EXPIRY: '5s' } }));
    const total = 400;
    const created = await createBatch(sdk, client, chatLines(total, slow));
    expect(created.expires_at).toBe(created.created_at + 5);
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
    expect(batch.expired_at).toBeGreaterThanOrEqual(created.created_at + 5);
    await expectDivided(client, batch, { code: 'batch_expired', total });
    const error = await errorOf(client.batches.cancel(batch.id));
    expect(error).toMatchObject({ status: 409, code: null });
    expect(error.message).toContain("Cannot cancel a batch with status 'expired'.");
  });

  test('check 26: a batch whose window ends while it is cancelling is cancelled', async (context) => {
    const platform = await ownPlatform(context, { environment: { SLUICE_BATCH_EXPIRY: '5s' } });
    const client = clientOf(sdk, platform);
    // Lines that are under way at the cancel may finish, and take until after the window.
    const { id } = await createBatch(sdk, client, chatLines(12, { model: '@simulator/sim-small+6500ms' }));
    await eventually(
      () => platform.simulator.stats().open_requests,
      (open) => open === 8,
    );
    const cancelling = await client.batches.cancel(id);
    expect(cancelling.status).toBe('cancelling');
    const batch = await ended(client, { id });
    expect(batch).toMatchObject({
      status: 'cancelled',
      expired_at: null,
      request_counts: { total: 12, completed: 8, failed: 0 },
    });
    expect(batch.cancelled_at).toBeGreaterThan(batch.expires_at ?? Number.POSITIVE_INFINITY);
    await expectDivided(client, batch, { code: 'batch_cancelled', total: 12 });
  });
});

function startWorkerProcess({ onTestFinished }: TestContext, { environment }: TestPlatform): ChildProcess {
  const worker = spawn(process.execPath, ['apps/worker/main.ts'], {
    env: { ...process.env, ...environment, SLUICE_LOG_LEVEL: 'error' },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  onTestFinished(() => void worker.kill('SIGKILL'));
  return worker;
}

// The claims of a dead worker are missed after ten seconds; the same for every SDK, so it is done once.
test.concurrent('check 7: after kill -9 in the middle of a batch every line is in exactly one file, and counted once', async (context) => {
  const platform = await ownPlatform(context, { worker: false });
  const [sdk, other] = sdks;
  if (!sdk || !other) throw new Error('two SDKs are needed');
  const [writer, reader] = [clientOf(sdk, platform), clientOf(other, platform)];
  const total = 240;
  const lines = chatLines(total, slow).map((line, index) =>
    index % 10 === 3 ? { ...line, body: { ...(line['body'] as object), max_tokens: -1 } } : line,
  );
  const first = startWorkerProcess(context, platform);
  const { id } = await createBatch(sdk, writer, lines);
  await eventually(() => writer.batches.retrieve(id), hasCompleted);
  first.kill('SIGKILL');
  await once(first, 'exit');
  expect((await writer.batches.retrieve(id)).status).toBe('in_progress');
  startWorkerProcess(context, platform);
  const batch = await ended(writer, { id }, 60_000);
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total, completed: 216, failed: 24 } });
  const { output, errors, customIds } = await resultsOf(reader, batch);
  expect([output.length, errors.length]).toEqual([216, 24]);
  expect(new Set(customIds)).toEqual(new Set(lines.map((line) => line['custom_id'])));
  expect(errors.map(({ response }) => response?.status_code)).toEqual(Array(24).fill(400));
  const tokens = output.map(({ response }) => response?.body['usage'] as { total_tokens: number });
  expect(batch.usage?.total_tokens).toBe(tokens.reduce((sum, usage) => sum + usage.total_tokens, 0));
});

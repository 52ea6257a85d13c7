import { expect, test, type TestContext } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, createBatch, ended, resultsOf } from './batch-kit.ts';
import { storeVirtualKey } from './scripted-provider.ts';
import { createWorkspace } from './second-workspace.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

const sdk = sdks[0] as Sdk;

type Setup = { platform: TestPlatform; client: Client; throttled: Record<string, unknown>[] };

const linesOf = (model: string, count = 40): Record<string, unknown>[] =>
  Array.from({ length: count }, (_value, index) => chatLine(`t${index}`, { model: `@simulator/${model}` }));

async function setUp(
  { onTestFinished }: TestContext,
  options: { worker?: boolean; environment?: Record<string, string> } = {},
): Promise<Setup> {
  const environment = { SLUICE_CALLS_MAX: '8', SLUICE_CHUNK_LINES: '4', ...options.environment };
  const platform = await startPlatform({ ...options, environment });
  onTestFinished(() => platform.stop());
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  return { platform, client, throttled: linesOf('sim-fault-429-after-30') };
}

const isRunning = ({ status }: { status: string }): boolean => status === 'in_progress';

/** Calls that reached the provider. */
const callsOf = ({ simulator }: TestPlatform): Promise<number> =>
  Promise.resolve(Object.values(simulator.stats().requests).reduce((sum, count) => sum + count, 0));

test('a cancelled batch whose lines all wait for a rate limit ends at once', async (context) => {
  const { client, throttled } = await setUp(context);
  const { id } = await createBatch(sdk, client, throttled);
  await eventually(() => client.batches.retrieve(id), isRunning);
  await client.batches.cancel(id);
  expect(await ended(client, { id }, 15_000)).toMatchObject({ status: 'cancelled' });
});

test('a batch whose provider asks for a pause does not hold up the batch of another model', async (context) => {
  const { client, throttled } = await setUp(context);
  const { id } = await createBatch(sdk, client, throttled);
  await eventually(() => client.batches.retrieve(id), isRunning);
  const other = await createBatch(sdk, client, [chatLine('a', { model: '@simulator/sim-echo' })]);
  expect(await ended(client, other, 15_000)).toMatchObject({ status: 'completed' });
});

test.each([
  ['the next of its attempts', 'sim-fault-500', { SLUICE_RETRY_BASE: '60s', SLUICE_RETRY_MAX: '1h' }],
  [
    'a limit of which nobody says how long it lasts',
    'sim-fault-429-none',
    { SLUICE_RETRY_BASE: '60s', SLUICE_RETRY_MAX: '1h' },
  ],
])('a cancel ends a line that waits for %s, and it calls no more', async (_what, model, environment) => {
  let platform: TestPlatform | undefined;
  try {
    const own = (platform = await startPlatform({ environment }));
    const client = new sdk.OpenAI({ apiKey: own.adminKey, baseURL: own.baseUrl });
    const { id } = await createBatch(sdk, client, linesOf(model, 5));
    await eventually(
      () => callsOf(own),
      (calls) => calls === 5,
    );
    await client.batches.cancel(id);
    const batch = await ended(client, { id }, 15_000);
    expect(batch).toMatchObject({ status: 'cancelled', request_counts: { total: 5, completed: 0 } });
    const { errors } = await resultsOf(client, batch);
    expect(errors.map(({ error }) => error?.code)).toEqual(Array(5).fill('batch_cancelled'));
    expect(await callsOf(own)).toBe(5);
  } finally {
    await platform?.stop();
  }
});

test('the healthy lines of a batch complete while others of it wait', async (context) => {
  const { client, throttled } = await setUp(context, { environment: { SLUICE_CHUNKS_MAX: '4' } });
  const healthy = Array.from({ length: 20 }, (_value, index) =>
    chatLine(`h${index}`, { model: '@simulator/sim-echo' }),
  );
  // Every chunk has lines of both, the throttled ones first.
  const mixed = throttled.slice(0, 20).flatMap((line, index) => [line, healthy[index] as Record<string, unknown>]);
  const { id } = await createBatch(sdk, client, mixed, {});
  // Four chunks are running, and no more of a batch whose chunks do not end.
  await eventually(
    () => client.batches.retrieve(id),
    ({ request_counts: counts }) => counts?.completed === 8,
    { timeoutMs: 15_000 },
  );
  await client.batches.cancel(id);
  const batch = await ended(client, { id }, 15_000);
  expect(batch).toMatchObject({ status: 'cancelled', request_counts: { completed: 8, failed: 0 } });
});

test('many batches that wait for their providers, long or a little, do not stop another one', async (context) => {
  const { client } = await setUp(context, { environment: { SLUICE_CHUNKS_TOTAL: '8' } });
  const waiting = [];
  for (let batch = 0; batch < 12; batch += 1) {
    const model = batch % 2 === 0 ? 'sim-fault-429-after-30' : 'sim-fault-429-after-5';
    waiting.push(await createBatch(sdk, client, linesOf(model)));
  }
  for (const { id } of waiting) await eventually(() => client.batches.retrieve(id), isRunning);
  const other = await createBatch(sdk, client, linesOf('sim-echo'));
  expect(await ended(client, other, 60_000)).toMatchObject({ status: 'completed' });
  // Snoozed chunks are cancelled as soon as the others.
  for (const { id } of waiting) await client.batches.cancel(id);
  for (const batch of waiting) expect(await ended(client, batch, 20_000)).toMatchObject({ status: 'cancelled' });
}, 120_000);

test('a batch whose provider hangs does not hold all the calls', async (context) => {
  const { client, platform } = await setUp(context);
  const hanging = await createBatch(sdk, client, linesOf('sim-fault-hang'));
  await eventually(
    () => callsOf(platform),
    (calls) => calls === 2,
  );
  const other = await createBatch(sdk, client, linesOf('sim-echo'));
  expect(await ended(client, other, 60_000)).toMatchObject({ status: 'completed' });
  expect(await client.batches.retrieve(hanging.id)).toMatchObject({ status: 'in_progress' });
});

test('a batch of ten lines completes beside 20 whose providers hang, and 60 of one that does', async (context) => {
  const { client, platform } = await setUp(context, { environment: { SLUICE_CALLS_MAX: '128' } });
  const keyTo = (slug: string) => storeVirtualKey(platform, slug, platform.simulatorUrl);
  const hanging = Array.from({ length: 20 }, (_value, index) => `hangs-${index}`);
  await Promise.all([...hanging, 'hangs'].map(keyTo));
  const text = (key: string): Record<string, unknown>[] =>
    Array.from({ length: 40 }, (_value, index) => chatLine(`t${index}`, { model: `@${key}/sim-fault-hang` }));
  for (const key of [...hanging, ...Array(60).fill('hangs')]) await createBatch(sdk, client, text(key));
  // All of them have begun.
  await eventually(
    async () => (await client.batches.list({ limit: 100 })).data.filter(isRunning).length,
    (running) => running === 80,
    { timeoutMs: 60_000 },
  );
  await eventually(
    () => callsOf(platform),
    (calls) => calls > hanging.length,
    { timeoutMs: 30_000 },
  );
  const other = await createBatch(sdk, client, linesOf('sim-echo', 10));
  expect(await ended(client, other, 60_000)).toMatchObject({ status: 'completed', request_counts: { completed: 10 } });
}, 180_000);

test('a batch of ten lines completes beside one whose provider hangs and whose lines take all the memory for ranges', async (context) => {
  const environment = { SLUICE_CALLS_MAX: '128', SLUICE_IN_FLIGHT_MAX: '1MiB' };
  const { client, platform } = await setUp(context, { environment });
  const long = { model: '@simulator/sim-fault-hang', user: 'u'.repeat(100_000) };
  await createBatch(
    sdk,
    client,
    Array.from({ length: 40 }, (_value, index) => chatLine(`t${index}`, long)),
  );
  await eventually(
    () => callsOf(platform),
    (calls) => calls >= 4,
  );
  const other = await createBatch(sdk, client, linesOf('sim-echo', 10));
  expect(await ended(client, other, 60_000)).toMatchObject({ status: 'completed', request_counts: { completed: 10 } });
}, 120_000);

test('a batch completes although those of another workspace hang and fill the queue and all slots', async (context) => {
  // 16 slots, and 40 jobs that wait for one.
  const environment = { SLUICE_CALLS_MAX: '32', SLUICE_CHUNKS_TOTAL: '4' };
  const { client, platform } = await setUp(context, { environment });
  const other = new sdk.OpenAI({ apiKey: await createWorkspace(platform), baseURL: platform.baseUrl });
  const host = { provider: 'openai-compatible', key: 'sk-other', custom_host: platform.simulatorUrl };
  await other.post('/virtual-keys', { body: { name: 'own', slug: 'own', ...host } });
  const hanging = Array.from({ length: 64 }, (_value, index) => `hangs-${index}`);
  for (const key of hanging) {
    await storeVirtualKey(platform, key, platform.simulatorUrl);
    const lines = Array.from({ length: 4 }, (_value, index) =>
      chatLine(`t${index}`, { model: `@${key}/sim-fault-hang` }),
    );
    await createBatch(sdk, client, lines);
  }
  await eventually(
    async () => (await client.batches.list({ limit: 100 })).data.filter(isRunning).length,
    (running) => running === hanging.length,
    { timeoutMs: 60_000 },
  );
  // A hanging call in each slot.
  await eventually(
    () => callsOf(platform),
    (calls) => calls >= 16,
    { timeoutMs: 60_000 },
  );
  const own = Array.from({ length: 10 }, (_value, index) => chatLine(`o${index}`, { model: '@own/sim-echo' }));
  const batch = await createBatch(sdk, other, own);
  expect(await ended(other, batch, 60_000)).toMatchObject({ status: 'completed', request_counts: { completed: 10 } });
}, 180_000);

test('a worker that is stopped leaves its waiting lines at once, and another one does them', async (context) => {
  const { platform, client } = await setUp(context, { worker: false });
  const worker = await platform.startWorker({ SLUICE_DRAIN: '1h' });
  const lines = linesOf('sim-fault-429-after-8-then-ok-1', 3);
  const { id } = await createBatch(sdk, client, lines);
  await eventually(
    () => callsOf(platform),
    (calls) => calls > 0,
  );
  let isStopped = false;
  const stopped = worker.stop().then(() => (isStopped = true));
  // Sooner than it would abort a running line.
  await eventually(() => Promise.resolve(isStopped), Boolean, { timeoutMs: 15_000 });
  await stopped;
  expect(await client.batches.retrieve(id)).toMatchObject({ status: 'in_progress', request_counts: { failed: 0 } });
  // It waits as long as the provider told the first worker.
  await platform.startWorker();
  await eventually(
    () => client.batches.retrieve(id),
    ({ request_counts: counts }) => (counts?.completed ?? 0) > 0,
    { timeoutMs: 90_000 },
  );
}, 120_000);

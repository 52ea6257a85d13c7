import { expect, test, type TestContext } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, chatLines, createBatch, ended, toJsonl, uploadInput } from './batch-kit.ts';
import { getFailureCode, sdks, type Client, type Sdk } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

const sdk = sdks[0] as Sdk;

async function setUp(
  { onTestFinished }: TestContext,
  environment: Record<string, string>,
): Promise<{ platform: TestPlatform; client: Client; other: Client }> {
  const platform = await startPlatform({ worker: false, environment });
  onTestFinished(() => platform.stop());
  const clientOf = (apiKey: string): Client => new sdk.OpenAI({ apiKey, baseURL: platform.baseUrl, maxRetries: 0 });
  return { platform, client: clientOf(platform.adminKey), other: clientOf(await createWorkspace(platform)) };
}

test('a workspace at its limit of open batches is asked to retry later, and another one is not', async (context) => {
  const { platform, client, other } = await setUp(context, { SLUICE_OPEN_BATCHES_MAX: '2' });
  const first = await createBatch(sdk, client, chatLines(1));
  await createBatch(sdk, client, chatLines(1));
  const error = await getFailureCode(createBatch(sdk, client, chatLines(1)));
  expect(error).toMatchObject({ status: 429, code: 'too_many_open_batches' });
  expect(Number(error.headers?.get('retry-after'))).toBeGreaterThan(0);
  await createBatch(sdk, other, chatLines(1));
  await platform.startWorker();
  await ended(client, first);
  await eventually(
    () => createBatch(sdk, client, chatLines(1)).catch(() => null),
    (batch) => batch !== null,
  );
});

test('batches that are created at the same time do not pass the limit of their workspace', async (context) => {
  const { client } = await setUp(context, { SLUICE_OPEN_BATCHES_MAX: '3' });
  const input_file_id = await uploadInput(sdk, client, toJsonl(chatLines(1)));
  const create = (index: number) =>
    client.batches
      .create({
        input_file_id,
        endpoint: '/v1/chat/completions',
        completion_window: '24h',
        metadata: { index: `${index}` },
      })
      .then(
        () => 'taken',
        ({ code }: { code: string }) => code,
      );
  const outcomes = await Promise.all(Array.from({ length: 12 }, (_value, index) => create(index)));
  expect(outcomes.toSorted()).toEqual(
    [...Array<string>(3).fill('taken'), ...Array<string>(9).fill('too_many_open_batches')].toSorted(),
  );
});

test('a workspace at its limit of queued lines is asked to retry later, and a batch with more lines fails', async (context) => {
  const { platform, client } = await setUp(context, { SLUICE_QUEUED_LINES_MAX: '10' });
  await platform.startWorker();
  const hanging = Array.from({ length: 8 }, (_value, index) =>
    chatLine(`h${index}`, { model: '@simulator/sim-fault-hang' }),
  );
  const { id } = await createBatch(sdk, client, hanging);
  const isRunning = ({ status }: { status: string }): boolean => status === 'in_progress';
  await eventually(() => client.batches.retrieve(id), isRunning);
  const more = await ended(client, await createBatch(sdk, client, chatLines(3)));
  expect(more).toMatchObject({ status: 'failed', errors: { data: [{ code: 'too_many_queued_lines', line: null }] } });
  const fitting = await createBatch(sdk, client, hanging.slice(0, 2));
  await eventually(() => client.batches.retrieve(fitting.id), isRunning);
  const error = await getFailureCode(createBatch(sdk, client, chatLines(1)));
  expect(error).toMatchObject({ status: 429, code: 'too_many_queued_lines' });
});

test('a workspace at its storage limit stores no more, not even right after it deleted a file', async (context) => {
  const { client, other } = await setUp(context, { SLUICE_STORED_MAX: '1MiB' });
  const text = 'x'.repeat(1_100_000);
  const file = await uploadInput(sdk, client, text);
  const full = { status: 429, code: 'storage_quota_exceeded' };
  expect(await getFailureCode(uploadInput(sdk, client, 'y'))).toMatchObject(full);
  await client.files.delete(file);
  expect(await getFailureCode(uploadInput(sdk, client, 'y'))).toMatchObject(full);
  await uploadInput(sdk, other, 'y');
});

test('an upload that would take the space reserved for results gets 507', async (context) => {
  const { client } = await setUp(context, { SLUICE_DISK_RESERVE: '1000000GiB' });
  const error = await getFailureCode(uploadInput(sdk, client, 'y'));
  expect(error).toMatchObject({ status: 507, code: 'storage_full' });
});

import { expect, test } from 'vitest';
import { startPlatform } from '#test/platform.ts';
import { chatLines, createBatch, ended, toJsonl, uploadInput } from './batch-kit.ts';
import { sdks, type Sdk } from './sdk.ts';

const sdk = sdks[0] as Sdk;

test('a small batch is not behind large ones whose files are being checked', async ({ onTestFinished }) => {
  const platform = await startPlatform({ worker: false });
  onTestFinished(() => platform.stop());
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const endpoint = '/v1/chat/completions' as const;
  const input_file_id = await uploadInput(sdk, client, toJsonl(chatLines(20_000, { user: 'u'.repeat(100) })));
  const large = [];
  for (let n = 0; n < 8; n += 1) {
    large.push(await client.batches.create({ input_file_id, endpoint, completion_window: '24h' }));
  }
  const small = await createBatch(sdk, client, chatLines(10));
  await platform.startWorker({ SLUICE_VALIDATION_THREADS: '1' });
  expect(await ended(client, small)).toMatchObject({ status: 'completed' });
  const statuses = await Promise.all(large.map(async ({ id }) => (await client.batches.retrieve(id)).status));
  expect(statuses.filter((status) => status === 'validating').length).toBeGreaterThanOrEqual(4);
});

test('a small batch is finished by the worker that settled its last line', async ({ onTestFinished }) => {
  const platform = await startPlatform();
  onTestFinished(() => platform.stop());
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const batch = await ended(client, await createBatch(sdk, client, chatLines(10)));
  expect(batch).toMatchObject({ status: 'completed', request_counts: { completed: 10 } });
  const turns = platform.database.db.selectFrom('batch_turn').selectAll();
  expect(await turns.execute()).toEqual([]);
});

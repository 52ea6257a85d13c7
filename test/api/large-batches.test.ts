import { execFile } from 'node:child_process';
import { open, rename } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, ended, runBatch, toJsonl, uploadInput } from './batch-kit.ts';
import { sdks, type Sdk } from './sdk.ts';

let platform: TestPlatform;

beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

const [sdk] = sdks as [Sdk];

/** Where the content of a file lies. */
async function pathOf(fileId: string): Promise<string> {
  const { blob } = await platform.database.db
    .selectFrom('file')
    .select('blob')
    .where('id', '=', fileId)
    .executeTakeFirstOrThrow();
  return path.join(platform.dataDir, 'blobs', blob.slice(0, 2), blob.slice(2, 4), blob);
}

const isBeingValidated = async (): Promise<boolean> => {
  const { rowCount } = await platform.database.pool.query(
    `select from batch_turn where work = 'validate' and holder is not null`,
  );
  return rowCount === 1;
};

test('a batch does not wait until the input file of another, which takes long, is read', async () => {
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const fileId = await uploadInput(sdk, client, toJsonl([chatLine('a')]));
  const file = await pathOf(fileId);
  await rename(file, `${file}.whole`);
  // Whoever opens it waits until somebody writes.
  await promisify(execFile)('mkfifo', [file]);
  const slow = await client.batches.create({
    input_file_id: fileId,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  });
  await eventually(isBeingValidated, Boolean);
  expect(await runBatch(sdk, client, [chatLine('b')])).toMatchObject({ status: 'completed' });
  expect(await client.batches.retrieve(slow.id)).toMatchObject({ status: 'validating' });

  const writer = await open(file, 'r+');
  await rename(`${file}.whole`, file);
  await writer.close();
  expect(await ended(client, slow)).toMatchObject({ status: 'completed', request_counts: { completed: 1 } });
});

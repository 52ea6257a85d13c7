import { afterAll, beforeAll, expect, test } from 'vitest';
import OpenAI from 'openai';
import { missingS3, startS3, type S3Server } from '#test/s3-server.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { readdir } from 'node:fs/promises';

const lineCount = 2_000;
const missing = missingS3('moto');
let server: S3Server;
let platform: TestPlatform;

beforeAll(async () => {
  if (missing !== null) return;
  server = await startS3('moto');
  platform = await startPlatform({
    environment: {
      SLUICE_BLOBS: `s3://${server.options.bucket}/sluice`,
      SLUICE_S3_ENDPOINT: server.endpoint,
      SLUICE_S3_PATH_STYLE: 'true',
    },
  });
});
afterAll(async () => {
  await platform?.stop();
  await server?.stop();
});

test('a batch runs with its files in S3, and nothing but request-log rows touches the disk', async (context) => {
  if (missing !== null) context.skip(missing);
  const client = new OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey });
  const lines = Array.from({ length: lineCount }, (_, index) =>
    JSON.stringify({
      custom_id: `line-${index}`,
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: '@simulator/sim-small', messages: [{ role: 'user', content: `line ${index}` }] },
    }),
  );
  const input = await client.files.create({ file: new File([lines.join('\n')], 'in.jsonl'), purpose: 'batch' });
  const { id } = await client.batches.create({
    input_file_id: input.id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  });
  await expect
    .poll(async () => (await client.batches.retrieve(id)).status, { timeout: 50_000, interval: 200 })
    .toBe('completed');
  const { output_file_id: outputId } = await client.batches.retrieve(id);
  const output = await (await client.files.content(outputId ?? '')).text();
  const ids = output
    .trimEnd()
    .split('\n')
    .map((line) => (JSON.parse(line) as { custom_id: string }).custom_id);
  expect(ids).toEqual(Array.from({ length: lineCount }, (_, index) => `line-${index}`));
  const part = await client.files.content(input.id, { headers: { range: 'bytes=10-29' } });
  expect(await part.text()).toBe(lines.join('\n').slice(10, 30));
  expect((await readdir(platform.dataDir)).filter((name) => name !== 'request-log')).toEqual([]);
});

import { Big } from 'big.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, chatLines, createBatch, ended, resultsOf, runBatch, uploadInput, type Batch } from './batch-kit.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';

// BATCH-1, BATCH-3, BATCH-4, BATCH-11 to BATCH-13, RESULT-1, RESULT-2: what becomes of a batch.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ environment: { SLUICE_CALLS_MAX: '8' } });
});
afterAll(() => platform.stop());

const times = [
  'created_at',
  'in_progress_at',
  'finalizing_at',
  'completed_at',
  'failed_at',
  'expired_at',
  'cancelling_at',
  'cancelled_at',
  'expires_at',
] as const;

const order = ['validating', 'in_progress', 'finalizing', 'completed'];

/** Every state of a batch that polling saw, from its creation to its end. */
async function history(client: Client, created: Batch): Promise<Batch[]> {
  const seen: Batch[] = [created];
  await eventually(
    async () => {
      const batch = await client.batches.retrieve(created.id);
      seen.push(batch);
      return batch.status;
    },
    (status) => status === 'completed' || status === 'failed',
    { intervalMs: 5 },
  );
  return seen;
}

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });

  test('create answers validating with every key, times that did not happen null, counts 0 and the metadata', async () => {
    const metadata = { customer: 'Zoë', run: '7' };
    const inputFileId = await uploadInput(sdk, client, `${JSON.stringify(chatLine('a'))}\n`);
    const batch = await client.batches.create({
      input_file_id: inputFileId,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      metadata,
    });
    expect(batch).toEqual({
      id: expect.stringMatching(/^batch_[0-9a-f]{32}$/),
      object: 'batch',
      endpoint: '/v1/chat/completions',
      model: null,
      errors: null,
      input_file_id: inputFileId,
      completion_window: '24h',
      status: 'validating',
      output_file_id: null,
      error_file_id: null,
      created_at: expect.any(Number),
      in_progress_at: null,
      expires_at: batch.created_at + 86_400,
      finalizing_at: null,
      completed_at: null,
      failed_at: null,
      expired_at: null,
      cancelling_at: null,
      cancelled_at: null,
      request_counts: { total: 0, completed: 0, failed: 0 },
      usage: {
        input_tokens: 0,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens: 0,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: 0,
      },
      cost_usd: null,
      unpriced_lines: 0,
      validated_outputs: null,
      paused_at: null,
      bounds: null,
      retry_of: null,
      metadata,
    });
    expect(Number.isInteger(batch.created_at)).toBe(true);
    expect(Math.abs(batch.created_at - Date.now() / 1_000)).toBeLessThan(60);
    const done = await ended(client, batch);
    expect(done.metadata).toEqual(metadata);
    // Its progress, and what it waits for, is asked for one batch at a time.
    expect(Object.keys(done).toSorted()).toEqual([...Object.keys(batch), 'waits', 'gateway'].toSorted());
  });

  test('a batch goes validating, in_progress, finalizing, completed; nothing ever goes back', async () => {
    const created = await createBatch(sdk, client, chatLines(160, { model: '@simulator/sim-small+200ms' }), {
      completion_window: 'immediate' as '24h',
    });
    const seen = await history(client, created);
    const positions = seen.map(({ status }) => order.indexOf(status));
    expect(positions).toEqual(positions.toSorted((left, right) => left - right));
    // `finalizing` may be over between two looks; its time below says that it was.
    const visited = new Set(seen.map(({ status }) => status));
    expect([...visited].filter((status) => status !== 'finalizing')).toEqual([
      'validating',
      'in_progress',
      'completed',
    ]);
    const counts = seen.map((batch) => batch.request_counts ?? { total: -1, completed: -1, failed: -1 });
    for (const count of ['total', 'completed', 'failed'] as const) {
      const values = counts.map((each) => each[count]);
      expect(values).toEqual(values.toSorted((left, right) => left - right));
    }
    // The counts climb while the batch runs, and the total is known from the start of it.
    const running = seen.filter(({ status }) => status === 'in_progress').map(({ request_counts: counts }) => counts);
    expect(new Set(running.map((count) => count?.total))).toEqual(new Set([160]));
    expect(new Set(running.map((count) => count?.completed)).size).toBeGreaterThan(2);
    for (const time of times) {
      const values = seen.map((batch) => batch[time] ?? null);
      const first = values.findIndex((value) => value !== null);
      expect(new Set(first === -1 ? [null] : values.slice(first)).size, `${time} is written once`).toBe(1);
    }
    const done = seen.at(-1) as Batch;
    const { created_at, in_progress_at, finalizing_at, completed_at } = done;
    const happened = [created_at, in_progress_at, finalizing_at, completed_at].map(Number);
    expect(happened.every((time) => Number.isInteger(time) && time > 0)).toBe(true);
    expect(happened).toEqual(happened.toSorted((left, right) => left - right));
    expect(done).toMatchObject({
      completion_window: 'immediate',
      failed_at: null,
      expired_at: null,
      cancelling_at: null,
      cancelled_at: null,
      request_counts: { total: 160, completed: 160, failed: 0 },
    });
  });

  test('an output line has exactly the four keys, a request id, and error null', async () => {
    const { output, errors } = await resultsOf(client, await runBatch(sdk, client, chatLines(3)));
    expect(errors).toEqual([]);
    expect(output.map((line) => line.custom_id).toSorted()).toEqual(['line-1', 'line-2', 'line-3']);
    for (const line of output) {
      expect(line).toEqual({
        id: expect.stringMatching(/^batch_req_[0-9a-f]{32}$/),
        custom_id: expect.any(String),
        response: {
          status_code: 200,
          request_id: expect.stringMatching(/^\S{8,}$/),
          body: expect.objectContaining({ object: 'chat.completion', choices: [expect.anything()] }),
        },
        error: null,
      });
    }
    expect(new Set(output.map((line) => line.id)).size).toBe(3);
  });

  test('a line that the provider refuses is in the error file only, with its status and body, and counted failed', async () => {
    const lines = [chatLine('good'), chatLine('bad', { model: '@simulator/sim-fault-400' })];
    const batch = await runBatch(sdk, client, lines);
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 2, completed: 1, failed: 1 } });
    const { output, errors } = await resultsOf(client, batch);
    expect(output.map((line) => line.custom_id)).toEqual(['good']);
    expect(errors).toEqual([
      {
        id: expect.stringMatching(/^batch_req_[0-9a-f]{32}$/),
        custom_id: 'bad',
        response: {
          status_code: 400,
          request_id: expect.stringMatching(/^\S{8,}$/),
          body: {
            error: {
              message: 'Simulated failure with status 400.',
              type: 'invalid_request_error',
              param: null,
              code: null,
            },
          },
        },
        error: null,
      },
    ]);
  });

  test('a batch whose lines all fail is completed, without an output file', async () => {
    const batch = await runBatch(sdk, client, chatLines(2, { model: '@simulator/sim-fault-404' }));
    expect(batch).toMatchObject({
      status: 'completed',
      output_file_id: null,
      error_file_id: expect.stringMatching(/^file-/),
      request_counts: { total: 2, completed: 0, failed: 2 },
    });
    expect((await resultsOf(client, batch)).errors.map((line) => line.response?.status_code)).toEqual([404, 404]);
  });

  test('a batch without failures has no error file', async () => {
    const batch = await runBatch(sdk, client, chatLines(2));
    expect(batch).toMatchObject({
      status: 'completed',
      errors: null,
      error_file_id: null,
      output_file_id: expect.stringMatching(/^file-/),
      request_counts: { total: 2, completed: 2, failed: 0 },
    });
  });

  test('completions and embeddings have the same lines in the same files', async () => {
    const completions = await runBatch(
      sdk,
      client,
      ['a', 'b'].map((id) => ({
        custom_id: id,
        method: 'POST',
        url: '/v1/completions',
        body: { model: '@simulator/sim-echo', prompt: `Say ${id}`, max_tokens: 20 },
      })),
      { endpoint: '/v1/completions' },
    );
    expect((await resultsOf(client, completions)).output.map(({ response }) => response?.body['object'])).toEqual([
      'text_completion',
      'text_completion',
    ]);
    const embeddings = await runBatch(
      sdk,
      client,
      ['a', 'b'].map((id) => ({
        custom_id: id,
        method: 'POST',
        url: '/v1/embeddings',
        body: { model: '@simulator/text-embedding-3-small', input: `Embed ${id}` },
      })),
      { endpoint: '/v1/embeddings' },
    );
    const { output } = await resultsOf(client, embeddings);
    expect(output.map(({ response }) => response?.body)).toEqual(
      Array(2).fill(
        expect.objectContaining({
          object: 'list',
          data: [{ object: 'embedding', index: 0, embedding: expect.toSatisfy((vector) => vector.length === 1_536) }],
        }),
      ),
    );
  });

  test('deleting the input file of a running batch hides the file, and the batch completes', async () => {
    const created = await createBatch(sdk, client, chatLines(30, { model: '@simulator/sim-small+400ms' }));
    await eventually(
      () => client.batches.retrieve(created.id),
      ({ status }) => status === 'in_progress',
    );
    await client.files.delete(created.input_file_id);
    expect(await getFailureCode(client.files.retrieve(created.input_file_id))).toMatchObject({ status: 404 });
    expect((await client.batches.retrieve(created.id)).status).toBe('in_progress');
    const batch = await ended(client, created);
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 30, completed: 30, failed: 0 } });
    expect((await resultsOf(client, batch)).output).toHaveLength(30);
  });

  test('output_expires_after sets when the files of results expire, from their own creation', async () => {
    const lines = [chatLine('good'), chatLine('bad', { model: '@simulator/sim-fault-404' })];
    const batch = await runBatch(sdk, client, lines, {
      output_expires_after: { anchor: 'created_at', seconds: 3_600 },
    });
    for (const id of [batch.output_file_id, batch.error_file_id]) {
      const file = await client.files.retrieve(id ?? '');
      expect(file).toMatchObject({ purpose: 'batch_output', expires_at: file.created_at + 3_600 });
      expect(file.created_at).toBeGreaterThanOrEqual(batch.finalizing_at ?? Number.POSITIVE_INFINITY);
    }
    for (const [seconds, code] of [
      [3_599, 'integer_below_min_value'],
      [2_592_001, 'integer_above_max_value'],
    ] as const) {
      const error = await getFailureCode(
        createBatch(sdk, client, chatLines(1), { output_expires_after: { anchor: 'created_at', seconds } }),
      );
      expect(error).toMatchObject({ status: 400, param: 'output_expires_after.seconds', code });
    }
  });

  test('usage is the sum of the lines, and model is the one that they asked for', async () => {
    const batch = await runBatch(sdk, client, chatLines(9));
    const { output } = await resultsOf(client, batch);
    const sum = { input: 0, output: 0 };
    for (const { response } of output) {
      const usage = response?.body['usage'] as { prompt_tokens: number; completion_tokens: number };
      sum.input += usage.prompt_tokens;
      sum.output += usage.completion_tokens;
    }
    expect(sum.input).toBeGreaterThan(0);
    expect(batch.usage).toEqual({
      input_tokens: sum.input,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: sum.output,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: sum.input + sum.output,
    });
    // As the price list charges the simulator: one dollar for a million tokens of input, two of output.
    const dollars = new Big(sum.input + 2 * sum.output).div(1_000_000).toFixed();
    expect(batch).toMatchObject({ cost_usd: dollars, unpriced_lines: 0 });
    expect(batch.model).toBe('@simulator/sim-small');
  });
});

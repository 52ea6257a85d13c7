import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, chatLines, ended, resultsOf, runBatch, uploadInput } from './batch-kit.ts';
import { getFailureCode, sdks, watchCalls, type Client } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// BATCH-2, BATCH-6, BATCH-9, BATCH-10, BATCH-14: what the routes of batches take and refuse.

let platform: TestPlatform;
let sent: ReturnType<typeof watchCalls>;
beforeAll(async () => {
  platform = await startPlatform();
  sent = watchCalls(platform.baseUrl);
});
afterAll(() => platform.stop());

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });

  test('an unknown input file is accepted, and then the batch fails with invalid_request', async () => {
    const created = await client.batches.create({
      input_file_id: 'file-doesnotexist',
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    });
    expect(created.status).toBe('validating');
    const batch = await ended(client, created);
    expect(batch).toMatchObject({
      status: 'failed',
      failed_at: expect.any(Number),
      in_progress_at: null,
      output_file_id: null,
      error_file_id: null,
      request_counts: { total: 0, completed: 0, failed: 0 },
    });
    expect(batch.errors).toEqual({
      object: 'list',
      data: [
        {
          code: 'invalid_request',
          message: expect.stringContaining('Cannot find file file-doesnotexist'),
          param: 'file_id',
          line: null,
        },
      ],
    });
  });

  test('a file of another purpose is refused with 400', async () => {
    const file = await client.files.create({
      file: await sdk.toFile(Buffer.from('{}\n'), 'x.jsonl'),
      purpose: 'fine-tune',
    });
    const error = await getFailureCode(
      client.batches.create({ input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }),
    );
    expect(error).toBeInstanceOf(sdk.OpenAI.BadRequestError);
    expect(error).toMatchObject({ status: 400, param: 'input_file_id', code: 'invalid_value' });
    expect(error.message).toContain("has the purpose 'fine-tune'");
  });

  test.each([
    ['endpoint', { endpoint: '/v1/nothing' }, 'invalid_value', "'/v1/nothing'. Supported values are: "],
    ['endpoint', { endpoint: undefined }, 'missing_required_parameter', "Missing required parameter: 'endpoint'."],
    ['completion_window', { completion_window: '1h' }, 'invalid_value', "'1h'. Supported values are: "],
    ['completion_window', { completion_window: undefined }, 'missing_required_parameter', 'Missing required parameter'],
    ['input_file_id', { input_file_id: undefined }, 'missing_required_parameter', "parameter: 'input_file_id'."],
    ['input_file_id', { input_file_id: 7 }, 'invalid_type', 'expected a string, but got an integer instead.'],
    ['priority', { priority: 'high' }, 'unknown_parameter', "Unknown parameter: 'priority'."],
  ])('a wrong %s (%j) is 400 %s', async (param, fields, code, message) => {
    const good = { input_file_id: 'file-x', endpoint: '/v1/chat/completions', completion_window: '24h' };
    const error = await getFailureCode(client.batches.create({ ...good, ...fields } as never));
    expect(error).toBeInstanceOf(sdk.OpenAI.BadRequestError);
    expect(error).toMatchObject({ status: 400, type: 'invalid_request_error', param, code });
    expect(error.message).toContain(message);
  });

  test.each([
    [
      '17 keys',
      Object.fromEntries(Array.from({ length: 17 }, (_v, n) => [`k${n}`, 'v'])),
      { param: 'metadata', code: 'object_above_max_properties', says: 'with 17 properties instead.' },
    ],
    [
      'a key of 65 characters',
      { ['k'.repeat(65)]: 'v' },
      { param: 'metadata', code: 'string_above_max_length', says: 'a key with length 65 instead.' },
    ],
    [
      'a value of 513 characters',
      { k: 'v'.repeat(513) },
      { param: 'metadata.k', code: 'string_above_max_length', says: 'a string with length 513 instead.' },
    ],
    [
      'a list of 513 characters as a value',
      { tags: ['a'.repeat(509)] },
      { param: 'metadata.tags', code: 'string_above_max_length', says: 'a string with length 513 instead.' },
    ],
    [
      'a list',
      ['a'],
      { param: 'metadata', code: 'invalid_type', says: 'expected an object, but got an array instead.' },
    ],
  ])('metadata with %s is 400', async (_what, metadata, { param, code, says }) => {
    const error = await getFailureCode(
      client.batches.create({
        input_file_id: 'file-x',
        endpoint: '/v1/chat/completions',
        completion_window: '24h',
        metadata: metadata as never,
      }),
    );
    expect(error).toBeInstanceOf(sdk.OpenAI.BadRequestError);
    expect(error).toMatchObject({ status: 400, type: 'invalid_request_error', param, code });
    expect(error.message).toContain(says);
  });

  test('metadata with values that are no texts is kept as it is given', async () => {
    const metadata = { n: 1.5, yes: true, nothing: null, nested: { list: ['x', 2] }, text: '7' };
    const batch = await client.batches.create({
      input_file_id: 'file-x',
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      metadata: metadata as never,
    });
    expect((await client.batches.retrieve(batch.id)).metadata).toEqual(metadata);
  });

  test('metadata with 16 keys of 64 characters and values of 512 is taken', async () => {
    const metadata = Object.fromEntries(
      Array.from({ length: 16 }, (_v, n) => [`${n}`.padStart(64, 'k'), 'é'.repeat(512)]),
    );
    const batch = await client.batches.create({
      input_file_id: 'file-x',
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      metadata,
    });
    expect((await client.batches.retrieve(batch.id)).metadata).toEqual(metadata);
  });

  test('cancelling a completed or failed batch is 409, and the SDK calls once', async () => {
    const completed = await runBatch(sdk, client, chatLines(1));
    const failed = await runBatch(sdk, client, 'not json\n');
    for (const { id, status } of [completed, failed]) {
      const error = await getFailureCode(client.batches.cancel(id));
      expect(error).toBeInstanceOf(sdk.OpenAI.ConflictError);
      expect(error).toMatchObject({ status: 409, type: 'invalid_request_error', param: null, code: null });
      expect(error.message).toContain(`Cannot cancel a batch with status '${status}'.`);
      expect(sent.to(new RegExp(`^POST /v1/batches/${id}/cancel$`))).toHaveLength(1);
      expect(error.headers?.get('x-should-retry')).toBe('false');
      expect((await client.batches.retrieve(id)).status).toBe(status);
    }
  });

  test('cancelling or retrieving an unknown batch is 404', async () => {
    for (const call of ['cancel', 'retrieve'] as const) {
      const error = await getFailureCode(client.batches[call]('batch_unknown'));
      expect(error).toBeInstanceOf(sdk.OpenAI.NotFoundError);
      expect(error).toMatchObject({ status: 404, type: 'invalid_request_error' });
      expect(error.message).toContain("No batch found with id 'batch_unknown'.");
    }
  });

  test('the output of a batch is also read by the id of the batch, once there is one', async () => {
    const [done, failed] = [
      await runBatch(sdk, client, chatLines(1)),
      await runBatch(sdk, client, [], { input_file_id: 'file-doesnotexist' }),
    ];
    const output = await (await client.files.content(done.output_file_id ?? '')).text();
    const read = async (id: string) =>
      await fetch(`${platform.baseUrl}/batches/${id}/output`, { headers: { 'x-gateway-api-key': platform.adminKey } });
    const answer = await read(done.id);
    expect([answer.headers.get('content-type'), await answer.text()]).toEqual(['application/octet-stream', output]);
    for (const [id, code] of [
      [failed.id, 'no_output_file'],
      ['batch_unknown', null],
    ] as const) {
      const refused = await read(id);
      expect([refused.status, await refused.json()]).toMatchObject([404, { error: { code, param: 'batch_id' } }]);
    }
  });

  test('a batch and a file of another workspace are 404, and not in its lists', async () => {
    const batch = await runBatch(sdk, client, chatLines(1));
    const other = new sdk.OpenAI({ apiKey: await createWorkspace(platform), baseURL: platform.baseUrl });
    const outputId = batch.output_file_id ?? '';
    for (const call of [
      () => other.batches.retrieve(batch.id),
      () => other.batches.cancel(batch.id),
      () => other.files.retrieve(batch.input_file_id),
      () => other.files.content(outputId),
      () => other.files.delete(outputId),
    ]) {
      expect(await getFailureCode(call())).toMatchObject({ status: 404 });
    }
    expect((await other.batches.list()).data).toEqual([]);
    expect((await other.files.list()).data).toEqual([]);
    // To it the file does not exist: as any unknown input, it fails the batch.
    const stolen = await runBatch(sdk, other, [], { input_file_id: batch.input_file_id });
    expect(stolen).toMatchObject({ status: 'failed', errors: { data: [{ code: 'invalid_request' }] } });
    expect((await client.batches.retrieve(batch.id)).status).toBe('completed');
    expect((await resultsOf(client, batch)).output).toHaveLength(1);
  });

  test('lists are newest first, and paging gives every batch once while new ones are created', async () => {
    const own = new sdk.OpenAI({ apiKey: await createWorkspace(platform), baseURL: platform.baseUrl });
    const create = async (): Promise<string> =>
      (
        await own.batches.create({
          input_file_id: 'file-x',
          endpoint: '/v1/chat/completions',
          completion_window: '24h',
        })
      ).id;
    const ids: string[] = [];
    for (let count = 0; count < 7; count += 1) ids.push(await create());
    const newestFirst = ids.toReversed();

    const first = await own.get('/batches', { query: { limit: 2 } });
    expect(first).toEqual({
      object: 'list',
      data: [expect.objectContaining({ id: newestFirst[0] }), expect.objectContaining({ id: newestFirst[1] })],
      first_id: newestFirst[0],
      last_id: newestFirst[1],
      has_more: true,
    });

    const paged: string[] = [];
    for await (const { id } of own.batches.list({ limit: 2 })) {
      paged.push(id);
      await create();
    }
    expect(paged).toEqual(newestFirst);

    const after = await own.get('/batches', { query: { after: ids[0] } });
    expect(after).toEqual({ object: 'list', data: [], first_id: null, last_id: null, has_more: false });
    expect((await own.batches.list({ limit: 100 })).data).toHaveLength(14);
    for (const [query, code] of [
      [{ limit: 0 }, 'integer_below_min_value'],
      [{ limit: 101 }, 'integer_above_max_value'],
      [{ limit: 'many' as unknown as number }, 'invalid_type'],
    ] as const) {
      expect(await getFailureCode(own.batches.list(query))).toMatchObject({ status: 400, param: 'limit', code });
    }
    expect(await getFailureCode(own.batches.list({ after: 'batch_unknown' }))).toMatchObject({
      status: 400,
      param: 'after',
    });
  });

  test('a create that is sent again after a lost reply makes one batch', async () => {
    const inputFileId = await uploadInput(sdk, client, `${JSON.stringify(chatLine('a'))}\n`);
    const params = { input_file_id: inputFileId, endpoint: '/v1/chat/completions', completion_window: '24h' } as const;
    const first = await client.batches.create(params);
    const retried = await client.batches.create(params, { headers: { 'X-Stainless-Retry-Count': '1' } });
    expect(retried.id).toBe(first.id);
    const elsewhere = { 'X-Stainless-Retry-Count': '1', 'x-gateway-virtual-key': 'simulator' };
    const toAnother = await client.batches.create(params, { headers: elsewhere });
    expect(toAnother.id).not.toBe(first.id);
    const meant = await client.batches.create(params);
    expect(meant.id).not.toBe(first.id);

    const key = `order-${first.id}`;
    const byKey = await client.batches.create(params, { headers: { 'Idempotency-Key': key } });
    const again = await client.batches.create(params, { headers: { 'Idempotency-Key': key } }).withResponse();
    expect(again.data).toEqual(byKey);
    expect(again.response.headers.get('idempotent-replayed')).toBe('true');
    const error = await getFailureCode(
      client.batches.create({ ...params, metadata: { other: 'body' } }, { headers: { 'Idempotency-Key': key } }),
    );
    expect(error).toBeInstanceOf(sdk.OpenAI.ConflictError);
    expect(error).toMatchObject({ status: 409, code: 'idempotency_key_reused', param: 'Idempotency-Key' });
    const twins = await Promise.all(
      Array.from({ length: 5 }, () => client.batches.create(params, { headers: { 'Idempotency-Key': `${key}-twin` } })),
    );
    expect(new Set(twins.map(({ id }) => id)).size).toBe(1);
    const listed = (await client.batches.list({ limit: 100 })).data.filter(
      (batch) => batch.input_file_id === inputFileId,
    );
    expect(listed).toHaveLength(5);
  });
});

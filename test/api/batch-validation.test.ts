import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, chatLines, resultsOf, runBatch, toJsonl, type Batch } from './batch-kit.ts';
import { sdks, type Client } from './sdk.ts';

// LINE-1 to LINE-5: every malformed file.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ environment: { SLUICE_BATCH_LINES_MAX: '50000' } });
});
afterAll(() => platform.stop());

type Problem = { code: string; message: unknown; param: string | null; line: number | null };

const notJson = 'This line is not parseable as valid JSON.';

const without = (member: string): Record<string, unknown> => {
  const { [member]: _left, ...rest } = chatLine(`without-${member}`);
  return rest;
};

/** Lines that are wrong in one way each, what is said of them, and the check that asks for it. */
const badLines: readonly [check: string, what: string, line: string, problem: Omit<Problem, 'line'>][] = [
  [
    '8',
    'cut off in the middle',
    '{"custom_id": "x", "method"',
    { code: 'invalid_json_line', message: notJson, param: null },
  ],
  [
    '8',
    'followed by garbage',
    `${JSON.stringify(chatLine('x'))} trailing`,
    { code: 'invalid_json_line', message: notJson, param: null },
  ],
  ...['[1]', 'null', '"text"', '7', 'true'].map((text): (typeof badLines)[number] => [
    '15',
    `the JSON value ${text}`,
    text,
    { code: 'invalid_json_line', message: expect.stringContaining('must be a JSON object'), param: null },
  ]),
  ...['custom_id', 'method', 'url', 'body'].map((member): (typeof badLines)[number] => [
    '9',
    `without ${member}`,
    JSON.stringify(without(member)),
    { code: 'missing_required_parameter', message: `Missing required parameter: '${member}'.`, param: member },
  ]),
  [
    '9',
    'with a number for custom_id',
    JSON.stringify({ ...chatLine('x'), custom_id: 7 }),
    {
      code: 'invalid_type',
      message: "Invalid type for 'custom_id': expected a string, but got an integer instead.",
      param: 'custom_id',
    },
  ],
  [
    '9',
    'with another method',
    JSON.stringify({ ...chatLine('x'), method: 'GET' }),
    { code: 'invalid_method', message: "Invalid value: 'GET'. Supported values are: 'POST'.", param: 'method' },
  ],
  [
    '11',
    'with the URL of another endpoint',
    JSON.stringify({ ...chatLine('x'), url: '/v1/embeddings' }),
    {
      code: 'invalid_url',
      message: 'The URL provided for this request does not match the batch endpoint.',
      param: 'url',
    },
  ],
  [
    '12',
    'with stream: true',
    JSON.stringify(chatLine('x', { stream: true })),
    {
      code: 'streaming_unsupported',
      message: 'Chat Completions: Streaming is not supported in the Batch API.',
      param: 'body.stream',
    },
  ],
  [
    '9',
    'without a model',
    JSON.stringify(chatLine('x', { model: undefined })),
    { code: 'invalid_request', message: 'Model parameter is required.', param: 'body.model' },
  ],
  [
    '9',
    'without messages',
    JSON.stringify(chatLine('x', { messages: undefined })),
    { code: 'invalid_request', message: 'Messages parameter is required.', param: 'body.messages' },
  ],
  [
    '9',
    'with a model that leads to no provider',
    JSON.stringify(chatLine('x', { model: 'gpt-unknown' })),
    { code: 'model_not_found', message: expect.stringContaining("'gpt-unknown'"), param: 'body.model' },
  ],
  [
    '9',
    'with a model that names an unknown virtual key',
    JSON.stringify(chatLine('x', { model: '@simulatr/sim-small' })),
    { code: 'model_not_found', message: expect.stringContaining("'simulatr'"), param: 'body.model' },
  ],
  [
    '9',
    "outside the API reference's bounds",
    JSON.stringify(chatLine('x', { temperature: 3 })),
    {
      code: 'decimal_above_max_value',
      message: expect.stringContaining("'body.temperature'"),
      param: 'body.temperature',
    },
  ],
  [
    '9',
    'whose response schema is no JSON Schema',
    JSON.stringify(
      chatLine('x', {
        response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { type: 'nonsense' } } },
      }),
    ),
    {
      code: 'invalid_request',
      message: expect.stringContaining("Invalid 'body.response_format': its JSON Schema does not compile"),
      param: 'body.response_format',
    },
  ],
];

/** A batch that failed: no file, no count, nothing ran. */
function expectFailed(batch: Batch, problems: readonly Problem[]): void {
  expect(batch).toMatchObject({
    status: 'failed',
    failed_at: expect.any(Number),
    in_progress_at: null,
    finalizing_at: null,
    output_file_id: null,
    error_file_id: null,
    request_counts: { total: 0, completed: 0, failed: 0 },
  });
  expect(batch.errors).toEqual({
    object: 'list',
    data: problems,
  });
}

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });
  const run = (text: string | Buffer): Promise<Batch> => runBatch(sdk, client, text);
  const good = (id: string): string => JSON.stringify(chatLine(id));

  test.each(badLines)(
    'check %s: a second line %s fails the batch with its number, and nothing runs',
    async (...row) => {
      const [, , line, problem] = row;
      platform.simulator.resetStats();
      expectFailed(await run(`${good('a')}\n${line}\n${good('b')}\n`), [{ ...problem, line: 2 }]);
      expect(platform.simulator.stats().requests).toEqual({});
    },
  );

  test('with on_invalid_line, a request that is wrong fails only its own line, with the error of a live call', async () => {
    const bodies = badLines.filter(([, , , { param }]) => param?.startsWith('body.') === true);
    expect(bodies.length).toBeGreaterThan(5);
    const lines = bodies.map(([, , line], index) => ({
      ...(JSON.parse(line) as { body: Record<string, unknown> }),
      custom_id: `bad-${index}`,
    }));
    const gateway_options = { on_invalid_line: 'fail_line' };
    const batch = await runBatch(sdk, client, [chatLine('a'), ...lines, chatLine('b')], { gateway_options } as never);
    expect(batch).toMatchObject({ status: 'completed', errors: null });
    const { output, errors } = await resultsOf(client, batch);
    expect(output.map(({ custom_id: id }) => id)).toEqual(expect.arrayContaining(['a', 'b']));
    for (const { custom_id: id, response } of errors) {
      const { body } = lines[Number(id.slice('bad-'.length))] as (typeof lines)[number];
      const live = await fetch(`${platform.baseUrl}/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: `Bearer ${platform.adminKey}` },
        body: JSON.stringify({ ...body, stream: false }),
      });
      const streamed = { code: 'streaming_unsupported', param: 'stream' };
      const { error } = (await live.json()) as { error?: object };
      expect(response?.status_code).toBe(body['stream'] === true ? 400 : live.status);
      expect(response?.body['error']).toMatchObject(body['stream'] === true ? streamed : (error as object));
    }
    expect(output.length + errors.length).toBe(lines.length + 2);
    expect(errors.length).toBeGreaterThanOrEqual(lines.length - 1);
  });

  test('with on_invalid_line, a line with more values than a live call accepts fails without being parsed', async () => {
    const gateway_options = { on_invalid_line: 'fail_line' };
    const metadata = Array.from({ length: 1_000_000 }, () => ({}));
    const input = [chatLine('a'), chatLine('huge', { metadata })];
    const batch = await runBatch(sdk, client, input, { gateway_options } as never);
    const { errors } = await resultsOf(client, batch);
    expect(errors).toMatchObject([{ custom_id: 'huge', response: { body: { error: { code: 'json_too_complex' } } } }]);
  });

  test('with on_invalid_line, a line without an ID still fails the batch', async () => {
    const gateway_options = { on_invalid_line: 'fail_line' };
    const input = [chatLine('a'), without('custom_id')];
    expectFailed(await runBatch(sdk, client, input, { gateway_options } as never), [
      { code: 'missing_required_parameter', message: expect.any(String), param: 'custom_id', line: 2 },
    ]);
  });

  test('every bad line is reported, in the order of the lines', async () => {
    const lines = ['custom_id', 'method', 'url', 'body'].map((member) => JSON.stringify(without(member)));
    expectFailed(await run([lines[0], lines[1], lines[2], lines[3], good('fine'), '{', ''].join('\n')), [
      ...['custom_id', 'method', 'url', 'body'].map((param, index) => ({
        code: 'missing_required_parameter',
        message: `Missing required parameter: '${param}'.`,
        param,
        line: index + 1,
      })),
      { code: 'invalid_json_line', message: notJson, param: null, line: 6 },
    ]);
  });

  test('of very many bad lines the first hundred are reported, and how many more there are', async () => {
    const batch = await run('{\n'.repeat(250));
    expect(batch.errors?.data).toHaveLength(101);
    expect(batch.errors?.data?.slice(0, 100).map(({ line }) => line)).toEqual(
      Array.from({ length: 100 }, (_v, n) => n + 1),
    );
    expect(batch.errors?.data?.at(-1)).toEqual({
      code: 'more_errors',
      message: 'And 150 more errors. Correct these first.',
      param: null,
      line: null,
    });
  });

  test('a repeated custom_id fails the batch with the later line', async () => {
    const text = toJsonl([chatLine('same'), chatLine('other'), chatLine('same')]);
    const message =
      "The custom_id 'same' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.";
    expectFailed(await run(text), [{ code: 'duplicate_custom_id', message, param: 'custom_id', line: 3 }]);
  });

  test.each([
    ['no byte', ''],
    ['blank lines only', '\n\r\n  \n\n'],
  ])('a file of %s fails with empty_file', async (_what, text) => {
    expectFailed(await run(text), [
      {
        code: 'empty_file',
        message: 'The input file is empty. Please ensure that the batch contains at least one request.',
        param: null,
        line: null,
      },
    ]);
  });

  test.each([
    ['ends lines with CRLF', `${good('a')}\r\n${good('b')}\r\n`],
    ['has no line end at its end', `${good('a')}\n${good('b')}`],
    ['has blank lines between and after', `\n${good('a')}\n\n   \n${good('b')}\n\n\n`],
    ['spaces its JSON', `  ${good('a').replaceAll(':', ' : ')}  \n\t${good('b')}\n`],
  ])('a file that %s is tolerated', async (_what, text) => {
    const batch = await run(text);
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 2, completed: 2, failed: 0 } });
    expect((await resultsOf(client, batch)).customIds).toEqual(['a', 'b']);
  });

  test('blank lines count as lines in the errors', async () => {
    expectFailed(await run(`\n${good('a')}\n\n{\n`), [
      { code: 'invalid_json_line', message: notJson, param: null, line: 4 },
    ]);
  });

  test('50,001 lines where 50,000 are allowed fail with too_many_tasks', async () => {
    const text = Array.from({ length: 50_001 }, (_v, n) => `${good(`${n}`)}\n`).join('');
    expectFailed(await run(text), [
      {
        code: 'too_many_tasks',
        message: 'The input file has more than the allowed 50000 requests. Split it into several batches.',
        param: null,
        line: null,
      },
    ]);
  });

  test('a byte order mark is named in the error of line 1', async () => {
    expectFailed(await run(`\uFEFF${good('a')}\n`), [
      { code: 'invalid_json_line', message: expect.stringContaining('byte order mark'), param: null, line: 1 },
    ]);
  });

  test('a file in UTF-16 is refused as a whole', async () => {
    const problem = {
      code: 'invalid_request',
      message: 'Invalid file for Batch API. Must be utf-8 encoded',
      param: null,
    };
    for (const mark of ['\uFEFF', '']) {
      const batch = await run(Buffer.from(`${mark}${good('a')}\n`, 'utf16le'));
      expect(batch.status).toBe('failed');
      expect(batch.errors?.data).toEqual([{ ...problem, line: null }]);
    }
  });

  test('a line that is not UTF-8 is an error of that line', async () => {
    const latin1 = Buffer.from(JSON.stringify(chatLine('b', { user: 'Zoë' })), 'latin1');
    expectFailed(await run(Buffer.concat([Buffer.from(`${good('a')}\n`), latin1, Buffer.from('\n')])), [
      { code: 'invalid_json_line', message: expect.stringContaining(notJson), param: null, line: 2 },
    ]);
  });

  test('lines of different models run in one batch, which then has no model of its own', async () => {
    const lines = [chatLine('a'), chatLine('b', { model: '@simulator/sim-echo' })];
    const batch = await runBatch(sdk, client, lines);
    expect(batch).toMatchObject({ status: 'completed', model: null, request_counts: { total: 2, completed: 2 } });
    const { output } = await resultsOf(client, batch);
    expect(output.map(({ response }) => response?.body['model'])).toEqual(['sim-small', 'sim-echo']);
  });

  test('custom ids come back as they were written, whatever is in them', async () => {
    const ids = ['ä 東京 🙂', '"quoted\\"', ' spaces ', '__proto__', '1e3', 'a'.repeat(512)];
    const batch = await runBatch(
      sdk,
      client,
      ids.map((id) => chatLine(id)),
    );
    expect(batch.status).toBe('completed');
    expect((await resultsOf(client, batch)).customIds).toEqual(ids);
  });
});

test('the other endpoints refuse stream: true with their own names', async () => {
  const [sdk] = sdks;
  if (!sdk) throw new Error('no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const line = {
    custom_id: 'a',
    method: 'POST',
    url: '/v1/completions',
    body: { model: '@simulator/x', prompt: 'p', stream: true },
  };
  expectFailed(await runBatch(sdk, client, [line], { endpoint: '/v1/completions' }), [
    {
      code: 'streaming_unsupported',
      message: 'Completions: Streaming is not supported in the Batch API.',
      param: 'body.stream',
      line: 1,
    },
  ]);
});

test('a line longer than the limit is an error of that line', async () => {
  const [sdk] = sdks;
  if (!sdk) throw new Error('no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const long = chatLine('long', { messages: [{ role: 'user', content: 'x'.repeat(4 * 1_048_576) }] });
  const length = Buffer.byteLength(JSON.stringify(long));
  expectFailed(await runBatch(sdk, client, [...chatLines(1), long]), [
    {
      code: 'line_too_long',
      message: `This line is ${length} bytes long. A line can have at most 4194304 bytes.`,
      param: null,
      line: 2,
    },
  ]);
});

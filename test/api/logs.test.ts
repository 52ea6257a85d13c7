import { Big } from 'big.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, resultsOf, runBatch } from './batch-kit.ts';
import { createWorkspace } from './second-workspace.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';

/** As the price list charges the simulator: one dollar for a million tokens of input, two of output. */
const dollarsOf = (input = 0, output = 0): string => new Big(input + 2 * output).div(1_000_000).toFixed();

// The request log, as its routes show it.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

type LogRecord = Record<string, unknown> & { id: string };
type LogList = {
  object: string;
  data: LogRecord[];
  first_id: string | null;
  last_id: string | null;
  has_more: boolean;
};

const secretWords = 'a prompt that nobody may find';

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });
  const list = async (query: Record<string, unknown>): Promise<LogList> => await client.get('/logs', { query });

  /** The rows are written after the answer. */
  const rowsOf = async (query: Record<string, unknown>, count: number): Promise<LogRecord[]> =>
    (
      await eventually(
        () => list({ limit: 100, ...query }),
        ({ data }) => data.length >= count,
      )
    ).data;

  const traced = (traceId: string) => ({
    headers: {
      'x-gateway-trace-id': traceId,
      'x-gateway-span-id': 'span-1',
      'x-gateway-parent-span-id': 'span-0',
      'x-gateway-span-name': 'a step',
      'x-gateway-metadata': '{"team":"blue"}',
    },
  });

  test('a live call leaves one row with who, what, to whom, how it ended and its tokens, and no body', async () => {
    const traceId = `trace-live-${sdk.name}`;
    const { data: completion, response } = await client.chat.completions
      .create({ model: '@simulator/sim-small', messages: [{ role: 'user', content: secretWords }] }, traced(traceId))
      .withResponse();
    expect(response.headers.get('x-gateway-trace-id')).toBe(traceId);
    const rows = await rowsOf({ trace_id: traceId }, 1);
    expect(rows).toEqual([
      {
        id: expect.stringMatching(/^log_/),
        object: 'log',
        created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
        started_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
        kind: 'live',
        operation: 'chat',
        request_id: response.headers.get('x-request-id'),
        trace_id: traceId,
        span_id: 'span-1',
        parent_span_id: 'span-0',
        span_name: 'a step',
        session_id: null,
        agent_id: null,
        parent_agent_id: null,
        metadata: { team: 'blue' },
        api_key_name: 'admin',
        api_key_id: expect.stringMatching(/^key_/),
        user_id: null,
        virtual_key: 'simulator',
        integration: null,
        config: null,
        mode: 'single',
        prompt_slug: null,
        prompt_version: null,
        method: 'POST',
        path: '/v1/chat/completions',
        provider: 'simulator',
        model: 'sim-small',
        response_model: 'sim-small',
        provider_request_id: expect.stringMatching(/^req_/),
        stream: false,
        status: 200,
        error_code: null,
        outcome: 'succeeded',
        finish_reason: 'stop',
        attempts: 1,
        retries: 0,
        fallbacks: 0,
        cache_status: null,
        duration_ms: expect.any(Number),
        upstream_ms: expect.any(Number),
        gateway_ms: expect.any(Number),
        first_event_ms: null,
        usage: {
          input_tokens: completion.usage?.prompt_tokens,
          cached_tokens: 0,
          cache_write_tokens: null,
          audio_input_tokens: null,
          output_tokens: completion.usage?.completion_tokens,
          reasoning_tokens: 0,
          audio_output_tokens: null,
          details: null,
        },
        // The price list charges the simulator one dollar for a million tokens of input, two of output.
        cost_usd: dollarsOf(completion.usage?.prompt_tokens, completion.usage?.completion_tokens),
        saved_cost_usd: null,
        prompt_cache_saved_usd: null,
        is_estimate: false,
        price_version: expect.stringMatching(/^20\d\d-\d\d-\d\d\.[0-9a-f]{12}$/),
        batch_id: null,
        batch_line: null,
        last_used_option: null,
        process_id: expect.any(String),
        sequence: expect.any(Number),
        guardrails: null,
        sha256_salt: null,
        request_sha256: null,
        answer_sha256: null,
        public_model: null,
      },
    ]);
    const [row] = rows;
    expect(await client.get(`/logs/${row?.id}`)).toMatchObject({ ...row, _id: row?.id });
    const { rows: stored } = await platform.database.pool.query<{ text: string }>(
      'select log::text as text from request_log as log',
    );
    expect(stored.length).toBeGreaterThan(0);
    const words = completion.choices[0]?.message.content ?? '?';
    expect(stored.filter(({ text }) => text.includes(secretWords) || text.includes(words))).toEqual([]);
  });

  test('a stream leaves its tokens too, although the client did not ask for them', async () => {
    const traceId = `trace-stream-${sdk.name}`;
    const messages = [{ role: 'user' as const, content: 'Hello' }];
    const stream = await client.chat.completions.create(
      { model: '@simulator/sim-small', messages, stream: true },
      traced(traceId),
    );
    for await (const _chunk of stream) continue;
    const whole = await client.chat.completions.create({ model: '@simulator/sim-small', messages });
    expect(await rowsOf({ trace_id: traceId }, 1)).toMatchObject([
      {
        stream: true,
        status: 200,
        finish_reason: 'stop',
        first_event_ms: expect.any(Number),
        usage: {
          input_tokens: whole.usage?.prompt_tokens,
          output_tokens: whole.usage?.completion_tokens,
        },
      },
    ]);
  });

  test('failed calls are logged with their status and code, once for each call of the SDK', async () => {
    const traceId = `trace-failed-${sdk.name}`;
    const messages = [{ role: 'user' as const, content: 'Hello' }];
    await getFailureCode(
      client.chat.completions.create({ model: '@simulator/sim-fault-429-ms', messages }, traced(traceId)),
    );
    const rows = await rowsOf({ trace_id: traceId, status: '4xx' }, 3);
    expect(rows.map(({ status, error_code, usage, attempts }) => ({ status, error_code, usage, attempts }))).toEqual(
      Array.from({ length: 3 }, () => ({ status: 429, error_code: 'http_429', usage: null, attempts: 1 })),
    );
    await getFailureCode(
      client.chat.completions.create(
        { model: '@simulator/sim-fault-reset-early', messages },
        { ...traced(`${traceId}-reset`), maxRetries: 0 },
      ),
    );
    expect(await rowsOf({ trace_id: `${traceId}-reset` }, 1)).toMatchObject([
      { status: 502, error_code: expect.stringMatching(/^upstream_/), usage: null },
    ]);
  });

  test('every line of a batch is logged, under the trace of the call that created it', async () => {
    const traceId = `trace-batch-${sdk.name}`;
    const input = [
      chatLine('good'),
      chatLine('bad', { model: '@simulator/sim-fault-404' }),
      chatLine('again', { model: '@simulator/sim-fault-503-then-ok-1', user: sdk.name }),
    ];
    const traceable = new sdk.OpenAI({
      apiKey: platform.adminKey,
      baseURL: platform.baseUrl,
      defaultHeaders: { 'x-gateway-trace-id': traceId },
    });
    const batch = await runBatch(sdk, traceable, input, { metadata: { run: '1' } });
    const { output } = await resultsOf(client, batch);
    const usage = output[0]?.response?.body['usage'] as { prompt_tokens: number; completion_tokens: number };
    const rows = await rowsOf({ batch_id: batch.id }, 3);
    const common = {
      kind: 'batch',
      operation: 'chat',
      trace_id: traceId,
      batch_id: batch.id,
      virtual_key: 'simulator',
      provider: 'simulator',
      stream: false,
      metadata: { run: '1' },
      api_key_id: expect.stringMatching(/^key_/),
    };
    expect(rows.toSorted((left, right) => Number(left['batch_line']) - Number(right['batch_line']))).toMatchObject([
      {
        ...common,
        batch_line: 1,
        status: 200,
        attempts: 1,
        model: 'sim-small',
        request_id: output[0]?.id,
        usage: { input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens },
        cost_usd: dollarsOf(usage.prompt_tokens, usage.completion_tokens),
      },
      { ...common, batch_line: 2, status: 404, attempts: 1, error_code: 'http_404', usage: null, cost_usd: '0' },
      { ...common, batch_line: 3, status: 200, attempts: 2, retries: 1, error_code: null },
    ]);
    const byTrace = await rowsOf({ trace_id: traceId, kind: 'batch' }, 3);
    expect(byTrace.map(({ id }) => id)).toEqual(rows.map(({ id }) => id));
  });

  test("calls are tagged with their key's metadata, and their own over it; lines with those of the call that made them", async () => {
    const body = { name: 'tagged', defaults: { metadata: { team: 'blue', env: 'test' } } };
    const { key } = await client.post<{ key: string }>('/api-keys', { body });
    const metadata = '{"env":"live","_user":"nobody"}';
    const defaultHeaders = { 'x-gateway-trace-id': `trace-tags-${sdk.name}`, 'x-gateway-metadata': metadata };
    const tagged = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl, defaultHeaders });
    const messages = [{ role: 'user' as const, content: 'Hello' }];
    await tagged.chat.completions.create({ model: '@simulator/sim-small', messages });
    const batch = await runBatch(sdk, tagged, [chatLine('a')], {
      metadata: { run: '1', _user: 'nobody' },
      gateway_options: { metadata: { step: '2', _other: 'x' } },
    } as object);
    expect(batch.metadata).toEqual({ run: '1' });
    const rows = await rowsOf({ trace_id: `trace-tags-${sdk.name}` }, 2);
    expect(rows.map(({ kind, metadata }) => ({ kind, metadata }))).toEqual([
      { kind: 'batch', metadata: { run: '1', team: 'blue', env: 'live', step: '2' } },
      { kind: 'live', metadata: { team: 'blue', env: 'live' } },
    ]);
  });

  test('the log is newest first, pages by after and limit, and filters', async () => {
    const key = await createWorkspace(platform);
    const own = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl });
    await own.post('/virtual-keys', {
      body: { name: 's', slug: 's', provider: 'simulator', key: 'k', custom_host: platform.simulatorUrl },
    });
    expect(await own.get('/logs')).toEqual({
      object: 'list',
      data: [],
      first_id: null,
      last_id: null,
      has_more: false,
    });
    const models = ['sim-a', 'sim-b', 'sim-a', 'sim-b', 'sim-a'];
    for (const model of models) {
      await own.chat.completions.create({ model: `@s/${model}`, messages: [{ role: 'user', content: model }] });
    }
    const query = async (params: Record<string, unknown>): Promise<LogList> =>
      await own.get('/logs', { query: params });
    const { data } = await eventually(
      () => query({}),
      (page) => page.data.length === 5,
    );
    expect(data.map(({ model }) => model)).toEqual(models.toReversed());
    const sequences = data.map(({ sequence }) => Number(sequence));
    expect(sequences).toEqual(sequences.toSorted((left, right) => right - left));
    const ids = data.map(({ id }) => id);
    const first = await query({ limit: 2 });
    expect(first).toEqual({
      object: 'list',
      data: data.slice(0, 2),
      first_id: ids[0],
      last_id: ids[1],
      has_more: true,
    });
    expect((await query({ limit: 2, after: ids[1] })).data).toEqual(data.slice(2, 4));
    expect(await query({ limit: 2, after: ids[3] })).toMatchObject({ data: data.slice(4), has_more: false });
    expect((await query({ model: 'sim-b' })).data.map(({ id }) => id)).toEqual([ids[1], ids[3]]);
    expect((await query({ provider: 'openai' })).data).toEqual([]);
    expect((await query({ status: 'error' })).data).toEqual([]);
    expect((await list({ model: 'sim-b' })).data).toEqual([]);
    expect(await getFailureCode(client.get(`/logs/${ids[0]}`))).toMatchObject({ status: 404, param: 'log_id' });
  });
});

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { listLogs } from '#apps/api/logs/routes.ts';
import { retrieveLog } from '#apps/api/logs/retrieve-log.ts';
import { LogDetails, LogList } from '#libs/contracts/logs/logs.ts';
import { createTestLogger, serveForTest, type TestServer } from '#libs/http/http-test-kit.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import { createRequestLog } from '#libs/request-log/write/request-log.ts';
import { logEntry } from '#test/log-entry.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();
let server: TestServer;
const searches = createTurns({ runningMax: 1, waitingMax: 1 }, 'searches');
const recordedMs = Date.UTC(2026, 10, 21, 10, 0, 1, 999);

beforeAll(async () => {
  const { db, pool } = database;
  const clock = { now: () => recordedMs };
  const log = createRequestLog({ app: 'api', db, pool, logger: createTestLogger().logger, clock });
  for (let index = 0; index < 25; index += 1) {
    log.record(logEntry({ request_id: `req_${index}`, metadata: { user: `u${index}` } }));
  }
  log.record(logEntry({ workspace_id: 'ws_2', request_id: 'req_foreign' }));
  log.record(
    logEntry({ request_id: 'req_silent', input_tokens: null, cached_tokens: null, output_tokens: null, status: null }),
  );
  await log.stop?.();
  server = await serveForTest([
    listLogs({ db, searches }),
    retrieveLog({
      db,
      countRead: () => {},
      bodiesReader: () => async () => null,
      readLineBodies: async () => null,
      baseUrl: () => 'http://gateway.test',
    }),
  ]);
});
afterAll(async () => {
  await server?.[Symbol.asyncDispose]();
});

async function get(path: string, key = 'all'): Promise<{ status: number; body: unknown }> {
  const response = await fetch(server.url + path, { headers: { authorization: `Bearer ${key}` } });
  return { status: response.status, body: await response.json() };
}

describe('GET /v1/logs', () => {
  test('searches of a workspace wait for their turn, too many are refused, and plain pages do not wait', async () => {
    const { promise: hold, resolve: finish } = Promise.withResolvers<void>();
    const holding = searches.run('ws_1', () => hold);
    const both = [get('/v1/logs?model=none'), get('/v1/logs?model=none')];
    expect(await Promise.race(both)).toMatchObject({ status: 429, body: { error: { code: 'too_many_queries' } } });
    expect((await get('/v1/logs?limit=5')).status).toBe(200);
    finish();
    const statuses = new Set((await Promise.all(both)).map(({ status }) => status));
    expect(statuses).toEqual(new Set([200, 429]));
    await holding;
  });

  test('answers a page in the documented shape, and the next one after its last id', async () => {
    const first = LogList.strict().parse((await get('/v1/logs')).body);
    expect(first.data).toHaveLength(20);
    expect(first).toMatchObject({ has_more: true, first_id: first.data[0]?.id, last_id: first.data[19]?.id });
    const second = LogList.parse((await get(`/v1/logs?limit=20&after=${first.last_id}`)).body);
    expect(second.data.map((record) => record.request_id)).toEqual([
      'req_5',
      'req_4',
      'req_3',
      'req_2',
      'req_1',
      'req_0',
    ]);
    expect(second.has_more).toBe(false);
  });

  test('shows a record whole', async () => {
    const { body } = await get('/v1/logs?limit=1&created_before=1795255201');
    expect(body).toEqual({ object: 'list', data: [], first_id: null, last_id: null, has_more: false });
    const page = LogList.parse((await get('/v1/logs?created_after=1795255201&created_before=1795255202&limit=2')).body);
    expect(page.data[1]).toEqual({
      id: expect.stringMatching(/^log_[0-9a-f]{32}$/),
      object: 'log',
      created_at: '2026-11-21T10:00:01.999Z',
      started_at: '2026-11-21T10:00:00.123Z',
      kind: 'live',
      operation: 'chat',
      request_id: 'req_24',
      trace_id: 'trace_1',
      span_id: null,
      parent_span_id: null,
      span_name: null,
      session_id: null,
      agent_id: null,
      parent_agent_id: null,
      last_used_option: null,
      metadata: { user: 'u24' },
      api_key_id: 'key_1',
      api_key_name: null,
      user_id: null,
      virtual_key: 'openai-main',
      integration: null,
      config: null,
      mode: 'single',
      prompt_slug: null,
      prompt_version: null,
      method: 'POST',
      path: '/v1/chat/completions',
      provider: 'openai',
      model: 'gpt-5-mini',
      response_model: 'gpt-5-mini-2026-01-01',
      provider_request_id: 'req_upstream',
      stream: false,
      status: 200,
      error_code: null,
      outcome: 'succeeded',
      finish_reason: 'stop',
      attempts: 1,
      retries: 0,
      fallbacks: 0,
      cache_status: null,
      duration_ms: 812.25,
      upstream_ms: 800.5,
      gateway_ms: 11.75,
      first_event_ms: null,
      usage: {
        input_tokens: 812,
        cached_tokens: 0,
        cache_write_tokens: null,
        audio_input_tokens: null,
        output_tokens: 144,
        reasoning_tokens: null,
        audio_output_tokens: null,
        details: null,
      },
      cost_usd: '0.003913',
      saved_cost_usd: null,
      prompt_cache_saved_usd: null,
      is_estimate: false,
      price_version: '2026-01-01.0123456789ab',
      batch_id: null,
      batch_line: null,
      process_id: expect.stringMatching(/^[0-9a-f-]{36}$/),
      sequence: 25,
      guardrails: null,
      sha256_salt: null,
      request_sha256: null,
      answer_sha256: null,
      public_model: null,
    });
    expect(page.data[0]).toMatchObject({ request_id: 'req_silent', usage: null, status: null });
  });

  test.each([
    ['limit=0', 'limit'],
    ['limit=101', 'limit'],
    ['limit=ten', 'limit'],
    ['after=log_1', 'after'],
    ['status=6xx', 'status'],
    ['kind=neither', 'kind'],
    ['created_after=yesterday', 'created_after'],
    ['model=%00', 'model'],
  ])('refuses ?%s and names the parameter', async (query, param) => {
    expect(await get(`/v1/logs?${query}`)).toMatchObject({
      status: 400,
      body: { error: { type: 'invalid_request_error', param } },
    });
  });

  test('needs the scope logs.read', async () => {
    expect((await get('/v1/logs', 'logs.read')).status).toBe(200);
    expect((await get('/v1/logs', 'chat.write')).status).toBe(403);
  });
});

describe('GET /v1/logs/{id}', () => {
  test('answers the record that the list shows, and what clients of Portkey read', async () => {
    const [record] = LogList.parse((await get('/v1/logs?limit=1')).body).data;
    const { status, body } = await get(`/v1/logs/${record?.id}`);
    expect(status).toBe(200);
    expect(LogDetails.strict().parse(body)).toEqual(body);
    expect(body).toMatchObject({ ...record, _id: record?.id, organisation_id: 'org_default' });
  });

  test('its metrics, request and response say what the record says', async () => {
    const [, record] = LogList.parse((await get('/v1/logs?limit=2')).body).data;
    const { body } = await get(`/v1/logs/${record?.id}`);
    expect(body).toMatchObject({
      request: {
        url: 'http://gateway.test/v1/chat/completions',
        method: 'POST',
        body: null,
        gatewayHeaders: { 'x-gateway-trace-id': 'trace_1', 'x-gateway-metadata': '{"user":"u24"}' },
      },
      response: { status: 200, responseTime: 812, body: null },
      metrics: {
        is_success: true,
        ai_org: 'openai',
        ai_model: 'gpt-5-mini-2026-01-01',
        req_units: 812,
        res_units: 144,
        total_units: 956,
        cost: 0.3913,
        response_time: 812,
        gateway_processing_time: 12,
        'metadata.key': ['user'],
        'metadata.value': ['u24'],
      },
    });
  });

  test('answers 404 for ids of another workspace, of nothing and of no form', async () => {
    const foreign = await database.db
      .selectFrom('request_log')
      .select('id')
      .where('workspace_id', '=', 'ws_2')
      .executeTakeFirstOrThrow();
    for (const id of [`log_${foreign.id.replaceAll('-', '')}`, 'log_01a1fdfa460070008000000000000000', 'log_1', '1']) {
      expect(await get(`/v1/logs/${id}`)).toMatchObject({
        status: 404,
        body: { error: { message: `No log record found with id '${id}'.`, param: 'log_id' } },
      });
    }
  });
});

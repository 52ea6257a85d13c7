import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { postJson } from './scripted-provider.ts';
import { getFailureCode, sdks, watchCalls, type Client } from './sdk.ts';

// ERR-1, ERR-3 to ERR-5, and the classes that the SDKs make of errors.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false, environment: { SLUICE_BODY_MAX: '64KiB' } });
});
afterAll(() => platform.stop());

const messages = [{ role: 'user' as const, content: 'Hello' }];
const authorized = (): Record<string, string> => ({ authorization: `Bearer ${platform.adminKey}` });

async function send(
  method: string,
  path: string,
  init: { headers?: Record<string, string>; body?: string } = {},
): Promise<Response> {
  const { origin } = new URL(platform.baseUrl);
  return await fetch(origin + path, { method, ...init, headers: { ...authorized(), ...init.headers } });
}

type Expected = { status: number; type: string; param?: string | null; code: string | null; message: RegExp };

/** An error answer whole: status, headers and a body of exactly the four keys. */
async function expectError(response: Response, { status, message, param = null, ...rest }: Expected): Promise<void> {
  expect(response.status).toBe(status);
  expect(response.headers.get('content-type')).toBe('application/json');
  expect(response.headers.get('x-request-id')).toMatch(/^req_[0-9a-f]{32}$/);
  expect(response.headers.get('x-gateway-trace-id')).toMatch(/^[0-9a-f]{32}$/);
  expect(await response.json()).toEqual({ error: { message: expect.stringMatching(message), param, ...rest } });
}

const json = { 'content-type': 'application/json' };
const invalid = 'invalid_request_error';

test.each<[string, () => Promise<Response>, Expected]>([
  [
    'an unknown route',
    () => send('GET', '/v1/nothing'),
    { status: 404, type: invalid, code: 'unknown_url', message: /^Invalid URL \(GET \/v1\/nothing\)$/ },
  ],
  [
    'an unknown route outside /v1',
    () => send('POST', '/etc/passwd', { headers: json, body: '{}' }),
    { status: 404, type: invalid, code: 'unknown_url', message: /^Invalid URL \(POST \/etc\/passwd\)$/ },
  ],
  [
    'a wrong method',
    () => send('GET', '/v1/chat/completions'),
    {
      status: 405,
      type: invalid,
      code: 'method_not_allowed',
      message: /^The method GET is not allowed for \/v1\/chat\/completions\. Use POST\.$/,
    },
  ],
  [
    'a body that is too large',
    () =>
      postJson(platform, '/chat/completions', {
        model: 'x',
        messages: [{ role: 'user', content: 'x'.repeat(70_000) }],
      }),
    { status: 413, type: invalid, code: 'request_too_large', message: /maximum is 65536 bytes/ },
  ],
  [
    'a content type that is no JSON',
    () => send('POST', '/v1/chat/completions', { headers: { 'content-type': 'text/plain' }, body: '{}' }),
    { status: 415, type: invalid, code: 'unsupported_media_type', message: /"text\/plain".*application\/json/ },
  ],
  [
    'malformed JSON',
    () => send('POST', '/v1/chat/completions', { headers: json, body: '{"model": "x",\n "messages": [}' }),
    { status: 400, type: invalid, code: 'invalid_json', message: /not valid JSON: .* \(line 2, column 15\)\.$/ },
  ],
  [
    'a body that is not there',
    () => send('POST', '/v1/chat/completions', { headers: json }),
    { status: 400, type: invalid, code: 'empty_body', message: /Expected a JSON object/ },
  ],
  [
    'a body that is no object',
    () => send('POST', '/v1/chat/completions', { headers: json, body: '[1]' }),
    { status: 400, type: invalid, code: 'invalid_type', message: /expected an object, but got an array instead/ },
  ],
  [
    'a missing key',
    () => send('GET', '/v1/batches', { headers: { authorization: '' } }),
    { status: 401, type: invalid, code: 'missing_api_key', message: /x-gateway-api-key/ },
  ],
  [
    'a wrong key',
    () => send('GET', '/v1/batches', { headers: { authorization: 'Bearer sk-wrong' } }),
    { status: 401, type: invalid, code: 'invalid_api_key', message: /^Incorrect API key provided/ },
  ],
])('%s has the four keys, JSON and a request id', async (_what, call, expected) => {
  await expectError(await call(), expected);
});

test('a fault of our own is a 500 that tells nothing of the inside', async () => {
  await platform.database.pool.query('alter table file rename to file_elsewhere');
  try {
    const response = await send('GET', '/v1/files');
    const requestId = response.headers.get('x-request-id') ?? '';
    await expectError(response, {
      status: 500,
      type: 'server_error',
      code: 'internal_error',
      message: new RegExp(
        `^The server had an error while processing your request\\. Include the request ID ${requestId} `,
      ),
    });
  } finally {
    await platform.database.pool.query('alter table file_elsewhere rename to file');
  }
  expect((await send('GET', '/v1/files')).status).toBe(200);
});

test.each([
  ['3600', 'false'],
  ['7', null],
])('Retry-After: %s of a provider is passed on, and SDKs sleep a minute at most', async (retryAfter, shouldRetry) => {
  const response = await postJson(platform, '/chat/completions', {
    model: `@simulator/sim-fault-429-after-${retryAfter}`,
    messages,
  });
  expect(response.status).toBe(429);
  expect(response.headers.get('retry-after')).toBe(retryAfter);
  expect(response.headers.get('x-should-retry')).toBe(shouldRetry);
});

test('a date that a provider writes there is passed on', async () => {
  const response = await postJson(platform, '/chat/completions', { model: '@simulator/sim-fault-429-date', messages });
  expect(response.status).toBe(429);
  const seconds = (Date.parse(response.headers.get('retry-after') ?? '') - Date.now()) / 1_000;
  expect(seconds).toBeGreaterThan(-5);
  expect(seconds).toBeLessThanOrEqual(60);
});

test("a provider's 401 names the provider in a header, and the gateway's own has no such header", async () => {
  const ask = (model: string, headers: Record<string, string> = {}) =>
    postJson(platform, '/chat/completions', { model, messages }, headers);
  const ofProvider = await ask('@simulator/sim-fault-401');
  expect([ofProvider.status, ofProvider.headers.get('x-gateway-provider')]).toEqual([401, 'simulator']);
  const own = await ask('@simulator/sim-small', { authorization: 'Bearer sk-wrong' });
  expect([own.status, own.headers.get('x-gateway-provider')]).toEqual([401, null]);
  expect(await own.json()).toMatchObject({ error: { message: expect.stringContaining('the gateway key is unknown') } });
});

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  });
  const ask = (model: string, options = {}) =>
    client.chat.completions.create({ model: `@simulator/${model}`, messages }, options);

  test.each([
    [400, 'BadRequestError'],
    [401, 'AuthenticationError'],
    [403, 'PermissionDeniedError'],
    [404, 'NotFoundError'],
    [409, 'ConflictError'],
    [422, 'UnprocessableEntityError'],
    [429, 'RateLimitError'],
    [500, 'InternalServerError'],
    [503, 'InternalServerError'],
  ] as const)('a status %i of the provider is a %s with message, type, param and code', async (status, name) => {
    const error = await getFailureCode(
      ask(status === 429 ? 'sim-fault-429-none' : `sim-fault-${status}`, { maxRetries: 0 }),
    );
    expect(error).toBeInstanceOf(sdk.OpenAI[name]);
    expect(error).toMatchObject({ status, param: null, requestID: expect.stringMatching(/^req_[0-9a-f]{32}$/) });
    expect(error.type).toMatch(/^\w+$/);
    expect(error.message).toMatch(new RegExp(`^${status} \\w`));
    expect(Object.keys(error.error as object).toSorted()).toEqual(['code', 'message', 'param', 'type']);
  });

  test('an HTML error page of the provider becomes an error of the same status with the four keys', async () => {
    const error = await getFailureCode(ask('sim-fault-html-503', { maxRetries: 0 }));
    expect(error).toBeInstanceOf(sdk.OpenAI.InternalServerError);
    expect(Object.keys(error.error as object).toSorted()).toEqual(['code', 'message', 'param', 'type']);
    expect(error.message).toMatch(
      /^503 The provider returned status 503 with a body that is not JSON\. It starts with: "</,
    );
  });

  test('a missing and a wrong key are both 401, and not retried', async () => {
    for (const [key, code] of [
      ['sk-wrong', 'invalid_api_key'],
      [' ', 'missing_api_key'],
    ] as const) {
      const sent = watchCalls(platform.baseUrl);
      const stranger = new sdk.OpenAI({ apiKey: key, baseURL: platform.baseUrl });
      const error = await getFailureCode(stranger.chat.completions.create({ model: '@simulator/sim-small', messages }));
      expect(error).toBeInstanceOf(sdk.OpenAI.AuthenticationError);
      expect(error).toMatchObject({ status: 401, type: invalid, param: null, code });
      expect(sent.calls).toHaveLength(1);
    }
  });

  test('an exhausted quota is a 429 that is not retried', async () => {
    platform.simulator.resetStats();
    const sent = watchCalls(platform.baseUrl);
    const error = await getFailureCode(ask('sim-fault-429-quota'));
    expect(error).toBeInstanceOf(sdk.OpenAI.RateLimitError);
    expect(error).toMatchObject({ status: 429, type: 'insufficient_quota', code: 'insufficient_quota' });
    expect(error.headers?.get('x-should-retry')).toBe('false');
    expect(sent.calls).toHaveLength(1);
    expect(platform.simulator.stats().requests).toEqual({ 'POST /v1/chat/completions': 1 });
  });
});

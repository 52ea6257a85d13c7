import { afterAll, beforeAll, expect, test } from 'vitest';
import { pino } from 'pino';
import { z } from 'zod';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createHttpApp } from './create-http-app.ts';
import type { ErrorBody } from './answers/error-response.ts';
import {
  createTestLogger,
  authenticateForTest,
  exchange,
  serveForTest,
  testRoute,
  type TestServer,
} from './http-test-kit.ts';
import { getJsonBody } from './bodies/json-body.ts';
import { addLogFields, getCaller, getContext, gatewayHeader } from './request-context.ts';
import { withInput, type Route } from './route.ts';

const ListQuery = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(20),
  after: z.string().optional(),
});
const CreateBody = z.strictObject({
  input_file_id: z.string(),
  endpoint: z.enum(['/v1/chat/completions', '/v1/embeddings']),
  metadata: z.record(z.string(), z.string()).optional(),
});
let bodyReads = 0;

const routes: Route[] = [
  testRoute({
    method: 'GET',
    path: '/v1/batches/:batchId',
    scope: 'batches.read',
    handler: (request, response) =>
      void response.json({ id: request.params.batchId, caller: getCaller(request).keyId }),
  }),
  testRoute({
    method: 'GET',
    path: '/v1/batches',
    scope: 'batches.read',
    ...withInput({ query: ListQuery }, ({ query }, _request, response) => void response.json(query)),
  }),
  testRoute({
    method: 'POST',
    path: '/v1/batches',
    ...withInput({ body: CreateBody }, ({ body }, _request, response) => {
      bodyReads += 1;
      response.json(body);
    }),
  }),
  testRoute({
    method: 'POST',
    path: '/v1/batches/:batchId/pause',
    ...withInput({ body: z.strictObject({ seconds: z.int() }).optional() }, ({ body }, _request, response) => {
      response.json({ body: body ?? null });
    }),
  }),
  testRoute({
    method: 'POST',
    path: '/v1/chat/completions',
    scope: 'chat.write',
    request: { body: 'json-bytes' },
    handler: (request, response) => {
      const { bytes, value } = getJsonBody(request);
      addLogFields(request, { provider: 'openai' });
      response.json({ length: bytes.length, value, text: bytes.toString() });
    },
  }),
  testRoute({
    method: 'POST',
    path: '/v1/batches/:batchId/cancel',
    handler: (_request, response) => void response.json({}),
  }),
  testRoute({
    method: 'GET',
    path: '/v1/context',
    scope: 'public',
    request: { headers: ['metadata'] },
    handler: (request, response) => {
      const { requestId, traceId, spanId, parentSpanId, spanName, metadata } = getContext(request);
      const virtualKey = gatewayHeader(request, 'x-gateway-virtual-key', 'x-portkey-virtual-key');
      response.json({ requestId, traceId, spanId, parentSpanId, spanName, metadata, virtualKey });
    },
  }),
  testRoute({
    method: 'GET',
    path: '/v1/fail/:how',
    scope: 'public',
    handler: async (request, response) => {
      await Promise.resolve();
      const { how } = request.params;
      if (how === 'bug') throw new TypeError('secret detail of the code');
      if (how === 'late') {
        response.write('half');
        throw new Error('after the head');
      }
      if (how === 'logged') {
        addLogFields(request, { error_code: 'client_stalled' });
        throw new GatewayError('unavailable', 'other', 'Gone.');
      }
      if (how === 'conflict') throw new GatewayError('conflict', null, 'Cannot cancel.');
      if (how === 'busy') throw new GatewayError('conflict', 'busy', 'Come back.', { retryAfterMs: 250 });
      if (how === 'quota') throw new GatewayError('quota_exceeded', 'insufficient_quota', 'Out of quota.');
      if (how === 'limited')
        throw new GatewayError('rate_limited', 'rate_limit_exceeded', 'Slow down.', { retryAfterMs: 3_600_000 });
      if (how === 'down') throw new GatewayError('unavailable', null, 'Down.', { retryAfterMs: 1_500 });
      if (how === 'full') throw new GatewayError('storage_full', 'storage_full', 'The disk is full.');
      if (how === 'zod') z.object({ n: z.number() }).parse({ n: 'x' });
      throw new Error('unexpected');
    },
  }),
];

routes.push(
  testRoute({
    method: 'GET',
    path: '/v1/jobs',
    scope: 'batches.read',
    ...withInput(
      { query: z.looseObject({ metadata: z.string().optional() }).transform((all) => ({ ...all })) },
      ({ query }, _request, response) => void response.json(query),
    ),
  }),
  testRoute({
    method: 'PUT',
    path: '/v1/teams/:teamId/people/:userId',
    ...withInput(
      { params: z.object({ teamId: z.string() }), body: z.strictObject({ role: z.string() }) },
      ({ body }, _request, response) => void response.json(body),
    ),
  }),
  testRoute({
    method: 'GET',
    path: '/v1/teams/:teamId/people',
    scope: 'batches.read',
    ...withInput({ query: ListQuery }, ({ query }, _request, response) => void response.json(query)),
  }),
  testRoute({
    method: 'GET',
    path: '/v1/relayed',
    scope: 'batches.read',
    request: { query: 'relayed' },
    handler: (request, response) => void response.json({ url: request.originalUrl }),
  }),
);

let server: TestServer;
beforeAll(async () => {
  server = await serveForTest(routes, { deps: { jsonBody: { sizeBytesMax: 100_000, timeoutMs: 300 } } });
});
afterAll(() => server[Symbol.asyncDispose]());

type Init = RequestInit & { duplex?: 'half' };
async function call(
  path: string,
  init: Init = {},
): Promise<{ status: number; headers: Headers; body: unknown; error: ErrorBody['error'] }> {
  const headers = { authorization: 'Bearer all', ...(init.headers as Record<string, string> | undefined) };
  const response = await fetch(server.url + path, { ...init, headers });
  const body: unknown = await response.json();
  return { status: response.status, headers: response.headers, body, error: (body as ErrorBody).error };
}
const post = (path: string, body: string | Buffer<ArrayBuffer>, headers: Record<string, string> = {}) =>
  call(path, { method: 'POST', body, headers: { 'content-type': 'application/json', ...headers } });

const chat = '/v1/chat/completions';

test.each([
  ['unknown route', () => call('/v1/nope'), 404, 'unknown_url'],
  ['other method', () => call(chat), 405, 'method_not_allowed'],
  ['malformed JSON', () => post(chat, '{"a":'), 400, 'invalid_json'],
  ['invalid UTF-8', () => post(chat, Buffer.from([0x22, 0xff, 0x22])), 400, 'invalid_utf8'],
  ['empty body', () => call(chat, { method: 'POST' }), 400, 'empty_body'],
  ['too large', () => post(chat, `"${'x'.repeat(100_000)}"`), 413, 'request_too_large'],
  [
    'wrong content type',
    () => post(chat, 'a=1', { 'content-type': 'application/x-www-form-urlencoded' }),
    415,
    'unsupported_media_type',
  ],
  [
    'wrong charset',
    () => post(chat, '{}', { 'content-type': 'application/json; charset=utf-16' }),
    415,
    'unsupported_media_type',
  ],
  ['compressed', () => post(chat, '{}', { 'content-encoding': 'gzip' }), 415, 'unsupported_content_encoding'],
  ['too deep', () => post(chat, '['.repeat(65) + ']'.repeat(65)), 400, 'json_too_deep'],
  ['no key', () => call('/v1/batches', { headers: { authorization: 'Bearer wrong' } }), 401, 'invalid_api_key'],
  [
    'missing scope',
    () => call('/v1/batches', { headers: { authorization: 'Bearer files.read' } }),
    403,
    'missing_scope',
  ],
  ['bug', () => call('/v1/fail/bug'), 500, 'internal_error'],
  ['malformed escape in the path', () => call('/v1/batches/%zz'), 400, 'invalid_url'],
  ['disk full', () => call('/v1/fail/full'), 507, 'storage_full'],
])('an error has the four keys, JSON and a request id: %s', async (_name, run, status, code) => {
  const answer = await run();
  expect(answer.status).toBe(status);
  expect(answer.headers.get('content-type')).toBe('application/json');
  expect(answer.headers.get('x-request-id')).toMatch(/^req_[0-9a-f]{32}$/);
  expect(answer.headers.get('x-gateway-trace-id')).toMatch(/^[0-9a-f]{32}$/);
  expect(Object.keys(answer.body as object)).toEqual(['error']);
  expect(Object.keys(answer.error).sort()).toEqual(['code', 'message', 'param', 'type']);
  expect(answer.error.code).toBe(code);
});

test('a trace id that was not sent begins with the time, so that those of one moment lie together in the request log', async () => {
  const beforeMs = Date.now();
  const ids = await Promise.all(Array.from({ length: 20 }, async () => (await call('/v1/fail/bug')).headers));
  const traceIds = ids.map((headers) => headers.get('x-gateway-trace-id') ?? '');
  for (const traceId of traceIds) {
    const timeMs = Number.parseInt(traceId.slice(0, 12), 16);
    expect(timeMs).toBeGreaterThanOrEqual(beforeMs);
    expect(timeMs).toBeLessThanOrEqual(Date.now());
  }
  expect(new Set(traceIds.map((traceId) => traceId.slice(12))).size).toBe(20);
});

test('a bug is logged with its stack and request id, and its text is not sent', async () => {
  const answer = await call('/v1/fail/bug');
  const requestId = answer.headers.get('x-request-id') ?? '';
  expect(answer.error.message).toContain(requestId);
  expect(JSON.stringify(answer.body)).not.toContain('secret detail');
  const line = server.lines.find((line) => line.msg === 'request failed' && line.request_id === requestId);
  expect(JSON.stringify(line?.err)).toContain('secret detail of the code');
});

test('an error after the head cuts the connection instead of ending the answer in order', async () => {
  const answer = await exchange(server.port, 'GET /v1/fail/late HTTP/1.1\r\nHost: a\r\n\r\n');
  expect(answer).not.toContain('0\r\n\r\n');
  expect(answer).not.toContain('"error"');
});

test('the answer to another method lists the allowed ones', async () => {
  const answer = await call('/v1/batches', { method: 'DELETE' });
  expect(answer.status).toBe(405);
  expect(answer.headers.get('allow')).toBe('GET, HEAD, POST');
});

test('a missing scope is named', async () => {
  const answer = await call('/v1/batches', { headers: { authorization: 'Bearer files.read' } });
  expect(answer.error).toMatchObject({ type: 'permission_error', message: expect.stringContaining("'batches.read'") });
  expect((await call('/v1/batches', { headers: { authorization: 'Bearer batches.read' } })).status).toBe(200);
});

test('retry headers tell SDKs when to come back and when not to', async () => {
  const headersOf = async (how: string) => {
    const { status, headers } = await call(`/v1/fail/${how}`);
    return [status, headers.get('retry-after'), headers.get('retry-after-ms'), headers.get('x-should-retry')];
  };
  expect(await headersOf('conflict')).toEqual([409, null, null, 'false']);
  expect(await headersOf('busy')).toEqual([409, '1', '250', null]);
  expect(await headersOf('quota')).toEqual([429, null, null, 'false']);
  expect(await headersOf('limited')).toEqual([429, '3600', '3600000', 'false']);
  expect(await headersOf('down')).toEqual([503, '2', '1500', null]);
  expect(await headersOf('full')).toEqual([507, null, null, 'false']);
});

test('authentication comes before the body: a refused upload is not read, and its sender still gets the answer', async () => {
  const readsBefore = bodyReads;
  const answer = await call('/v1/batches', {
    method: 'POST',
    body: 'not json'.repeat(20_000),
    headers: { authorization: 'Bearer wrong', 'content-type': 'text/plain' },
  });
  expect(answer.status).toBe(401);
  expect(bodyReads).toBe(readsBefore);
});

test('a client that waits for 100-continue is refused before it sends anything', async () => {
  const head = `POST ${chat} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: 50000\r\n\r\n`;
  const answer = await exchange(server.port, head);
  expect(answer).toMatch(/^HTTP\/1\.1 401 /);
  expect(answer).not.toContain('100 Continue');
});

test('a body that waits for 100-continue is asked for once the caller is known', async () => {
  const head = `POST ${chat} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer all\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n`;
  const answer = await exchange(server.port, head, '{}');
  expect(answer).toMatch(/^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 OK/);
});

test('a body that drips too slowly is cut off with 408', async () => {
  const head = `POST ${chat} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer all\r\nContent-Length: 50\r\n\r\n{`;
  const answer = exchange(server.port, head);
  await expect
    .poll(() => server.lines.some((line) => line.status === 408 || line.status === 499), { timeout: 3_000 })
    .toBe(true);
  expect(await answer).toMatch(/^HTTP\/1\.1 408 [^]*"code":"request_timeout"/);
});

test('a member that is given twice in an object is refused by its name, so that no two readers read different bodies', async () => {
  const answer = await post(chat, '{"a": [{"b": 1, "c": 2, "b": 3}]}', { 'content-type': 'application/json' });
  expect([answer.status, answer.body]).toMatchObject([400, { error: { code: 'duplicate_member', param: 'a[0].b' } }]);
});

test('the original bytes and the parsed value reach the handler, chunked or not', async () => {
  const text = '{ "big": 12345678901234567890, "a": 2, "name": "žluť" }';
  const whole = await post(chat, text, { 'content-type': 'application/json; charset=UTF-8' });
  expect(whole.body).toMatchObject({ text, length: Buffer.byteLength(text), value: { a: 2, name: 'žluť' } });
  const pieces = [...Buffer.from(text)].map((byte) => `1\r\n${String.fromCharCode(byte)}\r\n`).join('');
  const head = `POST ${chat} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer all\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n`;
  const chunked = Buffer.from(await exchange(server.port, head, pieces, '0\r\n\r\n'), 'latin1').toString();
  expect(chunked).toContain(JSON.stringify(text));
});

test('the position of malformed JSON is given by line and column', async () => {
  const answer = await post(chat, '{\n  "a": 1,\n  "b": tru\n}');
  expect(answer.error.message).toContain('at byte 19 (line 3, column 8)');
});

test('a body with too many members is refused', async () => {
  const { logger } = createTestLogger();
  await using small = await serveForTest(routes, { deps: { logger, jsonBody: { membersMax: 3 } } });
  const send = (body: string) =>
    fetch(small.url + chat, {
      method: 'POST',
      body,
      headers: { authorization: 'Bearer all', 'content-type': 'application/json' },
    });
  expect((await send('{"a":{"b":1},"c":":::::"}')).status).toBe(200);
  expect((await send('{"a":{"b":1},"c":{"d":1}}')).status).toBe(400);
});

test('settings may have less in them than conversations, because their schemas tell the first problem last', async () => {
  const members = (count: number): string =>
    JSON.stringify(Object.fromEntries(Array.from({ length: count }, (_, index) => [`k${index}`, 1])));
  await using large = await serveForTest(routes);
  const send = async (path: string, body: string) => {
    const headers = { authorization: 'Bearer all', 'content-type': 'application/json' };
    const answer = await fetch(large.url + path, { method: 'POST', body, headers });
    return [answer.status, ((await answer.json()) as { error?: { code: string } }).error?.code];
  };
  expect(await send('/v1/batches', members(10_001))).toEqual([400, 'json_too_many_members']);
  expect(await send(chat, members(10_001))).toEqual([200, undefined]);
  const long = JSON.stringify('x'.repeat(1_100_000));
  expect(await send('/v1/batches', long)).toEqual([413, 'request_too_large']);
  expect(await send(chat, long)).toEqual([200, undefined]);
});

test('input that does not fit its schema is refused with OpenAI codes and the param', async () => {
  const getFailureCode = async (body: unknown) => (await post('/v1/batches', JSON.stringify(body))).error;
  const endpoint = '/v1/embeddings';
  expect(await getFailureCode({ endpoint })).toEqual({
    message: "Missing required parameter: 'input_file_id'.",
    type: 'invalid_request_error',
    param: 'input_file_id',
    code: 'missing_required_parameter',
  });
  expect(await getFailureCode({ input_file_id: 'f' })).toMatchObject({
    param: 'endpoint',
    code: 'missing_required_parameter',
  });
  expect(await getFailureCode({ input_file_id: 'f', endpoint: '/v1/x' })).toMatchObject({
    message: "Invalid value: '/v1/x'. Supported values are: '/v1/chat/completions' and '/v1/embeddings'.",
    param: 'endpoint',
    code: 'invalid_value',
  });
  expect(await getFailureCode({ input_file_id: 'f', endpoint, metadata: { tags: [] } })).toMatchObject({
    message: "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
    param: 'metadata.tags',
    code: 'invalid_type',
  });
  expect(await getFailureCode({ input_file_id: 'f', endpoint, extra: 1 })).toMatchObject({
    param: 'extra',
    code: 'unknown_parameter',
  });
  expect(await getFailureCode([1])).toMatchObject({ param: null, code: 'invalid_type' });
  expect((await call('/v1/batches?limit=101')).error).toMatchObject({
    param: 'limit',
    code: expect.stringMatching(/_above_max_value$/),
  });
  expect((await call('/v1/batches?limit=2&after=x')).body).toEqual({ limit: 2, after: 'x' });
  // A failed check of our own code is a bug, and its details are not shown to the caller.
  expect((await call('/v1/fail/zod')).error).toMatchObject({ param: null, code: 'internal_error' });
});

test.each([
  ['/v1/batches?limt=2', 'limt', "'after'"],
  ['/v1/batches?limit=2&Limit=3', 'Limit', "'limit'"],
  ['/v1/batches?__proto__=x', '__proto__', "'limit'"],
  ['/v1/batches?constructor=x', 'constructor', "'limit'"],
  ['/v1/batches?limit[__proto__]=x', 'limit[__proto__]', "'limit'"],
  ['/v1/batches?%5f%5fproto__=x', '__proto__', "'limit'"],
  ['/v1/batches/batch_1?after=x', 'after', 'no query parameters'],
  ['/v1/jobs?other=x', 'other', "'metadata'"],
  ['/v1/jobs?other[a]=x', 'other[a]', "'metadata'"],
  ['/v1/jobs?metadata[a=x', 'metadata[a', "'metadata[…]'"],
])('%s names a parameter that is not known, and those that are', async (path, param, known) => {
  const { status, error } = await call(path);
  expect({ status, ...error }).toMatchObject({ status: 400, param, code: 'unknown_parameter' });
  expect(error?.message).toContain(`'${param}'`);
  expect(error?.message).toContain(known);
});

test.each(['/v1/batches?limit=1&limit=2', '/v1/batches?limit=1&api-version=a&limit=1'])(
  '%s repeats a parameter that has one value',
  async (path) => {
    expect(await call(path)).toMatchObject({ status: 400, error: { param: 'limit', code: 'invalid_value' } });
  },
);

test("the parameters of a route pass, Azure's api-version on every one, and all where the query is another's", async () => {
  expect((await call('/v1/batches?limit=2&api-version=2024-10-21')).body).toEqual({ limit: 2 });
  expect((await call('/v1/batches/batch_1?api-version=preview')).status).toBe(200);
  expect((await call('/v1/jobs?metadata[a]=1&metadata[b]=2')).body).toEqual({ 'metadata[a]': '1', 'metadata[b]': '2' });
  expect((await call('/v1/relayed?include[]=a&include[]=b&x=1&x=2')).body).toEqual({
    url: '/v1/relayed?include[]=a&include[]=b&x=1&x=2',
  });
  // Monitoring tools can add their own parameters.
  expect((await call('/v1/context?now=1')).status).toBe(200);
});

test('path parameters that a client sends again are ignored, and refused when they differ', async () => {
  const put = (body: object) =>
    call('/v1/teams/t_1/people/u_1', {
      method: 'PUT',
      body: JSON.stringify(body),
      headers: { 'content-type': 'application/json' },
    });
  expect((await put({ role: 'chef', team_id: 't_1', userId: 'u_1' })).body).toEqual({ role: 'chef' });
  expect(await put({ role: 'chef', userId: 'u_2' })).toMatchObject({ status: 400, error: { param: 'userId' } });
  expect((await call('/v1/teams/t_1/people?limit=3&teamId=t_1')).body).toEqual({ limit: 3 });
  expect(await call('/v1/teams/t_1/people?teamId=t_2')).toMatchObject({ status: 400, error: { param: 'teamId' } });
});

test('a parameter is judged after the key, and before the body is read', async () => {
  expect((await call('/v1/batches?x=1', { headers: { authorization: 'Bearer wrong' } })).status).toBe(401);
  const before = bodyReads;
  const body = JSON.stringify({ input_file_id: 'f', endpoint: '/v1/embeddings' });
  expect((await call('/v1/batches?x=1', { method: 'POST', body })).error).toMatchObject({ code: 'unknown_parameter' });
  expect(bodyReads).toBe(before);
});

test('a POST without a body works where none is declared', async () => {
  expect((await call('/v1/batches/batch_1/cancel', { method: 'POST' })).status).toBe(200);
});

test('a route whose body is optional takes none, and checks one', async () => {
  const pause = '/v1/batches/batch_1/pause';
  expect((await call(pause, { method: 'POST' })).body).toEqual({ body: null });
  expect((await post(pause, '{"seconds":1}')).body).toEqual({ body: { seconds: 1 } });
  expect((await post(pause, '{"seconds":"x"}')).status).toBe(400);
});

test('a body that no route asked for is dropped, and a large one costs the connection', async () => {
  const cancel = '/v1/batches/batch_1/cancel';
  expect((await post(cancel, '{}')).status).toBe(200);
  const head = `POST ${cancel} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer all\r\nContent-Length: 90000000\r\n\r\n`;
  const answer = await exchange(server.port, head, 'x'.repeat(2_000_000));
  expect(answer === '' || answer.startsWith('HTTP/1.1 200')).toBe(true);
});

test('paths: percent-escapes are decoded, slashes tolerated, case is not', async () => {
  expect((await call('/v1/batches/a%2Fb')).body).toMatchObject({ id: 'a/b' });
  expect((await post(`/v1/${chat.slice(3)}`, '{}')).status).toBe(200);
  expect((await post(`/${chat}`, '{}')).status).toBe(200);
  expect((await post(`${chat}/`, '{}')).status).toBe(200);
  expect((await call('/V1/batches')).status).toBe(404);
  expect((await call('/v1//..//batches/../x')).status).toBe(404);
});

test('tracing headers, their aliases and traceparent make the context', async () => {
  const contextFor = async (headers: Record<string, string>) => {
    const answer = await call('/v1/context', { headers });
    const body = answer.body as Record<string, unknown>;
    expect(answer.headers.get('x-request-id')).toBe(body.requestId);
    expect(answer.headers.get('x-gateway-trace-id')).toBe(body.traceId);
    return body;
  };
  expect(
    await contextFor({
      'x-gateway-trace-id': 't1',
      'x-portkey-trace-id': 't2',
      'x-portkey-span-id': 's1',
      'x-gateway-span-name': 'a name',
    }),
  ).toMatchObject({ traceId: 't1', spanId: 's1', spanName: 'a name', parentSpanId: null });
  expect(await contextFor({ 'x-portkey-virtual-key': 'vk' })).toMatchObject({ virtualKey: 'vk', metadata: null });
  const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
  expect(await contextFor({ traceparent })).toMatchObject({
    traceId: '4bf92f3577b34da6a3ce929d0e0e4736',
    parentSpanId: '00f067aa0ba902b7',
  });
  const [first, second] = [await contextFor({ traceparent: '00-0-0-0' }), await contextFor({})];
  expect(first.traceId).toMatch(/^[0-9a-f]{32}$/);
  expect(first.traceId).not.toBe(second.traceId);
  const metadata = Buffer.from('{"person":"žofie","env":"prod"}').toString('latin1');
  expect(await contextFor({ 'x-portkey-metadata': metadata })).toMatchObject({
    metadata: { person: 'žofie', env: 'prod' },
  });
});

test('metadata names that begin with an underscore are ignored', async () => {
  const pairs = Object.fromEntries(Array.from({ length: 64 }, (_, index) => [`k${index}`, 'v']));
  const metadata = { ...pairs, _user: 'x'.repeat(200), ['__proto__']: 'x' };
  const headers = { 'x-portkey-metadata': JSON.stringify(metadata) };
  expect((await call('/v1/context', { headers })).body).toHaveProperty('metadata', pairs);
});

test.each([
  ['x-gateway-trace-id', 'x'.repeat(257)],
  ['x-gateway-span-name', 'caf\u00e9'],
  ['x-gateway-metadata', 'no'],
  ['x-gateway-metadata', '[]'],
  ['x-gateway-metadata', `{"a":["${'x'.repeat(125)}"]}`],
  ['x-gateway-metadata', '{"a":"\\u0000"}'],
  ['x-gateway-metadata', '{"a":"\\ud800"}'],
  ['x-gateway-metadata', `{"a":"${'x'.repeat(129)}"}`],
])('an unusable header is refused by name: %s: %s', async (name, value) => {
  const answer = await call('/v1/context', { headers: { [name]: value } });
  expect(answer.status).toBe(400);
  expect(answer.error.param).toBe(name);
  expect(answer.headers.get('x-gateway-trace-id')).toMatch(/^[0-9a-f]{32}$/);
});

test('a metadata header is judged only where it is used', async () => {
  expect((await call('/v1/batches', { headers: { 'x-gateway-metadata': 'no' } })).status).toBe(200);
});

test('one line is logged per request, with what the handler added', async () => {
  const answer = await post(chat, '{}');
  const requestId = answer.headers.get('x-request-id');
  const isLine = (line: Record<string, unknown>) => line.request_id === requestId;
  await expect.poll(() => server.lines.some(isLine)).toBe(true);
  expect(server.lines.filter(isLine)).toEqual([
    expect.objectContaining({
      msg: 'request ended',
      route: chat,
      status: 200,
      provider: 'openai',
      key_id: 'key_1',
      workspace_id: 'ws_1',
    }),
  ]);
});

test('a body that begins with a byte order mark is rejected with that reason, valid or not', async () => {
  for (const body of ['\uFEFF{"a":1}', '\uFEFF{"a":']) {
    expect(await post(chat, body)).toMatchObject({
      status: 400,
      error: {
        code: 'invalid_json',
        message: 'The request body begins with a byte order mark. Send it as UTF-8 without BOM.',
      },
    });
  }
});

test('the line of a refused request has the code of the refusal, never its text, and the handler may say better', async () => {
  const cases: [Promise<Awaited<ReturnType<typeof call>>>, string | undefined][] = [
    [call('/v1/nope/of-a-user'), 'unknown_url'],
    [call('/v1/batches', { headers: { authorization: 'Bearer wrong' } }), 'invalid_api_key'],
    [post(chat, '{"a":'), 'invalid_json'],
    [call('/v1/fail/quota'), 'insufficient_quota'],
    [call('/v1/fail/bug'), 'internal_error'],
    [call('/v1/fail/logged'), 'client_stalled'],
    [call('/v1/fail/conflict'), undefined],
  ];
  for (const [pending, code] of cases) {
    const { headers, error } = await pending;
    const isLine = (line: Record<string, unknown>) =>
      line.request_id === headers.get('x-request-id') && line.msg === 'request ended';
    await expect.poll(() => server.lines.some(isLine)).toBe(true);
    const line = server.lines.find(isLine);
    expect(line?.['error_code']).toBe(code);
    expect(JSON.stringify(line)).not.toContain(error.message);
    expect(JSON.stringify(line)).not.toContain('of-a-user');
  }
});

test('the line of a call that has a row in the request log is of level debug, unless it failed', async () => {
  const recorded = testRoute({
    method: 'GET',
    path: '/v1/recorded/:status',
    scope: 'public',
    handler: (request, response) => {
      getContext(request).isInRequestLog = true;
      response.status(Number(request.params['status'])).json({});
    },
  });
  await using quiet = await serveForTest([recorded, ...routes]);
  const paths = ['/v1/recorded/200', '/v1/recorded/502', '/v1/context'];
  for (const path of paths) await (await fetch(quiet.url + path)).text();
  await expect.poll(() => quiet.lines.length).toBe(3);
  expect(quiet.lines.map(({ level, status }) => [level, status])).toEqual([
    [pino.levels.values['debug'], 200],
    [pino.levels.values['info'], 502],
    [pino.levels.values['info'], 200],
  ]);
});

test('an authentication that must wait is waited for', async () => {
  const authenticate = (request: Parameters<typeof authenticateForTest>[0]) =>
    Promise.resolve().then(() => authenticateForTest(request));
  await using slow = await serveForTest(routes, { deps: { authenticate } });
  expect((await fetch(`${slow.url}/v1/batches`, { headers: { authorization: 'Bearer wrong' } })).status).toBe(401);
  expect((await fetch(`${slow.url}/v1/batches`, { headers: { authorization: 'Bearer files.read' } })).status).toBe(403);
  expect((await fetch(`${slow.url}/v1/batches`, { headers: { authorization: 'Bearer all' } })).status).toBe(200);
});

test('a table with an undeclared scope, a repeated route or a pattern does not boot', () => {
  const { logger } = createTestLogger();
  const boot = (table: Route[]) => () => createHttpApp({ routes: table, authenticate: authenticateForTest, logger });
  const route = testRoute({ method: 'GET', path: '/v1/x/:a', handler: () => {} });
  const { scope: _scope, ...undeclared } = route;
  expect(boot([undeclared as Route])).toThrow('GET /v1/x/:a declares no scope');
  expect(boot([{ ...route, scope: 'everything' as Route['scope'] }])).toThrow('declares no scope');
  expect(boot([route, { ...route, path: '/v1/x/:b', operationId: 'other' }])).toThrow('twice');
  expect(boot([route, { ...route, path: '/v1/y' }])).toThrow('twice');
  expect(boot([{ ...route, path: '/v1/*rest' }])).toThrow('plain segments');
  expect(boot([route])).not.toThrow();
});

import { execFileSync } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { TestPlatform } from '#test/platform.ts';
import { startPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { hang } from '#test/upstream.ts';
import { canary, postJson, startScriptedPlatform, storeVirtualKey } from './scripted-provider.ts';
import { getFailureCode, sdks } from './sdk.ts';

// What callers, networks and disks do wrong, and that each gets an answer that says so. Malformed batch files are in
// batch-validation, forms in files, credentials in access.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform({
    SLUICE_BODY_MAX: '1MiB',
    SLUICE_UPLOAD_MAX: '1MiB',
    SLUICE_RESPONSE_MAX: '1MiB',
    SLUICE_HEADERS_TIMEOUT: '300ms',
    SLUICE_IDLE_TIMEOUT: '300ms',
  });
  ({ platform, upstream } = scripted);
  upstream.script((reply) => reply.json(200, { object: 'list', data: [] }));
  await storeVirtualKey(platform, 'unreachable', 'http://127.0.0.1:9/v1'); // the discard port: nobody listens
});
afterAll(() => scripted.stop());

type ErrorAnswer = {
  status: number;
  error: { message: string; type: string; param: string | null; code: string | null };
};

/** The status and the error of an answer, which must be one of the four keys. */
async function errorAnswer(response: Response): Promise<ErrorAnswer> {
  const body = (await response.json()) as { error: ErrorAnswer['error'] };
  expect(Object.keys(body)).toEqual(['error']);
  expect(Object.keys(body.error)).toEqual(['message', 'type', 'param', 'code']);
  return { status: response.status, error: body.error };
}

const messages = [{ role: 'user' as const, content: 'Hello' }];
const post = async (route: string, body: unknown, headers: Record<string, string> = {}): Promise<ErrorAnswer> =>
  await errorAnswer(await postJson(platform, route, body, headers));
const request = async (method: string, route: string): Promise<ErrorAnswer> =>
  await errorAnswer(
    await fetch(platform.baseUrl + route, { method, headers: { authorization: `Bearer ${platform.adminKey}` } }),
  );
const liveRoutes = new Set(['/chat/completions', '/completions', '/embeddings']);
const jsonRoutes = ['/chat/completions', '/completions', '/embeddings', '/batches', '/api-keys', '/virtual-keys'];

test.each(jsonRoutes)('POST %s refuses what is no JSON object', async (route) => {
  const cases: [string, string][] = [
    ['{', 'invalid_json'],
    ['{"model": "x",}', 'invalid_json'],
    ["{'model': 'x'}", 'invalid_json'],
    ['{"a": NaN}', 'invalid_json'],
    ['{"a": 1} {"b": 2}', 'invalid_json'],
    ['\uFEFF{"a": 1}', 'invalid_json'],
    ['"text"', 'invalid_type'],
    ['null', 'invalid_type'],
    ['[{}]', 'invalid_type'],
    [`${'['.repeat(100)}${']'.repeat(100)}`, 'json_too_deep'],
    [
      `{"a":[${Array.from({ length: 100_001 }, () => '{"a":1}').join(',')}]}`,
      liveRoutes.has(route) ? 'json_too_complex' : 'json_too_many_members',
    ],
  ];
  for (const [body, code] of cases) {
    const { status, error } = await post(route, body);
    expect({ body: body.slice(0, 20), status, type: error.type, code: error.code }).toEqual({
      body: body.slice(0, 20),
      status: 400,
      type: 'invalid_request_error',
      code,
    });
  }
});

const lostConfig = '{"provider":"openai","override_params":{"a":[{"__proto__":"x"}]}}';
test.each<[string, string, string, Record<string, string>?]>([
  ['/batches', '{"metadata":{"__proto__":"x"}}', 'metadata'],
  ['/batches', `{"gateway_options":{"config":${lostConfig}}}`, 'gateway_options.config.override_params.a[0]'],
  ['/fine_tuning/jobs', '{"metadata":{"__proto__":"x"}}', 'metadata'],
  ['/api-keys', '{"defaults":{"metadata":{"__proto__":"x"}}}', 'defaults.metadata'],
  ['/virtual-keys', '{"vertex_service_account_json":{"__proto__":"x"}}', 'vertex_service_account_json'],
  ['/configs', `{"config":${lostConfig}}`, 'config.override_params.a[0]'],
  ['/configs', JSON.stringify({ name: 'c', config: lostConfig }), 'config.override_params.a[0]'],
  [
    '/chat/completions',
    JSON.stringify({ model: 'x', messages }),
    'x-gateway-config.override_params.a[0]',
    { 'x-gateway-config': lostConfig },
  ],
])('POST %s of %s drops no member named __proto__ in silence', async (route, body, at, headers) => {
  expect(await post(route, body, headers)).toMatchObject({
    status: 400,
    error: { code: 'invalid_value', param: `${at}.__proto__`, message: expect.stringContaining("'__proto__'") },
  });
});

test.each(jsonRoutes)(
  'POST %s refuses other content types, compressed bodies, and bodies of over 1 MiB',
  async (route) => {
    for (const type of [
      'text/plain',
      'application/xml',
      'application/x-www-form-urlencoded',
      'application/json; charset=utf-16',
    ]) {
      expect(await post(route, '{}', { 'content-type': type })).toMatchObject({
        status: 415,
        error: { code: 'unsupported_media_type', message: expect.stringContaining('application/json') },
      });
    }
    expect(await post(route, '{}', { 'content-encoding': 'gzip' })).toMatchObject({
      status: 415,
      error: { code: 'unsupported_content_encoding' },
    });
    const large = { x: 'x'.repeat(1_048_576) };
    expect(await post(route, large)).toMatchObject({ status: 413, error: { code: 'request_too_large' } });
    const stream = new ReadableStream({
      start(controller) {
        controller.enqueue(Buffer.from(JSON.stringify(large)));
        controller.close();
      },
    });
    // Chunked: nobody knows beforehand how long it will be.
    const chunked = await fetch(platform.baseUrl + route, {
      method: 'POST',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
      body: stream,
      duplex: 'half',
    });
    expect(await errorAnswer(chunked)).toMatchObject({ status: 413, error: { code: 'request_too_large' } });
  },
);

test('a body that is not UTF-8 is refused', async () => {
  const response = await fetch(`${platform.baseUrl}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    body: Buffer.from('{"model":"Zoë"}', 'latin1'),
  });
  expect(await errorAnswer(response)).toMatchObject({ status: 400, error: { code: 'invalid_utf8' } });
});

test.each<[string, Record<string, unknown>, string, string]>([
  ['/chat/completions', { messages }, 'model', 'missing_required_parameter'],
  ['/chat/completions', { model: 'x' }, 'messages', 'missing_required_parameter'],
  ['/chat/completions', { model: 'x', messages: [] }, 'messages', 'empty_array'],
  [
    '/chat/completions',
    { model: 'x', messages: [{ role: 'nobody', content: 'x' }] },
    'messages[0].role',
    'invalid_value',
  ],
  ['/chat/completions', { model: 'x', messages, temperature: 2.1 }, 'temperature', 'decimal_above_max_value'],
  ['/chat/completions', { model: 'x', messages, temperature: '1' }, 'temperature', 'invalid_type'],
  ['/chat/completions', { model: 'x', messages, n: 0 }, 'n', 'integer_below_min_value'],
  ['/chat/completions', { model: 'x', messages, n: 129 }, 'n', 'integer_above_max_value'],
  ['/chat/completions', { model: 'x', messages, top_logprobs: 3 }, 'top_logprobs', 'invalid_value'],
  ['/chat/completions', { model: 'x', messages, stream_options: {} }, 'stream_options', 'invalid_value'],
  ['/chat/completions', { model: 'x', messages, stop: ['a', 'b', 'c', 'd', 'e'] }, 'stop', 'array_above_max_length'],
  ['/chat/completions', { model: '@simulator', messages }, 'model', 'invalid_value'],
  ['/completions', { model: 'x' }, 'prompt', 'missing_required_parameter'],
  ['/completions', { model: 'x', prompt: 'x', best_of: 21 }, 'best_of', 'integer_above_max_value'],
  ['/completions', { model: 'x', prompt: 'x', logprobs: 6 }, 'logprobs', 'integer_above_max_value'],
  ['/embeddings', { model: 'x' }, 'input', 'missing_required_parameter'],
  ['/embeddings', { model: 'x', input: 'x', encoding_format: 'hex' }, 'encoding_format', 'invalid_value'],
])('POST %s with %j names %s (%s)', async (route, body, param, code) => {
  upstream.requests.length = 0;
  expect(await post(route, body, { 'x-gateway-virtual-key': 'scripted' })).toMatchObject({
    status: 400,
    error: { type: 'invalid_request_error', param, code },
  });
  expect(upstream.requests).toEqual([]);
});

test.each(['trace-id', 'metadata'])('an unusable x-gateway-%s is named', async (name) => {
  const values = name === 'metadata' ? ['{', '[]', JSON.stringify({ a: [1, 'x'.repeat(128)] })] : ['x'.repeat(257)];
  for (const value of values) {
    const headers = { [`x-gateway-${name}`]: value };
    expect(await post('/chat/completions', { model: '@scripted/x', messages }, headers)).toMatchObject({
      status: 400,
      error: { param: `x-gateway-${name}`, code: 'invalid_value' },
    });
  }
});

test.each(['/batches', '/api-keys', '/virtual-keys', '/logs'])(
  'GET %s refuses bad limits and cursors',
  async (route) => {
    for (const [query, param, code] of [
      ['limit=0', 'limit', 'integer_below_min_value'],
      ['limit=-1', 'limit', 'integer_below_min_value'],
      ['limit=101', 'limit', 'integer_above_max_value'],
      ['limit=abc', 'limit', 'invalid_type'],
      ['limit=1.5', 'limit', 'invalid_type'],
      ['limit=1&limit=2', 'limit', 'invalid_value'],
      ['limit=1&lmit=2', 'lmit', 'unknown_parameter'],
      ['__proto__=x', '__proto__', 'unknown_parameter'],
      ['after=unknown', 'after', 'invalid_value'],
      ['after=%00', 'after', 'invalid_value'],
      [`after=${'x'.repeat(201)}`, 'after', 'string_above_max_length'],
    ] as const) {
      const { status, error } = await request('GET', `${route}?${query}`);
      expect({ query, status, param: error.param, code: error.code }).toEqual({ query, status: 400, param, code });
    }
  },
);

test.each(['strict-open-ai-compliance', 'cache-force-refresh', 'debug'])(
  'a call whose header %s is neither true nor false is refused, with and without a cache',
  async (name) => {
    for (const header of [`x-gateway-${name}`, `x-portkey-${name}`]) {
      for (const more of [{}, { 'x-gateway-cache': 'simple' }]) {
        const body = { model: '@scripted/gpt-test', messages };
        const { status, error } = await post('/chat/completions', body, { [header]: 'yes', ...more });
        expect({ status, ...error }).toMatchObject({
          status: 400,
          param: `x-gateway-${name}`,
          message: "Invalid value: 'yes'. Supported values are: 'true' and 'false'.",
        });
      }
    }
  },
);

test.each([
  ['GET', '/files?purpose=batch&status=processed', 'status'],
  ['GET', '/fine_tuning/jobs?metadata[a]=1&tag[b]=2', 'tag[b]'],
  ['GET', '/models?provider=x', 'provider'],
  ['GET', '/batches/batch_0?expand=x', 'expand'],
  ['DELETE', '/files/file-0?force=true', 'force'],
  ['POST', '/batches?dry_run=true', 'dry_run'],
  ['POST', '/chat/completions?stream=true', 'stream'],
])('%s %s names the parameter that is not known', async (method, route, param) => {
  const { status, error } = await request(method, route);
  expect({ status, ...error }).toMatchObject({ status: 400, code: 'unknown_parameter', param });
  expect(error.message).toMatch(/^Unknown parameter: '[^']+'\. This route accepts (no query parameters|the query)/);
});

test("what clients put on every call passes, and a provider's query is left to the provider", async () => {
  for (const route of [
    '/models?client_version=0.146.0',
    '/batches?api-version=2024-10-21',
    '/files?api-version=1&limit=1',
  ]) {
    const response = await fetch(platform.baseUrl + route, {
      headers: { authorization: `Bearer ${platform.adminKey}` },
    });
    expect([route, response.status]).toEqual([route, 200]);
  }
  const body = { model: '@scripted/gpt-test', messages };
  await postJson(platform, '/chat/completions?api-version=1', body);
  expect(upstream.requests.at(-1)?.path).toMatch(/\/chat\/completions$/);
  await fetch(`${platform.baseUrl}/responses/resp_1?include[]=a&include[]=b`, {
    headers: { authorization: `Bearer ${platform.adminKey}`, 'x-gateway-virtual-key': 'scripted' },
  });
  expect(upstream.requests.at(-1)?.path).toMatch(/\/responses\/resp_1\?include\[\]=a&include\[\]=b$/);
});

test('a part of a form with the name of a prototype is named', async () => {
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('__proto__', 'x');
  form.set('file', new Blob(['{}']), 'a.jsonl');
  const headers = { authorization: `Bearer ${platform.adminKey}` };
  const response = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers, body: form });
  expect(await errorAnswer(response)).toMatchObject({
    status: 400,
    error: { param: '__proto__', code: 'invalid_value' },
  });
});

test.each([
  ['GET', '/batches/batch_0'],
  ['POST', '/batches/batch_0/cancel'],
  ['GET', '/files/file-0'],
  ['GET', '/files/file-0/content'],
  ['DELETE', '/files/file-0'],
  ['GET', '/models/none'],
  ['GET', '/api-keys/key_0'],
  ['DELETE', '/api-keys/key_0'],
  ['GET', '/virtual-keys/none'],
  ['DELETE', '/virtual-keys/none'],
  ['GET', '/logs/log_0'],
  ['GET', '/batches/..%2F..%2Fetc%2Fpasswd'],
  ['GET', '/files/%27%3B%20drop%20table%20file%3B--'],
  ['GET', `/files/${'x'.repeat(3_000)}`],
  ['GET', '/files/%F0%9F%99%82'],
  ['GET', '/files/a%00b'],
  ['GET', '/batches/a%00b'],
  ['GET', '/logs/a%00b'],
  ['GET', '/api-keys/a%00b'],
  ['GET', '/virtual-keys/a%00b'],
  ['DELETE', '/files/a%00b'],
  ['POST', '/batches/a%00b/cancel'],
])('%s %s, an id that does not exist, is 404', async (method, route) => {
  const { status, error } = await request(method, route);
  expect({ status, type: error.type }).toEqual({ status: 404, type: 'invalid_request_error' });
});

test('a path with broken percent-encoding is 400', async () => {
  expect(await request('GET', '/files/%ZZ')).toMatchObject({ status: 400, error: { code: 'invalid_url' } });
});

const secretWords = /CANARY|sk-own/;

test.each<[string, () => void, { model?: string; status: number; code: string; says: string }]>([
  [
    'that nobody serves',
    () => {},
    {
      model: '@unreachable/x',
      status: 502,
      code: 'upstream_unreachable',
      says: 'unreachable could not be reached (ECONNREFUSED)',
    },
  ],
  [
    'that resets the connection',
    () => upstream.script((reply) => reply.reset()),
    { status: 502, code: 'upstream_connection_lost', says: 'scripted' },
  ],
  [
    'that closes the connection',
    () => upstream.script((reply) => reply.cut()),
    { status: 502, code: 'upstream_connection_lost', says: 'scripted' },
  ],
  [
    'that never answers',
    () => upstream.script(hang),
    { status: 504, code: 'upstream_headers_timeout', says: 'scripted did not answer within 300 ms' },
  ],
  [
    'that falls silent in its answer',
    () => upstream.script((reply) => reply.head(200, { 'content-type': 'application/json' })),
    { status: 504, code: 'upstream_idle_timeout', says: 'scripted sent no data' },
  ],
  [
    'that redirects',
    () => upstream.script((reply) => reply.respond(302, '', { location: 'http://169.254.169.254/' })),
    { status: 502, code: 'upstream_redirect', says: 'scripted' },
  ],
  [
    'that answers with a page',
    () => upstream.script((reply) => reply.respond(200, `<p>${canary}</p>`, { 'content-type': 'text/html' })),
    { status: 502, code: 'upstream_invalid_response', says: 'scripted' },
  ],
  [
    'that answers with half a body',
    () =>
      upstream.script(async (reply) => {
        await reply.raw('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"choices":');
        reply.cut();
      }),
    { status: 502, code: 'upstream_truncated', says: 'scripted' },
  ],
  [
    'that speaks no HTTP',
    () =>
      upstream.script(async (reply) => {
        await reply.raw('SSH-2.0-OpenSSH_9.6\r\n');
        reply.cut();
      }),
    { status: 502, code: 'upstream_invalid_response', says: 'scripted' },
  ],
  [
    'that answers with more than the limit',
    () => upstream.script((reply) => reply.json(200, { choices: [], x: 'x'.repeat(1_048_576) })),
    { status: 502, code: 'upstream_response_too_large', says: 'larger than the limit of 1048576 bytes' },
  ],
])('a provider %s is named in the error, its secret never', async (_what, arrange, { model, status, code, says }) => {
  arrange();
  const [chat, streamed] = [
    await post('/chat/completions', { model: model ?? '@scripted/x', messages }),
    await post('/chat/completions', { model: model ?? '@scripted/x', messages, stream: true }),
  ];
  for (const answer of [chat, streamed]) {
    expect(answer).toMatchObject({ status, error: { type: 'server_error', param: null, code } });
    expect(answer.error.message).toContain(says);
    expect(answer.error.message).not.toMatch(secretWords);
  }
});

test('an error of the provider that repeats the key is passed on without it', async () => {
  const text = `Incorrect API key provided: ${canary}.`;
  upstream.script((reply) =>
    reply.json(401, { error: { message: text, type: 'x', param: null, code: 'invalid_api_key' } }),
  );
  const { status, error } = await post('/chat/completions', { model: '@scripted/x', messages });
  expect({ status, code: error.code }).toEqual({ status: 401, code: 'invalid_api_key' });
  expect(error.message).toContain('Incorrect API key provided');
  expect(JSON.stringify(error)).not.toMatch(secretWords);
});

test('a provider on a private address is refused where the operator did not allow it', async () => {
  const strict = await startPlatform({ worker: false });
  try {
    const body = { name: 'x', provider: 'openai', key: canary, custom_host: 'http://169.254.169.254/latest' };
    const stored = await postJson(strict, '/virtual-keys', body);
    expect(stored.status).toBe(400);
    const called = await postJson(
      strict,
      '/chat/completions',
      { model: 'x', messages },
      {
        'x-gateway-api-key': strict.adminKey,
        authorization: 'Bearer sk-own',
        'x-gateway-provider': 'openai',
        'x-gateway-custom-host': upstream.url.href,
      },
    );
    expect(called.status).toBe(400);
    expect(upstream.received()).not.toContain('sk-own');
  } finally {
    await strict.stop();
  }
});

test('an upload beyond the limit is 413, and leaves neither a file nor bytes', async () => {
  const [sdk] = sdks;
  if (!sdk) throw new Error('no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const file = await sdk.toFile(Buffer.alloc(3 * 1_048_576, 'x'), 'large.jsonl');
  expect(await getFailureCode(client.files.create({ file, purpose: 'batch' }))).toMatchObject({
    status: 413,
    code: 'file_too_large',
    type: 'invalid_request_error',
  });
  expect((await client.files.list()).data).toEqual([]);
  expect(await blobsIn(platform.dataDir)).toEqual([]);
});

/** The files of a data directory but the one that marks the store. */
async function blobsIn(dataDir: string): Promise<string[]> {
  const entries = await readdir(path.join(dataDir, 'blobs'), { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile() && /^[0-9a-f]{32}/.test(entry.name)).map((entry) => entry.name);
}

const small = await mountSmallDisk();
afterAll(async () => {
  if (small === null) return;
  execFileSync('umount', [small]);
  await rm(small, { recursive: true });
});

/** A disk of 1 MiB; null where one may not be mounted (not Linux, not root). */
async function mountSmallDisk(): Promise<string | null> {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-small-disk-'));
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', folder], { stdio: 'ignore' });
    return folder;
  } catch {
    await rm(folder, { recursive: true });
    return null;
  }
}

test.skipIf(small === null)(
  'a full disk is 507, called once, and nothing is half there; with space again it works',
  async () => {
    const environment = { SLUICE_DATA_DIR: small ?? '', SLUICE_DISK_RESERVE: '0MiB' };
    const full = await startPlatform({ worker: false, environment });
    try {
      for (const { OpenAI, toFile } of sdks) {
        const client = new OpenAI({ apiKey: full.adminKey, baseURL: full.baseUrl });
        const upload = async (sizeBytes: number) =>
          await client.files.create({ file: await toFile(Buffer.alloc(sizeBytes, 'x'), 'a.jsonl'), purpose: 'batch' });
        const error = await getFailureCode(upload(3 * 1_048_576));
        expect(error).toBeInstanceOf(OpenAI.InternalServerError);
        expect(error).toMatchObject({ status: 507, type: 'server_error', param: null, code: 'storage_full' });
        expect(error.message).toContain('Nothing was stored');
        expect(error.headers?.get('x-should-retry')).toBe('false');
        expect((await client.files.list()).data).toEqual([]);
        expect(await blobsIn(small ?? '')).toEqual([]);
        const file = await upload(100_000);
        expect((await client.files.content(file.id)).headers.get('content-length')).toBe('100000');
        await client.files.delete(file.id);
        const [blob] = await blobsIn(small ?? '');
        expect(blob).toBeDefined();
        await full.api.platform.blobs.remove(blob ?? ''); // as the sweeper will
      }
    } finally {
      await full.stop();
    }
  },
);

test('a text with U+0000 in a query or a path breaks nothing', async () => {
  const document = (await (await fetch(new URL('/openapi.json', platform.baseUrl))).json()) as {
    paths: Record<string, { get?: { parameters?: { name: string; in: string; schema: { type?: unknown } }[] } }>;
  };
  const asked: string[] = [];
  for (const [path, { get }] of Object.entries(document.paths)) {
    if (get === undefined || !path.startsWith('/v1/')) continue;
    if (path.includes('{')) asked.push(path.replaceAll(/\{\w+\}/g, 'a%00b'));
    for (const parameter of get.parameters ?? []) {
      if (parameter.in !== 'query' || !JSON.stringify(parameter.schema).includes('string')) continue;
      asked.push(`${path.replaceAll(/\{\w+\}/g, 'a')}?${parameter.name}=a%00b`);
    }
  }
  expect(asked.length).toBeGreaterThan(100);
  const broken: string[] = [];
  for (const path of asked) {
    const headers = { authorization: `Bearer ${platform.adminKey}` };
    const { status } = await fetch(new URL(path, platform.baseUrl), { headers });
    if (status >= 500) broken.push(`${path}: ${status}`);
  }
  expect(broken).toEqual([]);
});

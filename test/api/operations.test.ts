import { plainPath } from '#libs/http/route.ts';
import { createConfig, lintFromString } from '@redocly/openapi-core';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { scopes } from '#libs/contracts/people/api-keys.ts';
import { createRoutes, type RouteDeps } from '#apps/api/routes.ts';
import { createReadinessCheck, type Phase } from '#apps/platform/operations/check-readiness.ts';
import { listOperations } from '#libs/http/http-test-kit.ts';
import type { OpenApiDocument } from '#libs/http/openapi.ts';
import { version } from '#libs/kernel/version.ts';
import { eventually } from '#test/eventually.ts';
import { unusedPort } from '#test/integration/start/app-process.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

// What an operator, a load balancer or a script asks.

let platform: TestPlatform;
let origin: string;
beforeAll(async () => {
  platform = await startPlatform();
  ({ origin } = new URL(platform.baseUrl));
});
afterAll(() => platform.stop());

const get = async (path: string, headers: Record<string, string> = {}): Promise<Response> =>
  await fetch(origin + path, { headers });

test('liveness and readiness need no key, and readiness tells the state of each part', async () => {
  const live = await get('/health/live');
  expect([live.status, await live.json()]).toEqual([200, { status: 'ok' }]);
  const ready = await get('/health/ready');
  expect([ready.status, await ready.json()]).toEqual([
    200,
    {
      status: 'ready',
      checks: { process: 'ok', database: 'ok', migrations: 'ok', access: 'ok', workers: 'connected' },
    },
  ]);
});

test('a process without a worker beside it is ready all the same, and says so', async () => {
  const alone = await startPlatform({ worker: false });
  try {
    const ready = await fetch(`${new URL(alone.baseUrl).origin}/health/ready`);
    expect([ready.status, await ready.json()]).toMatchObject([200, { checks: { workers: 'none' } }]);
  } finally {
    await alone.stop();
  }
});

test('a flood of probes costs the database one look a second, and a stop is told at once all the same', async () => {
  let phase: Phase = 'ok';
  const { db, access } = platform.api.platform;
  let looks = 0;
  const counting = db.withPlugin({
    transformQuery: ({ node }) => {
      looks += 1;
      return node;
    },
    transformResult: async ({ result }) => result,
  });
  const check = createReadinessCheck({ db: counting, snapshot: access.snapshot, phase: () => phase });
  expect((await check()).required).toMatchObject({ process: 'ok', database: 'ok' });
  const looksOfOne = looks;
  await Promise.all(Array.from({ length: 500 }, check));
  phase = 'stopping';
  expect((await check()).required).toMatchObject({ process: 'stopping', database: 'ok' });
  expect(looks).toBeLessThanOrEqual(2 * looksOfOne);
});

test('on a port of their own, metrics and the details of readiness are gone from the public one', async () => {
  const port = await unusedPort();
  const apart = await startPlatform({ worker: false, environment: { SLUICE_OPERATIONS_PORT: String(port) } });
  try {
    const { origin: publicOrigin } = new URL(apart.baseUrl);
    const ask = async (url: string): Promise<[number, unknown]> => {
      const response = await fetch(url);
      const text = await response.text();
      return [response.status, text.startsWith('{') ? JSON.parse(text) : text];
    };
    expect(await ask(`${publicOrigin}/health/ready`)).toEqual([200, { status: 'ready' }]);
    expect(await ask(`${publicOrigin}/metrics`)).toMatchObject([404, { error: { code: 'unknown_url' } }]);
    expect((await ask(publicOrigin))[1]).not.toHaveProperty('metrics');
    const own = `http://127.0.0.1:${port}`;
    expect(await ask(`${own}/health/ready`)).toMatchObject([200, { status: 'ready', checks: { database: 'ok' } }]);
    expect(await ask(`${own}/metrics`)).toEqual([200, expect.stringContaining('sluice_forwarding_open_calls 0')]);
    expect(await ask(`${own}/health/live`)).toEqual([200, { status: 'ok' }]);
    expect(await ask(`${own}/v1/models`)).toMatchObject([404, { error: { code: 'unknown_url' } }]);
  } finally {
    await apart.stop();
  }
});

const sample =
  /^[a-zA-Z_:][\w:]*(?:\{(?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*\})? (?:[-+]?[\d.]+(?:e[-+]?\d+)?|NaN|[-+]Inf)$/;

test('metrics are in the Prometheus text format, with each request by method, route and status class', async () => {
  await get('/v1/batches/batch_x', { authorization: `Bearer ${platform.adminKey}` });
  await get('/v1/nothing');
  const read = async (): Promise<string> => await (await get('/metrics')).text();
  // A request is counted when its connection says that it is over.
  const text = await eventually(read, (metrics) => metrics.includes('route="unmatched"'));
  const response = await get('/metrics');
  expect(response.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/);
  const lines = text.split('\n').filter((line) => line !== '');
  expect(lines.filter((line) => !/^# (HELP|TYPE) \S+ \S/.test(line) && !sample.test(line))).toEqual([]);
  expect(text).toContain(
    'sluice_http_request_duration_seconds_count{method="GET",route="/v1/batches/:batch_id",status="4xx"} 1',
  );
  expect(text).toContain('sluice_http_request_duration_seconds_count{method="GET",route="unmatched",status="4xx"} 1');
  expect(text).toContain('process_resident_memory_bytes ');
  expect(lines).toContain(`sluice_build_info{version="${version}"} 1`);
  expect(text).toMatch(/^sluice_forwarding_open_calls 0$/m);
  const records = /^sluice_records_memory_bytes (\d+)$/m.exec(text)?.[1];
  expect(Number(records)).toBeGreaterThan(1_000);
  expect(text).toMatch(new RegExp(`^sluice_memory_held_bytes ${records}$`, 'm'));
  expect(text).toMatch(/^sluice_workspaces_left_out 0$/m);
  expect(text).not.toContain('batch_x');
  expect(text).not.toContain(platform.adminKey);
});

test('batches that have not ended, and jobs that wait for a worker, are counted with the age of the oldest', async () => {
  const alone = await startPlatform({ worker: false });
  try {
    const { origin: own } = new URL(alone.baseUrl);
    const authorization = `Bearer ${alone.adminKey}`;
    const line = {
      custom_id: 'one',
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: '@simulator/sim-echo', messages: [{ role: 'user', content: 'hello' }] },
    };
    const form = new FormData();
    form.set('purpose', 'batch');
    form.set('file', new Blob([JSON.stringify(line)]), 'in.jsonl');
    const uploaded = await fetch(`${alone.baseUrl}/files`, { method: 'POST', headers: { authorization }, body: form });
    const { id } = (await uploaded.json()) as { id: string };
    const batch = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' };
    const made = await fetch(`${alone.baseUrl}/batches`, {
      method: 'POST',
      headers: { authorization, 'content-type': 'application/json' },
      body: JSON.stringify(batch),
    });
    expect(made.status).toBe(200);
    const text = await (await fetch(`${own}/metrics`)).text();
    expect(text).toMatch(/^sluice_batches\{status="validating"\} 1$/m);
    expect(text).toMatch(/^sluice_batches_oldest_seconds\{status="validating"\} \d/m);
    expect(text).toMatch(/^sluice_queue_oldest_job_seconds\{queue="[^"]+"\} \d/m);
  } finally {
    await alone.stop();
  }
});

/** Routes that clients rely on: more may be added, none of these may go. */
const promised = [
  'DELETE /v1/api-keys/:id',
  'DELETE /v1/files/:file_id',
  'DELETE /v1/virtual-keys/:slug',
  'GET /',
  'GET /health/live',
  'GET /health/ready',
  'GET /metrics',
  'GET /openapi.json',
  'GET /v1/api-keys',
  'GET /v1/batches',
  'GET /v1/batches/:batch_id',
  'GET /v1/files',
  'GET /v1/files/:file_id',
  'GET /v1/files/:file_id/content',
  'GET /v1/logs',
  'GET /v1/logs/:log_id',
  'GET /v1/models',
  'GET /v1/virtual-keys',
  'GET /v1/virtual-keys/:slug',
  'POST /v1/api-keys',
  'POST /v1/batches',
  'POST /v1/batches/:batch_id/cancel',
  'POST /v1/chat/completions',
  'POST /v1/completions',
  'POST /v1/embeddings',
  'POST /v1/files',
  'POST /v1/virtual-keys',
  'PUT /v1/virtual-keys/:slug',
];

/** Operations that take another secret than a key, in their body or in the link, and their status without it. */
const withOtherSecrets = new Map([
  ['/v1/admin/users/invites/accept', 400],
  ['/v1/api-keys/leaked', 400],
  ['/v1/logs/exports/{id}/content', 403],
  // No file has the name that is asked for here.
  ['/console/assets/{file}', 404],
]);

/** Any key may ask who it is, whatever its scopes are; signing out needs none. */
const sessionPath = '/v1/session';
const isOfSession = (path: string): boolean => path === sessionPath || path.startsWith(`${sessionPath}/`);
const isSignOut = (method: string, path: string): boolean => method === 'DELETE' && path === sessionPath;

/** The route table by itself; what its routes do is never asked for. */
function routeTable(): string[] {
  const anything: unknown = new Proxy(() => anything, { get: () => anything });
  return createRoutes(anything as RouteDeps).map(({ method, path }) => `${method} ${plainPath(path)}`);
}

/** Whether it needs a key: `/v1beta` is for clients of Google. */
const isOfApi = (path: string): boolean => /^\/(?:v1|v1beta|openai|model)\//.test(path);

test('the OpenAPI document is the route table, which has what was promised', async () => {
  const response = await get('/openapi.json');
  expect(response.headers.get('content-type')).toBe('application/json');
  const document = (await response.json()) as OpenApiDocument;
  expect(document).toMatchObject({ openapi: '3.1.0', info: { version: '2.0.0' }, servers: [{ url: origin }] });
  expect(listOperations(document)).toEqual(routeTable().toSorted());
  expect(promised.filter((operation) => !listOperations(document).includes(operation))).toEqual([]);
});

test('what the OpenAPI document names is what answers: no operation is an unknown route, and no other method works', async () => {
  const document = (await (await get('/openapi.json')).json()) as OpenApiDocument;
  const methods = ['GET', 'POST', 'PUT', 'DELETE', 'PATCH'];
  for (const [path, described] of Object.entries(document.paths)) {
    const allowed = Object.keys(described).map((method) => method.toUpperCase());
    const url = origin + path.replaceAll(/\{\w+\}/g, 'x');
    for (const method of methods) {
      const response = await fetch(url, { method });
      const body = await response.text();
      const isPublic = !isOfApi(path);
      const withoutKey = withOtherSecrets.get(path) ?? (isPublic || isSignOut(method, path) ? 200 : 401);
      const expected = allowed.includes(method) ? withoutKey : 405;
      expect(`${method} ${path} ${response.status}`).toBe(`${method} ${path} ${expected}`);
      const names = allowed.flatMap((name) => (name === 'GET' ? ['GET', 'HEAD'] : [name]));
      expect(response.headers.get('allow')).toBe(expected === 405 ? names.join(', ') : null);
      expect(body.includes('"method_not_allowed"')).toBe(expected === 405);
    }
  }
});

test('every operation but the public ones declares its scope and its errors', async () => {
  const document = (await (await get('/openapi.json')).json()) as OpenApiDocument;
  for (const [path, described] of Object.entries(document.paths)) {
    for (const operation of Object.values(described)) {
      const scope = operation['x-scope'];
      // A scope that no key can be given would lock its routes away from every key with a list of scopes.
      const isScoped = scopes.some((known) => known === scope);
      expect({ path, isScoped }).toEqual({
        path,
        isScoped: isOfApi(path) && !isOfSession(path) && !withOtherSecrets.has(path),
      });
      const { '4XX': refused = {}, ...responses } = operation['responses'] as Record<string, object>;
      expect(responses).toMatchObject({ 200: expect.anything() });
      expect(refused).toHaveProperty('$ref' in refused ? ['$ref'] : ['content', 'application/json', 'schema']);
    }
  }
});

test('an error has the schema that the document names for its path', async () => {
  const document = (await (await get('/openapi.json')).json()) as OpenApiDocument;
  const ajv = new Ajv2020({ strict: false, validateFormats: false }).addSchema({ $id: 'document', ...document });
  const seen = new Set<string>();
  for (const [path, described] of Object.entries(document.paths)) {
    for (const [method, { responses }] of Object.entries(described)) {
      const { 401: refused } = responses as Record<string, { $ref: string } | undefined>;
      if (refused === undefined || withOtherSecrets.has(path) || isSignOut(method, path)) continue;
      const name = refused.$ref.slice('#/components/responses/'.length);
      seen.add(name);
      const response = await fetch(`${origin}${path}`, { method: method.toUpperCase() });
      const body: unknown = method === 'head' ? {} : await response.json();
      const isAsDocumented = ajv.validate({ $ref: `document#/components/schemas/${name}` }, body);
      expect({ path, method, status: response.status, isAsDocumented, body }).toMatchObject({ isAsDocumented: true });
    }
  }
  expect([...seen].toSorted()).toEqual(['AnthropicError', 'BedrockError', 'Error', 'GoogleError']);
});

test('the document says what an upload is made of, and which parameters a list takes', async () => {
  const document = (await (await get('/openapi.json')).json()) as OpenApiDocument;
  expect(document.paths['/v1/files']?.['post']?.['requestBody']).toEqual({
    required: true,
    content: {
      'multipart/form-data': {
        schema: { $ref: '#/components/schemas/FileUpload' },
        example: { purpose: 'batch', file: 'requests.jsonl' },
      },
    },
  });
  expect(document.components.schemas['FileUpload']).toMatchObject({
    type: 'object',
    required: ['file', 'purpose'],
    properties: {
      file: { type: 'string', format: 'binary' },
      purpose: { type: 'string', enum: expect.arrayContaining(['batch', 'fine-tune']) },
      'expires_after[anchor]': { type: 'string', const: 'created_at' },
      'expires_after[seconds]': { type: 'integer', minimum: 3_600, maximum: 2_592_000 },
    },
  });
  const list = document.paths['/v1/files']?.['get'];
  const parameters = list?.['parameters'] as { name?: string; in?: string }[];
  const queries = parameters.flatMap(({ name, in: place }) => (place === 'query' ? [name] : []));
  expect(queries).toEqual(['purpose', 'order', 'after', 'limit']);
  expect(list?.['responses']).toMatchObject({ 400: { $ref: '#/components/responses/Error' } });
});

test('after the stop nothing answers any more', async () => {
  const own = await startPlatform();
  const url = `${new URL(own.baseUrl).origin}/health/live`;
  expect((await fetch(url)).status).toBe(200);
  await own.stop();
  await expect(fetch(url)).rejects.toThrow('fetch failed');
});

test('the document breaks no rule that Redocly recommends', async () => {
  const document = await (await get('/openapi.json')).text();
  // There it is a warning that an example is not what its schema says.
  const config = await createConfig({
    extends: ['recommended'],
    rules: { 'no-invalid-media-type-examples': 'error' },
  });
  const problems = await lintFromString({ source: document, absoluteRef: '/openapi.json', config });
  const errors = problems.filter(({ severity }) => severity === 'error');
  expect(errors.map(({ ruleId, message, location }) => [ruleId, message, location[0]?.pointer])).toEqual([]);
});

test('the document describes each of its groups of operations', async () => {
  const { tags } = (await (await get('/openapi.json')).json()) as { tags: { name: string; description?: string }[] };
  expect(tags).toContainEqual({ name: 'Files', description: expect.stringContaining('files of batches') });
  expect(tags.filter(({ description }) => description === undefined)).toEqual([]);
});

test('the document says which operations take credentials, answer with a stream, or are superseded', async () => {
  const document = (await (await get('/openapi.json')).json()) as OpenApiDocument;
  const operation = (method: string, path: string) => document.paths[path]?.[method] as Record<string, unknown>;
  const atProviders: [string, string][] = [
    ['post', '/v1/chat/completions'],
    ['post', '/v1/batches'],
    ['post', '/v1/fine_tuning/jobs'],
    ['get', '/v1/models'],
    ['get', '/v1/models/{model}'],
    ['get', '/v1/responses/{responseId}'],
  ];
  for (const [method, path] of atProviders) {
    const text = JSON.stringify(operation(method, path)?.['parameters']);
    for (const name of ['virtual-key', 'provider', 'config', 'custom-host']) {
      expect([path, text.includes(`"x-gateway-${name}"`)]).toEqual([path, true]);
    }
  }
  const typesOf = (path: string) =>
    Object.keys((operation('post', path)['responses'] as Record<number, { content: object }>)[200]?.content ?? {});
  for (const path of ['/v1/chat/completions', '/v1/completions', '/v1/responses']) {
    expect(typesOf(path)).toEqual(['application/json', 'text/event-stream']);
  }
  expect(typesOf('/v1/embeddings')).toEqual(['application/json']);
  expect(operation('post', '/v1/threads')['deprecated']).toBe(true);
  expect(operation('post', '/v1/responses')['deprecated']).toBeUndefined();
});

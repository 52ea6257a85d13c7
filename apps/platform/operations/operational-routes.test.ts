import { expect, test } from 'vitest';
import { listOperations, serveForTest } from '#libs/http/http-test-kit.ts';
import { createMetrics } from '#libs/http/metrics.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import { version } from '#libs/kernel/version.ts';
import { operationalRoutes } from './operational-routes.ts';

test('the root, health, metrics and the document need no key, and say what is wrong', async () => {
  let database = 'ok';
  const routes = operationalRoutes({
    checkReadiness: async () => ({ required: { database }, informative: { worker: 'absent' } }),
    metrics: createMetrics(),
    openApi: () => toOpenApi(routes, { title: 'Sluice', description: '', baseUrl: 'http://127.0.0.1' }),
  });
  await using server = await serveForTest(routes);
  const get = (path: string) => fetch(server.url + path);
  const root = await get('/');
  expect(root.status).toBe(200);
  expect(await root.json()).toEqual({
    name: 'Sluice',
    version,
    openapi: '/openapi.json',
    health: '/health/ready',
    metrics: '/metrics',
  });
  for (const path of ['/health/live', '/health']) expect(await (await get(path)).json()).toEqual({ status: 'ok' });
  expect(await (await get('/health/ready')).json()).toEqual({
    status: 'ready',
    checks: { database: 'ok', worker: 'absent' },
  });
  database = 'no answer for 5 s';
  const ready = await get('/health/ready');
  expect(ready.status).toBe(503);
  expect(ready.headers.get('retry-after')).toBe('1');
  expect(await ready.json()).toMatchObject({
    error: { code: 'not_ready', message: 'Not ready (database: no answer for 5 s).' },
  });
  const metrics = await get('/metrics');
  expect(metrics.headers.get('content-type')).toContain('text/plain');
  expect(await metrics.text()).toContain('process_resident_memory_bytes');
  const document = (await (await get('/openapi.json')).json()) as ReturnType<typeof toOpenApi>;
  expect(listOperations(document)).toEqual([
    'GET /',
    'GET /health',
    'GET /health/live',
    'GET /health/ready',
    'GET /metrics',
    'GET /openapi.json',
  ]);
});

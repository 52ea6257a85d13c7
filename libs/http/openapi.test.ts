import { expect, test } from 'vitest';
import { z } from 'zod';
import { testRoute } from './http-test-kit.ts';
import { operationsOf, toOpenApi } from './openapi.ts';
import { withInput } from './route.ts';

const Batch = z
  .strictObject({ id: z.string(), limit: z.number().int().min(1).max(100).default(20), parent: z.string().nullable() })
  .meta({ id: 'Batch' });
const routes = [
  testRoute({
    method: 'POST',
    path: '/v1/batches',
    operationId: 'createBatch',
    tag: 'Batches',
    responses: { 200: { description: 'The batch.', schema: Batch } },
    ...withInput({ body: Batch }, (_input, _request, response) => void response.json({})),
  }),
  testRoute({
    method: 'GET',
    path: '/v1/batches',
    scope: 'batches.read',
    tag: 'Batches',
    responses: { 200: { description: 'A page.', schema: z.object({ data: z.array(Batch) }) } },
    ...withInput(
      { query: z.strictObject({ after: z.string(), limit: z.coerce.number().int().optional() }) },
      (_input, _request, response) => void response.json({}),
    ),
  }),
  testRoute({
    method: 'POST',
    path: '/v1/files',
    operationId: 'createFile',
    request: { body: 'multipart' },
    handler: () => {},
  }),
  testRoute({
    method: 'GET',
    path: '/v1/files/:fileId/content',
    operationId: 'getFileContent',
    request: { params: z.object({ fileId: z.string().startsWith('file-') }), headers: ['virtual-key'] },
    responses: { 200: { description: 'The bytes.' } },
    handler: () => {},
  }),
  testRoute({ method: 'GET', path: '/health/live', scope: 'public', handler: () => {} }),
];
const document = toOpenApi(routes, { title: 'Sluice', description: 'test', baseUrl: 'http://127.0.0.1:8787' });

test('the document has exactly the operations of the route table', () => {
  expect(operationsOf(document)).toEqual(routes.map(({ method, path }) => `${method} ${path}`).sort());
  expect(document).toMatchObject({ openapi: '3.1.0', info: { version: '2.0.0' } });
});

test('every reference in the document leads somewhere', () => {
  const refs = [...JSON.stringify(document).matchAll(/"\$ref":"([^"]+)"/g)].map(([, ref = '']) => ref);
  expect(refs.length).toBeGreaterThan(10);
  for (const ref of refs) {
    const target = ref
      .slice(2)
      .split('/')
      .reduce<unknown>((node, step) => (node as Record<string, unknown> | undefined)?.[step], document);
    expect({ ref, target }).toEqual({ ref, target: expect.anything() });
  }
});

test('schemas with an id become components, one for each direction where they differ', () => {
  const create = document.paths['/v1/batches']?.post;
  expect(create).toMatchObject({
    requestBody: { content: { 'application/json': { schema: { $ref: '#/components/schemas/Batch' } } } },
    'x-scope': 'batches.write',
  });
  const { schemas } = document.components;
  expect(schemas.Batch).toMatchObject({ required: ['id', 'parent'], additionalProperties: false });
  expect(schemas.BatchOutput).toMatchObject({ required: ['id', 'limit', 'parent'] });
  expect(create?.responses).toMatchObject({
    200: { content: { 'application/json': { schema: { $ref: '#/components/schemas/BatchOutput' } } } },
  });
});

test('parameters say where they are and whether they are needed', () => {
  const list = document.paths['/v1/batches']?.get?.parameters;
  expect(list).toContainEqual(expect.objectContaining({ name: 'after', in: 'query', required: true }));
  expect(list).toContainEqual(expect.objectContaining({ name: 'limit', in: 'query', required: false }));
  const content = document.paths['/v1/files/{fileId}/content']?.get;
  expect(content?.parameters).toContainEqual({
    name: 'fileId',
    in: 'path',
    required: true,
    schema: expect.objectContaining({ type: 'string', pattern: '^file-.*' }),
  });
  expect(content?.parameters).toContainEqual(expect.objectContaining({ name: 'x-gateway-virtual-key', in: 'header' }));
  expect(content?.responses).toMatchObject({
    200: { content: { 'application/octet-stream': {} } },
    401: { $ref: '#/components/responses/Error' },
  });
});

test('public routes need no key, the others one of two', () => {
  expect(document.paths['/health/live']?.get).toMatchObject({ security: [] });
  expect(document.paths['/v1/files']?.post).not.toHaveProperty('security');
  expect(document.security).toEqual([{ gatewayKey: [] }, { bearer: [] }]);
});

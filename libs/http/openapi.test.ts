import { expect, test } from 'vitest';
import { z } from 'zod';
import { listOperations, testRoute } from './http-test-kit.ts';
import { toOpenApi } from './openapi.ts';
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
  testRoute({
    method: 'POST',
    path: '/v1/responses',
    request: { body: 'relayed', headers: ['virtual-key', 'metadata'] },
    responses: { 200: { description: "The provider's answer.", contentType: 'application/json' } },
    handler: () => {},
  }),
  testRoute({ method: 'GET', path: '/health/live', scope: 'public', handler: () => {} }),
];
const document = toOpenApi(routes, { title: 'Sluice', description: 'test', baseUrl: 'http://127.0.0.1:8787' });

test('the document has exactly the operations of the route table', () => {
  expect(listOperations(document)).toEqual(routes.map(({ method, path }) => `${method} ${path}`).sort());
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

type Json = Record<string, unknown>;
const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));

test('no operation has a parameter twice', () => {
  const components = document.components.parameters as Record<string, Json>;
  for (const { operationId, parameters } of operations) {
    const names = (parameters as Json[]).map((parameter) => {
      const { name, in: place } = components[String(parameter['$ref']).split('/').at(-1) ?? ''] ?? parameter;
      return `${String(place)} ${String(name)}`;
    });
    expect([operationId, new Set(names).size]).toEqual([operationId, names.length]);
  }
});

/** Every schema of the document, at any depth. */
function* nodesOf(value: unknown): Generator<Json> {
  if (typeof value !== 'object' || value === null) return;
  if (!Array.isArray(value)) yield value as Json;
  for (const member of Object.values(value)) yield* nodesOf(member);
}

test('integers have the format that Go and others make a 64-bit type of', () => {
  const integers = [...nodesOf(document)].filter(({ type }) => type === 'integer');
  expect(integers.length).toBeGreaterThan(2);
  for (const { format } of integers) expect(format).toBe('int64');
});

test('every body and every error has a schema', () => {
  const bodies = [...nodesOf(document.paths)].flatMap(({ content }) => Object.entries((content ?? {}) as Json));
  const without = bodies.filter(([, media]) => (media as Json)['schema'] === undefined);
  expect([bodies.length > 5, without]).toEqual([true, []]);
  const error = document.components.responses['Error'];
  expect(error).toMatchObject({
    content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
  });
  for (const { responses } of operations) {
    expect(Object.keys(responses as Json)).toEqual(expect.arrayContaining(['4XX', '5XX']));
  }
});

test('what is forwarded says that it may be JSON', () => {
  const relayed = document.paths['/v1/responses']?.post;
  expect(relayed).toMatchObject({
    requestBody: { content: { 'application/json': { schema: { type: 'object' } } } },
    responses: { 200: { content: { 'application/json': { schema: {} } } } },
  });
});

test('public routes need no key, the others one of two', () => {
  expect(document.paths['/health/live']?.get).toMatchObject({ security: [] });
  expect(document.paths['/v1/files']?.post).not.toHaveProperty('security');
  expect(document.security).toEqual([{ gatewayKey: [] }, { bearer: [] }]);
});

test('an operation has the description, errors and example of its route, and the answer of the examples', () => {
  const described = routes.map((route) =>
    route.operationId === 'createBatch'
      ? { ...route, description: 'Returns immediately.', example: { id: 'a' }, errors: { ended: 'it has ended' } }
      : route,
  );
  const options = { title: 't', description: '', baseUrl: 'http://a', answers: { createBatch: { id: 'b' } } };
  expect(toOpenApi(described, options).paths['/v1/batches']?.post).toMatchObject({
    description: 'Returns immediately.\n\nErrors:\n\n- `ended`: it has ended',
    requestBody: { content: { 'application/json': { example: { id: 'a' } } } },
    responses: { 200: { content: { 'application/json': { example: { id: 'b' } } } } },
  });
  expect(document.paths['/v1/batches']?.post).not.toHaveProperty('description');
});

test('what may be null says so inside of its type', () => {
  const text = z.string().nullish();
  const choice = z.discriminatedUnion('type', [z.object({ type: z.literal('a') }), z.object({ type: z.literal('b') })]);
  const body = z.object({
    text,
    union: z.union([z.string(), z.array(z.string())]).nullish(),
    kind: z.enum(['x']).nullish(),
    choice: choice.nullish(),
  });
  const made = toOpenApi(
    [
      testRoute({
        method: 'POST',
        path: '/v1/a',
        ...withInput({ body }, (_input, _request, response) => void response.end()),
      }),
    ],
    { title: 't', description: '', baseUrl: 'http://a' },
  );
  expect(made.paths['/v1/a']?.post?.requestBody).toMatchObject({
    content: {
      'application/json': {
        schema: {
          properties: {
            text: { type: ['string', 'null'] },
            union: { anyOf: [{ type: ['string', 'null'] }, { type: 'array' }] },
            kind: { type: ['string', 'null'], enum: ['x', null] },
            choice: { oneOf: [{ type: ['object', 'null'] }, { type: 'object' }] },
          },
        },
      },
    },
  });
  expect([...nodesOf(made)].filter(({ type }) => type === 'null')).toEqual([]);
});

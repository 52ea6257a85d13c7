import { z } from 'zod';
import { expect, test } from 'vitest';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { productFiles, readSource } from '#test/source-files.ts';
import { sharedErrors } from './document-texts.ts';
import { createRoutes, type RouteDeps } from './routes.ts';

const examples = JSON.parse(readSource('apps/api/examples.json')) as Record<string, object>;
/** Replaces all dependencies of routes, because handlers are not called here. */
const nothing: object = new Proxy(() => nothing, {
  get: (_target, name) => (name === Symbol.iterator ? undefined : nothing),
});
const routes = createRoutes(nothing as RouteDeps);

test('every operation has a description that says more than its summary', () => {
  const silent = routes.filter(({ summary, description = '' }) => description.length < 10 || description === summary);
  expect(silent.map(({ operationId }) => operationId)).toEqual([]);
});

test('every operation that takes a body has an example of one', () => {
  const lacking = routes.filter(({ path, request, example }) => {
    // The request is forwarded with its body, but no client sends one.
    const takesBody = request?.body !== undefined && !path.endsWith('/cancel');
    return takesBody && example === undefined;
  });
  expect(lacking.map(({ operationId }) => operationId)).toEqual([]);
});

test('every example answer belongs to an operation', () => {
  const ids = new Set(routes.map(({ operationId }) => operationId));
  expect(Object.keys(examples).filter((id) => !ids.has(id))).toEqual([]);
});

test.each(routes.filter(({ example }) => example !== undefined))(
  'the example request of $operationId is valid',
  ({ operationId: id, request, example }) => {
    const schema = request?.bodySchema ?? request?.body;
    // The provider validates a forwarded body.
    const isValid = schema instanceof z.ZodType ? schema.safeParse(example).success : schema === 'relayed';
    expect({ id, isValid }).toEqual({ id, isValid: true });
  },
);

test.each(Object.entries(examples))('the example answer of %s has exactly the members of its schema', (id, answer) => {
  const { request, responses } = routes.find(({ operationId }) => operationId === id) ?? {};
  const schema = responses?.[200]?.schema;
  // The answer of a provider has no schema here.
  if (!schema && request?.body === 'relayed') return;
  if (!schema) throw new Error(`${id} has no schema of its answer`);
  expect(schema.parse(answer)).toEqual(answer);
});

test('every documented error code is used in the code', () => {
  const all = [{ errors: sharedErrors }, ...routes];
  const codes = new Set(all.flatMap(({ errors = {} }) => Object.keys(errors)));
  const source = productFiles.map((file) => readSource(file));
  // Derived from the noun of a kind, or the status of an invite.
  const made = new Set([
    ...resourceKinds.flatMap(({ noun }) => [`${noun}_not_found`, `${noun}_version_not_found`]),
    ...['accepted', 'cancelled', 'expired'].map((status) => `invite_${status}`),
  ]);
  expect([...codes].filter((code) => !made.has(code) && !source.some((text) => text.includes(`'${code}'`)))).toEqual(
    [],
  );
});

test('no code is the kind of an error alone', () => {
  const kinds = new Set(['conflict', 'not_found', 'forbidden', 'invalid_request', 'quota_exceeded', 'unavailable']);
  const named = routes.filter(({ errors = {} }) => Object.keys(errors).some((code) => kinds.has(code)));
  expect(named.map(({ operationId }) => operationId)).toEqual([]);
});

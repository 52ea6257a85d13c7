import { z } from 'zod';
import { expect, test } from 'vitest';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { productFiles, readSource } from '#test/source-files.ts';
import { tagTexts } from '../tag-texts.ts';
import { createRoutes, type RouteDeps } from '../routes.ts';
import { sharedErrors } from './document.ts';
import { answers, operationTexts, ownTexts } from './index.ts';

/** Stands for everything that routes are made with: handlers are not called here. */
const nothing: object = new Proxy(() => nothing, {
  get: (_target, name) => (name === Symbol.iterator ? undefined : nothing),
});
const routes = createRoutes(nothing as RouteDeps);
const texts = operationTexts(routes);

test('every operation says how it behaves, and more than its summary', () => {
  const silent = routes.filter(({ operationId, summary }) => {
    const { description = '' } = texts[operationId] ?? {};
    return description.length < 10 || description === summary;
  });
  expect(silent.map(({ operationId }) => operationId)).toEqual([]);
});

test('every operation that takes a body has an example of one', () => {
  const lacking = routes.filter(({ operationId, path, request }) => {
    // Their bodies are forwarded, but none of them has any.
    const takesBody = request?.body !== undefined && !path.endsWith('/cancel');
    return takesBody && texts[operationId]?.example === undefined;
  });
  expect(lacking.map(({ operationId }) => operationId)).toEqual([]);
});

test('every group of operations says what it is of', () => {
  expect([...new Set(routes.map(({ tag }) => tag))].filter((tag) => tagTexts[tag] === undefined)).toEqual([]);
});

test('every operation that has texts is in the route table', () => {
  const ids = new Set(routes.map(({ operationId }) => operationId));
  expect([...Object.keys(ownTexts), ...Object.keys(answers)].filter((id) => !ids.has(id))).toEqual([]);
});

test.each(Object.entries(texts).filter(([, { example }]) => example !== undefined))(
  'the example of %s passes its own schema, where it has one',
  (id, { example }) => {
    const request = routes.find(({ operationId }) => operationId === id)?.request;
    const schema = request?.bodySchema ?? request?.body;
    // The provider decides what a forwarded body may be.
    const isValid = schema instanceof z.ZodType ? schema.safeParse(example).success : schema === 'relayed';
    expect({ id, isValid }).toEqual({ id, isValid: true });
  },
);

test.each(Object.entries(texts).filter(([, { answer }]) => answer !== undefined))(
  'the answer of %s is one that its schema says, with no member that it does not say',
  (id, { answer }) => {
    const { request, responses } = routes.find(({ operationId }) => operationId === id) ?? {};
    const schema = responses?.[200]?.schema;
    // The provider decides what it answers; test/api/document-examples.test.ts compares it with a provider's answer.
    if (!schema && request?.body === 'relayed') return;
    if (!schema) throw new Error(`${id} has no schema of its answer`);
    expect(schema.parse(answer)).toEqual(answer);
  },
);

test('every error code that is named is one that some code answers with', () => {
  const all = [{ errors: sharedErrors }, ...Object.values(texts)];
  const codes = new Set(all.flatMap(({ errors = {} }) => Object.keys(errors)));
  const source = productFiles.filter((file) => !file.includes('operation-texts/')).map((file) => readSource(file));
  // The resource kit makes these codes of the kind's noun, and those of an invite of its status.
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
  const named = Object.entries(texts).filter(([, { errors = {} }]) =>
    Object.keys(errors).some((code) => kinds.has(code)),
  );
  expect(named.map(([id]) => id)).toEqual([]);
});

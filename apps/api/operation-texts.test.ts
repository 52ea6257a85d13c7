import { z } from 'zod';
import { expect, test } from 'vitest';
import { productFiles, readSource } from '#test/source-files.ts';
import { operationTexts } from './operation-texts.ts';
import { createRoutes, type RouteDeps } from './routes.ts';

/** Stands for everything that routes are made with: handlers are not called here. */
const nothing: object = new Proxy(() => nothing, {
  get: (_target, name) => (name === Symbol.iterator ? undefined : nothing),
});
const routes = createRoutes(nothing as RouteDeps);

test('every operation that has texts is in the route table', () => {
  const ids = new Set(routes.map(({ operationId }) => operationId));
  expect(Object.keys(operationTexts).filter((id) => !ids.has(id))).toEqual([]);
});

test.each(Object.entries(operationTexts).filter(([, { example }]) => example !== undefined))(
  'the example of %s passes its own schema',
  (id, { example }) => {
    const request = routes.find(({ operationId }) => operationId === id)?.request;
    const schema = request?.bodySchema ?? request?.body;
    if (!(schema instanceof z.ZodType)) throw new Error(`${id} has no schema of its body`);
    expect(schema.safeParse(example)).toMatchObject({ success: true });
  },
);

test('every error code that is named is one that some code answers with', () => {
  const codes = new Set(Object.values(operationTexts).flatMap(({ errors = {} }) => Object.keys(errors)));
  const source = productFiles.filter((file) => !file.endsWith('operation-texts.ts')).map((file) => readSource(file));
  expect([...codes].filter((code) => !source.some((text) => text.includes(`'${code}'`)))).toEqual([]);
});

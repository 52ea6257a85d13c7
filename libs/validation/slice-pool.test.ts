import { expect, test } from 'vitest';
import { checkOnLoop } from './slice-pool.ts';
import { defaultLimits } from './validation.ts';

const target = {
  endpoint: '/v1/chat/completions',
  hasDefaultTarget: true,
  virtualKeys: null,
  unable: new Map(),
} as const;
const check = (text: string) =>
  checkOnLoop({ bytes: Buffer.from(text), rules: { ...defaultLimits, ...target }, withCustomIds: true });
const lineWith = (body: object) =>
  JSON.stringify({
    custom_id: 'a',
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'm', messages: [{ role: 'user', content: 'hi' }], ...body },
  });

test('a short slice is checked on the loop', async () => {
  expect(await check(`${lineWith({})}\n{}\n`)).toMatchObject({ lineCount: 2, errorCount: 1, customIds: ['a', null] });
  expect(await check('{}\n'.repeat(500))).toMatchObject({ lineCount: 500 });
});

test('a slice with a schema, many lines or many bytes is left to a thread', async () => {
  const schema = { type: 'json_schema', json_schema: { name: 'n', schema: { type: 'object' } } };
  expect(await check(lineWith({ response_format: schema }))).toBeNull();
  expect(await check('{}\n'.repeat(501))).toBeNull();
  expect(await check(lineWith({ user: 'x'.repeat(131_072) }))).toBeNull();
});

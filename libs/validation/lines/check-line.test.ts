import { describe, expect, test } from 'vitest';
import type { BatchEndpoint } from '#libs/contracts/batches/batches.ts';
import { defaultLimits } from '../validation.ts';
import { checkLine, type LineRules } from './check-line.ts';

const rulesFor = (endpoint: BatchEndpoint, hasDefaultTarget = true): LineRules => ({
  ...defaultLimits,
  endpoint,
  hasDefaultTarget,
  virtualKeys: null,
  unable: new Map(),
});
const chatRules = rulesFor('/v1/chat/completions');
const body = { model: 'm', messages: [{ role: 'user', content: 'hello' }] };
const line = { custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body };
const without = (field: keyof typeof line) => ({ ...line, [field]: undefined });
const problemOf = (value: unknown, rules = chatRules) =>
  checkLine(Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)), rules).problem;
const withBody = (fields: object) => ({ ...line, body: { ...body, ...fields } });

test('a valid line has no problem, and its custom_id and model are returned', () => {
  expect(checkLine(Buffer.from(JSON.stringify({ ...line, extra: 1 })), chatRules)).toEqual({
    customId: 'a',
    model: 'm',
    problem: null,
    timedOut: false,
  });
});

test.each([
  ['of the line', '{"custom_id":"a","custom_id":"b"}', 'custom_id'],
  ['of its body', JSON.stringify(line).replace('"model"', '"model":"other","model"'), 'body.model'],
  ['of a message', JSON.stringify(line).replace('"role"', '"content":"x","role"'), 'body.messages[0].content'],
])('a member %s that appears twice is rejected', (_where, text, param) => {
  expect(problemOf(text)).toEqual({
    code: 'duplicate_member',
    message: `Duplicate key: '${param}' appears twice. Each key of an object must be unique.`,
    param,
  });
});

// LINE-1, LINE-2: every problem of one line, with OpenAI's text where one is known.
test.each<[string, unknown, string, string | null, string]>([
  ['broken JSON', '{"custom_id":', 'invalid_json_line', null, 'This line is not parseable as valid JSON.'],
  [
    'no custom_id',
    without('custom_id'),
    'missing_required_parameter',
    'custom_id',
    "Missing required parameter: 'custom_id'.",
  ],
  ['no method', without('method'), 'missing_required_parameter', 'method', "Missing required parameter: 'method'."],
  ['no url', without('url'), 'missing_required_parameter', 'url', "Missing required parameter: 'url'."],
  ['no body', without('body'), 'missing_required_parameter', 'body', "Missing required parameter: 'body'."],
  [
    'another url',
    { ...line, url: '/v1/embeddings' },
    'invalid_url',
    'url',
    'The URL provided for this request does not match the batch endpoint.',
  ],
  [
    'another method',
    { ...line, method: 'GET' },
    'invalid_method',
    'method',
    "Invalid value: 'GET'. Supported values are: 'POST'.",
  ],
  [
    'streaming',
    withBody({ stream: true }),
    'streaming_unsupported',
    'body.stream',
    'Chat Completions: Streaming is not supported in the Batch API.',
  ],
  ['no model', withBody({ model: undefined }), 'invalid_request', 'body.model', 'Model parameter is required.'],
  [
    'no messages',
    withBody({ messages: undefined }),
    'invalid_request',
    'body.messages',
    'Messages parameter is required.',
  ],
  [
    'a custom_id that is a number',
    { ...line, custom_id: 5 },
    'invalid_type',
    'custom_id',
    "Invalid type for 'custom_id': expected a string, but got an integer instead.",
  ],
  [
    'a body that is an array',
    { ...line, body: [] },
    'invalid_type',
    'body',
    "Invalid type for 'body': expected an object, but got an array instead.",
  ],
  [
    'a bad parameter',
    withBody({ temperature: 3 }),
    'decimal_above_max_value',
    'body.temperature',
    "Invalid 'body.temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
  ],
  [
    'a rule across fields',
    withBody({ top_logprobs: 2 }),
    'invalid_value',
    'body.top_logprobs',
    "Invalid 'body.top_logprobs': it is only allowed when 'body.logprobs' is true.",
  ],
])('%s is reported', (_name, value, code, param, message) => {
  expect(problemOf(value)).toEqual({ code, param, message });
});

test.each([
  ['an array', '[1]'],
  ['null', 'null'],
  ['a string', '"x"'],
  ['an integer', '7'],
  ['a boolean', 'true'],
])('JSON that is %s is not a request', (kind, text) => {
  expect(problemOf(text)).toEqual({
    code: 'invalid_json_line',
    param: null,
    message: `This line is not parseable as valid JSON. A line must be a JSON object, but this one is ${kind}.`,
  });
});

test('trailing garbage and a byte order mark make a line unreadable', () => {
  expect(problemOf(`${JSON.stringify(line)} x`)?.code).toBe('invalid_json_line');
  expect(problemOf(`\uFEFF${JSON.stringify(line)}`)).toMatchObject({
    code: 'invalid_json_line',
    message: expect.stringContaining('byte order mark') as string,
  });
});

test('a custom_id is 1 to 512 characters that can be stored', () => {
  expect(problemOf({ ...line, custom_id: '' })?.code).toBe('empty_string');
  expect(problemOf({ ...line, custom_id: 'x'.repeat(512) })).toBeNull();
  expect(problemOf({ ...line, custom_id: 'x'.repeat(513) })?.code).toBe('string_above_max_length');
  expect(problemOf('{"custom_id":"\\ud800","method":"POST"}')).toMatchObject({
    code: 'invalid_value',
    param: 'custom_id',
  });
  expect(problemOf({ ...line, custom_id: 'a\0' })).toMatchObject({ code: 'invalid_value', param: 'custom_id' });
});

test('a key named __proto__ does not count as the field and pollutes nothing', () => {
  const hidden = `{"__proto__":{"custom_id":"a"},"method":"POST","url":"/v1/chat/completions","body":${JSON.stringify(body)}}`;
  expect(problemOf(hidden)?.param).toBe('custom_id');
  expect(problemOf(JSON.stringify(withBody({})).replace('"model"', '"__proto__":{"x":1},"model"'))).toBeNull();
  expect(({} as Record<string, unknown>)['x']).toBeUndefined();
});

test('without a default target the model names its virtual key', () => {
  const rules = rulesFor('/v1/chat/completions', false);
  expect(problemOf(withBody({ model: '@main/gpt-4o' }), rules)).toBeNull();
  for (const model of ['gpt-4o', '@main', '@main/', '@/x', '@a b/x']) {
    expect(problemOf(withBody({ model }), rules)).toMatchObject({
      code: 'model_not_found',
      param: 'body.model',
      message: expect.stringContaining("'@virtual-key/model'") as string,
    });
  }
});

test('without a default target, a model can be a public name', () => {
  const publicNames = { exact: new Set(['gpt-4o']), wildcards: ['openai/*'] };
  const rules = { ...chatRules, hasDefaultTarget: false, virtualKeys: new Set<string>(), publicNames };
  expect(problemOf(withBody({ model: 'gpt-4o' }), rules)).toBeNull();
  expect(problemOf(withBody({ model: 'openai/gpt-5' }), rules)).toBeNull();
  expect(problemOf(withBody({ model: 'openai/' }), rules)).toMatchObject({ code: 'model_not_found' });
});

test('a virtual key that a model names must exist, if the keys are known', () => {
  const rules = { ...chatRules, virtualKeys: new Set(['main']) };
  expect(problemOf(withBody({ model: '@main/gpt-4o' }), rules)).toBeNull();
  expect(problemOf(withBody({ model: 'gpt-4o' }), rules)).toBeNull();
  expect(problemOf(withBody({ model: '@mian/gpt-4o' }), rules)).toEqual({
    code: 'model_not_found',
    param: 'body.model',
    message: "The model '@mian/gpt-4o' names the virtual key 'mian', which does not exist in this workspace.",
  });
  expect(problemOf(withBody({ model: '@mian/gpt-4o' }))).toBeNull();
});

test('a line for a provider without the endpoint is an error, if the provider is known', () => {
  const moderation = (model: string) => ({ ...line, url: '/v1/moderations', body: { model, input: 'hello' } });
  const rules = { ...rulesFor('/v1/moderations'), unable: new Map([['anthropic-key', 'anthropic']]) };
  expect(problemOf(moderation('@other/omni'), rules)).toBeNull();
  expect(problemOf(moderation('omni'), rules)).toBeNull();
  const problem = {
    code: 'unsupported_operation',
    param: 'body.model',
    message: expect.stringContaining("The provider 'anthropic' does not support /v1/moderations."),
  };
  expect(problemOf(moderation('@anthropic-key/omni'), rules)).toEqual(problem);
  const ofBatch = { ...rules, unable: new Map([[null, 'anthropic']]) };
  expect(problemOf(moderation('omni'), ofBatch)).toEqual(problem);
  expect(problemOf(moderation('@other/omni'), ofBatch)).toBeNull();
});

test('optional members may be null in a line, as on the live route', () => {
  const nulls = { tools: null, tool_choice: null, response_format: null, parallel_tool_calls: null, stream: null };
  expect(problemOf(withBody({ ...nulls, functions: null, user: null }))).toBeNull();
});

test('a bound below 1 is left to the call of its line', () => {
  for (const bounds of [{ max_tokens: 0 }, { n: -1e6 }, { max_completion_tokens: 0.5 }]) {
    expect(problemOf(withBody(bounds))).toBeNull();
    expect(problemOf(withBody({ ...bounds, temperature: 'hot' }))).toMatchObject({ param: 'body.temperature' });
  }
});

test('the other endpoints have their own bodies and messages', () => {
  const completion = { ...line, url: '/v1/completions', body: { model: 'm', prompt: 'x' } };
  const rules = rulesFor('/v1/completions');
  expect(problemOf(completion, rules)).toBeNull();
  expect(problemOf({ ...completion, body: { model: 'm', prompt: 'x', best_of: 1, n: 2 } }, rules)?.param).toBe(
    'body.best_of',
  );
  expect(problemOf({ ...completion, body: { model: 'm', prompt: 'x', stream: true } }, rules)?.message).toBe(
    'Completions: Streaming is not supported in the Batch API.',
  );
  for (const url of ['/v1/responses', '/v1/moderations', '/v1/images/generations'] as const) {
    const relayed = { ...line, url, body: { model: 'm', input: [{ any: 'thing' }] } };
    expect(problemOf(relayed, rulesFor(url))).toBeNull();
    expect(problemOf({ ...relayed, body: { model: 7 } }, rulesFor(url))).toMatchObject({ param: 'body.model' });
    expect(problemOf({ ...relayed, body: { input: 'x' } }, rulesFor(url))?.message).toBe(
      'Model parameter is required.',
    );
    expect(problemOf({ ...relayed, body: { model: 'm', stream: true } }, rulesFor(url))).toMatchObject({
      code: 'streaming_unsupported',
    });
  }
  const embedding = { ...line, url: '/v1/embeddings', body: { model: 'e', input: [] as unknown[] } };
  expect(problemOf(embedding, rulesFor('/v1/embeddings'))).toMatchObject({ code: 'empty_array', param: 'body.input' });
});

describe('response_format schemas', () => {
  const withSchema = (schema: unknown) =>
    withBody({ response_format: { type: 'json_schema', json_schema: { name: 'x', schema } } });

  test.each([
    ['an ordinary one', { type: 'object', properties: { a: { type: 'string' } }, required: ['a'] }],
    ['one with local references', { $defs: { n: { properties: { next: { $ref: '#/$defs/n' } } } }, $ref: '#/$defs/n' }],
    [
      'one that refers to itself',
      { type: 'object', properties: { children: { type: 'array', items: { $ref: '#' } } } },
    ],
    [
      'one of draft 7',
      { $schema: 'http://json-schema.org/draft-07/schema#', definitions: { a: {} }, $ref: '#/definitions/a' },
    ],
    ['unknown keywords and formats', { type: 'string', format: 'colour', 'x-order': 1 }],
    [
      'two thousand properties',
      { properties: Object.fromEntries(Array.from({ length: 2_000 }, (_, i) => [`p${i}`, {}])) },
    ],
  ])('%s compiles', (_name, schema) => {
    expect(problemOf(withSchema(schema))).toBeNull();
  });

  test.each([
    ['a type that does not exist', { type: 'text' }, 'does not compile'],
    ['a reference to elsewhere', { $ref: 'http://169.254.169.254/latest' }, "can't resolve reference"],
    ['a missing definition', { $ref: '#/$defs/none' }, "can't resolve reference"],
    ['a broken pattern', { pattern: '(' }, 'does not compile'],
    ['more than 64 kB', { description: 'x'.repeat(65_536) }, 'Expected at most 65536 bytes'],
  ])('%s is refused', (_name, schema, reason) => {
    expect(problemOf(withSchema(schema))).toMatchObject({
      code: 'invalid_request',
      param: 'body.response_format',
      message: expect.stringContaining(reason) as string,
    });
  });

  test('an id in one schema does not affect the next one', () => {
    const meta = 'https://json-schema.org/draft/2020-12/schema';
    expect(problemOf(withSchema({ $defs: { a: { $id: 'item', type: 'string' } } }))).toBeNull();
    expect(problemOf(withSchema({ $defs: { a: { $id: 'item', type: 'number' } } }))).toBeNull();
    expect(problemOf(withSchema({ $ref: 'item' }))?.message).toContain("can't resolve reference");
    problemOf(withSchema({ $id: meta, type: 'object' }));
    expect(problemOf(withSchema({ type: 'object', title: 'after' }))).toBeNull();
  });

  test('a schema that takes too long is stopped, and the next one is checked', () => {
    const slow = {
      patternProperties: Object.fromEntries(Array.from({ length: 4_000 }, (_, i) => [`p${i}`, {}])),
      additionalProperties: false,
    };
    const rules = { ...chatRules, schemaTimeoutMs: 20 };
    expect(checkLine(Buffer.from(JSON.stringify(withSchema(slow))), rules)).toMatchObject({
      timedOut: true,
      problem: {
        code: 'invalid_request',
        param: 'body.response_format',
        message: expect.stringContaining('20 ms') as string,
      },
    });
    expect(problemOf(withSchema({ type: 'object', title: 'next' }))).toBeNull();
  });
});

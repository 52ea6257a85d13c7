import { expect, test } from 'vitest';
import type { CheckedOperation } from './answer-contents.ts';
import checkOutput, { type OutputVerdict } from './check-output-worker.ts';

const person = {
  type: 'object',
  properties: {
    name: { type: 'string' },
    age: { type: 'integer', minimum: 0 },
    tags: { type: 'array', items: { enum: ['a', 'b'] } },
  },
  required: ['name'],
  additionalProperties: false,
};

const bytesOf = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
const formatOf = (schema: unknown, operation: CheckedOperation = 'chat'): Buffer =>
  operation === 'chat'
    ? bytesOf({ type: 'json_schema', json_schema: { name: 'n', schema } })
    : bytesOf({ format: { type: 'json_schema', name: 'n', schema } });
const choice = (content: unknown, more: object = {}, finish = 'stop') => ({
  message: { role: 'assistant', content, ...more },
  finish_reason: finish,
});
const check = (schema: unknown, ...choices: unknown[]): OutputVerdict =>
  checkOutput({ operation: 'chat', format: formatOf(schema), answer: bytesOf({ choices }) });
const failed = (problem: unknown, isFinal = false) => ({ kind: 'failed', problem, isFinal });

test('an answer that matches its schema passes', () => {
  expect(check(person, choice('{"name":"Ada","age":36,"tags":["a"]}'))).toEqual({ kind: 'passed' });
  expect(check(person, choice(' {"name":"Ada"}\n'), choice('{"name":"Bo"}'))).toEqual({ kind: 'passed' });
});

test.each([
  ['{"name":1}', "'/name' must be string."],
  ['{"age":1}', "the content must have required property 'name'."],
  ['{"name":"Ada","tags":["a","x"]}', '\'/tags/1\' must be equal to one of the allowed values: ["a","b"].'],
  ['{"name":"Ada","extra":1}', 'the content must NOT have additional properties: "extra".'],
  ['[]', 'the content must be object.'],
  ['```json\n{"name":"Ada"}\n```', 'the content is not valid JSON.'],
  ['', 'the content is empty.'],
  [null, 'the content is empty.'],
])('the first violation in %j is named with its path', (content, problem) => {
  expect(check(person, choice(content))).toEqual(failed(problem));
});

test('each choice must match', () => {
  expect(check(person, choice('{"name":"Ada"}'), choice('{}'))).toEqual(
    failed("In choice 1: the content must have required property 'name'."),
  );
});

test('the inherited members of objects are not members of an answer', () => {
  expect(check({ required: ['toString'] }, choice('{}'))).toMatchObject({ kind: 'failed' });
});

test('refusals and tool calls are not checked', () => {
  const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } };
  expect(check(person, choice(null, { refusal: 'No.' }))).toEqual({ kind: 'unchecked' });
  expect(check(person, choice(null, { tool_calls: [call] }, 'tool_calls'))).toEqual({ kind: 'unchecked' });
  expect(check(person, choice(null, { refusal: 'No.' }), choice('{}'))).toMatchObject({ kind: 'failed' });
});

test.each(['length', 'content_filter'])('an answer that ended with %s fails finally unless it matches', (reason) => {
  expect(check(person, choice('{"name":"Ad', {}, reason))).toEqual(
    failed('the content is not valid JSON. The answer was cut off.', true),
  );
  expect(check(person, choice('{"name":"Ada"}', {}, reason))).toEqual({ kind: 'passed' });
});

test('a request without a schema is not checked', () => {
  const answer = bytesOf({ choices: [choice('hello')] });
  for (const format of [{ type: 'json_object' }, { type: 'json_schema', json_schema: { name: 'n' } }, null])
    expect(checkOutput({ operation: 'chat', format: bytesOf(format), answer })).toEqual({ kind: 'unchecked' });
});

const message = (text: string) => ({ type: 'message', content: [{ type: 'output_text', text }] });
test.each([
  ['a matching text', { output: [{ type: 'reasoning' }, message('{"name":"Ada"}')] }, { kind: 'passed' }],
  ['another text', { output: [message('{"name":1}')] }, failed("'/name' must be string.")],
  ['a refusal', { output: [{ type: 'message', content: [{ type: 'refusal' }] }] }, { kind: 'unchecked' }],
  ['a call', { output: [{ type: 'function_call' }] }, { kind: 'unchecked' }],
  [
    'no text, because the model thought for too long',
    { status: 'incomplete', output: [{ type: 'reasoning' }] },
    failed('the content is empty. The answer was cut off.', true),
  ],
])('an answer of /v1/responses with %s', (_name, answer, verdict) => {
  const format = formatOf(person, 'responses');
  expect(checkOutput({ operation: 'responses', format, answer: bytesOf(answer) })).toEqual(verdict);
});

test('draft 7 applies where the schema names it', () => {
  const schema = { $schema: 'http://json-schema.org/draft-07/schema#', items: [{ type: 'string' }] };
  expect(check(schema, choice('[1]'))).toEqual(failed("'/0' must be string."));
});

test.each([
  ['does not compile', { type: 'nonsense' }, /^The JSON Schema cannot be used: it does not compile/],
  ['refers to another document', { $ref: 'http://169.254.169.254/x' }, /can't resolve reference/],
  ['is large', { description: 'x'.repeat(70_000) }, /more than 65536\.$/],
  ['is asynchronous', { properties: { a: { $async: true, type: 'string' } } }, /cannot be used|async/],
])('a schema that %s fails the answer finally', (_name, schema, problem) => {
  const verdict = check(schema, choice('{}'));
  expect(verdict).toEqual(failed(expect.stringMatching(problem), true));
  expect(check(schema, choice('{}'))).toEqual(verdict);
});

test('an asynchronous schema is used like any other', () => {
  expect(check({ $async: true, type: 'object' }, choice('[]'))).toEqual(failed('the content must be object.'));
});

const doubling = {
  $ref: '#/$defs/d0',
  $defs: Object.fromEntries(
    Array.from({ length: 40 }, (_v, n) => [
      `d${n}`,
      n === 39 ? { type: 'null' } : { anyOf: [{ $ref: `#/$defs/d${n + 1}` }, { $ref: `#/$defs/d${n + 1}` }] },
    ]),
  ),
};
test.each([
  ['an expression that backtracks', { type: 'string', pattern: '^(a+)+$' }, JSON.stringify(`${'a'.repeat(50)}b`)],
  ['references that double at each step', doubling, '1'],
])('a check that takes too long is stopped: %s', (_name, schema, content) => {
  expect(check(schema, choice(content))).toEqual(failed('The check took longer than 250 ms.', true));
  expect(check(person, choice('{"name":"Ada"}'))).toEqual({ kind: 'passed' });
});

test('JSON that is nested deeper than the stack is a failure', () => {
  const list = { items: { $ref: '#' } };
  const deep = '['.repeat(200_000) + ']'.repeat(200_000);
  expect(check(list, choice(deep))).toEqual(failed('The JSON is nested too deeply to be checked.', true));
});

test('an answer that is too large is not parsed', () => {
  expect(check(person, choice('x'.repeat(5_000_000)))).toEqual(
    failed('The answer is larger than 4194304 bytes.', true),
  );
});

test('a problem is short and storable, however long its path is', () => {
  const content = JSON.stringify({ [`\0${'k'.repeat(10_000)}`]: { [`\ud800`.repeat(10_000)]: 1 } });
  const schema = { additionalProperties: { additionalProperties: { type: 'string' } } };
  const verdict = check(schema, choice(content)) as { problem: string };
  expect(verdict.problem.length).toBeLessThanOrEqual(600);
  expect(verdict.problem).not.toContain('\0');
});

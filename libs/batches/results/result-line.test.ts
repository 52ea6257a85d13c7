import { batchLineId } from '#libs/kernel/ids.ts';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { failureOf, isSuccess, resultLine, statusOf, unansweredMessages, type LineOutcome } from './result-line.ts';

const answer = (body: string, statusCode = 200): LineOutcome => ({
  kind: 'response',
  statusCode,
  requestId: 'req_1',
  body: Buffer.from(body),
});

test('an answer is a line with the four keys of a batch output, the body as it came', () => {
  const line = resultLine(
    batchLineId('batch_1', 0),
    Buffer.from('"mine"'),
    answer('{"id": "x",  "seed": 12345678901234567890}'),
  );
  expect(line.toString()).toBe(
    `{"id":"${batchLineId('batch_1', 0)}","custom_id":"mine","response":{"status_code":200,"request_id":"req_1",` +
      `"body":{"id": "x",  "seed": 12345678901234567890}},"error":null}`,
  );
});

test('a line without an answer has an error and no response', () => {
  const outcome: LineOutcome = { kind: 'error', code: 'batch_expired', message: unansweredMessages.batch_expired };
  const line = resultLine(batchLineId('batch_1', 7), Buffer.from('"mine"'), outcome);
  expect(JSON.parse(line.toString())).toEqual({
    id: batchLineId('batch_1', 7),
    custom_id: 'mine',
    response: null,
    error: {
      code: 'batch_expired',
      message: 'This request could not be executed before the completion window expired.',
    },
  });
});

test('the custom_id is written exactly as it was in the input', () => {
  const raw = String.raw`"\u00e9\/\n"`;
  expect(resultLine(batchLineId('batch_1', 0), Buffer.from(raw), answer('{}')).toString()).toContain(
    `"custom_id":${raw},`,
  );
});

test('line breaks between the tokens of a body become spaces, so that it stays one line', () => {
  const body = '{\r\n  "text": "a\\nb",\n  "n": 1\r}\n';
  const line = resultLine(batchLineId('batch_1', 0), Buffer.from('"c"'), answer(body)).toString();
  expect(line).not.toMatch(/[\r\n]/);
  expect(JSON.parse(line).response.body).toEqual({ text: 'a\nb', n: 1 });
});

test("the provider's own buffer is not modified", () => {
  const body = Buffer.from('{\n}');
  resultLine(batchLineId('batch_1', 0), Buffer.from('"c"'), {
    kind: 'response',
    statusCode: 200,
    requestId: 'r',
    body,
  });
  expect(body.toString()).toBe('{\n}');
});

test('any JSON, however it is formatted, is the same when read from its line', () => {
  fc.assert(
    fc.property(fc.json(), fc.constantFrom('', ' ', '\t', '\n', '\r\n'), fc.string(), (json, indent, customId) => {
      const value: unknown = JSON.parse(json);
      const body = JSON.stringify(value, null, indent).replaceAll('\n', indent === '\r\n' ? '\r\n' : '\n');
      const line = resultLine(
        batchLineId('batch_1', 3),
        Buffer.from(JSON.stringify(customId)),
        answer(body),
      ).toString();
      expect(line).not.toMatch(/[\r\n]/);
      expect(JSON.parse(line)).toEqual({
        id: batchLineId('batch_1', 3),
        custom_id: customId,
        response: { status_code: 200, request_id: 'req_1', body: value },
        error: null,
      });
    }),
  );
});

test('a repeated line produces the same bytes, and another line or batch has another id', () => {
  expect(batchLineId('batch_1', 5)).toBe(batchLineId('batch_1', 5));
  expect(batchLineId('batch_1', 5)).toMatch(/^batch_req_[0-9a-f]{32}$/);
  const ids = [
    batchLineId('batch_1', 5),
    batchLineId('batch_1', 6),
    batchLineId('batch_2', 5),
    batchLineId('batch_1', 51),
  ];
  expect(new Set(ids).size).toBe(4);
  // These ids are in files that users keep, so they must never change.
  expect(batchLineId('batch_1', 0)).toBe('batch_req_0fc3c1b8374711cd438f4d7bcb811eb2');
});

test.each([
  [200, true],
  [201, true],
  [299, true],
  [199, false],
  [300, false],
  [400, false],
  [429, false],
  [500, false],
])('an answer with status %d counts as success: %s', (status, success) => {
  expect(isSuccess(statusOf(answer('{}', status)))).toBe(success);
});

test('a line without an answer is not a success', () => {
  expect(isSuccess(statusOf({ kind: 'error', code: 'worker_crashed', message: 'x' }))).toBe(false);
});

test.each([
  ['{"error":{"message":"m","type":"t","code":"plain"}}', 'plain', 'm'],
  ['{ "error" : { "code" : "spaced" } }', 'spaced', null],
  ['{"error":{"code":null,"type":"of_type"}}', 'of_type', null],
  ['{"error":{"code":429,"inner":{"code":"inner"},"type":"t"}}', 't', null],
  [String.raw`{"error":{"code":"a\"b\u0000"}}`, 'a"b\u{FFFD}', null],
  [`{"error":{"code":"${'x'.repeat(101)}"}}`, 'x'.repeat(100), null],
  ['{"error":"no"}', null, 'no'],
  ['{"error":{"message":"\xff \u{1f600}"}}', null, '\xff \u{1f600}'],
  ['[]', null, null],
  ['null', null, null],
  ['not JSON', null, null],
])('the failure of a line answered by 400 and %s is %j', (body, code, message) => {
  expect(failureOf(answer(body, 400))).toEqual({ code, message });
});

test('a line fails with our own error, and not with a 2xx answer', () => {
  const error = { code: 'worker_crashed', message: 'x' };
  expect(failureOf({ kind: 'error', ...error })).toEqual(error);
  expect(failureOf(answer('{"error":{"code":"c"}}', 200))).toBeNull();
});

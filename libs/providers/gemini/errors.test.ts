import { expect, test } from 'vitest';
import { readPayload } from '#test/fixtures/provider-payloads.ts';
import { decodeGoogleError } from './errors.ts';

const error = (members: object): string => JSON.stringify({ error: members });

test.each([
  [400, 'invalid_request_error'],
  [401, 'authentication_error'],
  [403, 'permission_error'],
  [404, 'invalid_request_error'],
  [429, 'rate_limit_error'],
  [503, 'server_error'],
])('%i has the type %s', (status, type) => {
  expect(decodeGoogleError(status, error({ code: status, message: 'm', status: 'S' }))).toEqual({
    error: { message: 'm', type, param: null, code: 'S' },
    status,
  });
});

test.each([
  ['34.4s', 34_400],
  ['0.000000001s', 1],
  ['7s', 7_000],
  ['soon', undefined],
  ['-1s', undefined],
  [7, undefined],
])('a retry delay of %s is %s ms', (retryDelay, wanted) => {
  const details = [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay }];
  expect(decodeGoogleError(429, error({ code: 429, message: 'm', details })).retryAfterMs).toBe(wanted);
});

test.each([
  ['', 'The provider returned status 500.'],
  ['null', 'The provider returned status 500.'],
  ['[]', 'The provider returned status 500.'],
  ['Bad gateway', 'Bad gateway'],
  ['{"error":"text"}', 'text'],
  ['{"error":{"status":"INTERNAL"}}', 'INTERNAL'],
  ['{"error":{"code":"x","message":7,"details":[null,{"fieldViolations":7}]}}', 'The provider returned status 500.'],
])('a body of %j still becomes an error', (body, message) => {
  expect(decodeGoogleError(500, body).error).toMatchObject({ message, type: 'server_error' });
});

test('inside a stream the code in the body is the status', () => {
  expect(decodeGoogleError(200, error({ code: 429, message: 'm', status: 'RESOURCE_EXHAUSTED' }))).toMatchObject({
    error: { type: 'rate_limit_error' },
    status: 429,
  });
});

test('a 429 with all its details tells how long to wait', () => {
  expect(decodeGoogleError(429, readPayload('google-429-retry-info.json').toString())).toMatchObject({
    error: { code: 'RESOURCE_EXHAUSTED', type: 'rate_limit_error' },
    retryAfterMs: 21_600,
  });
});

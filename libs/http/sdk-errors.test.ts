import OpenAI from 'openai';
import OpenAI6 from 'openai6';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { GatewayError } from '#libs/kernel/errors.ts';
import { serveForTest, testRoute, type TestServer } from './http-test-kit.ts';

let calls = 0;
let refusal: GatewayError;
let server: TestServer;

beforeAll(async () => {
  const handler = (): never => {
    calls += 1;
    throw refusal;
  };
  server = await serveForTest([testRoute({ method: 'POST', path: '/v1/batches/:batchId/cancel', handler })]);
});
beforeEach(() => (calls = 0));
afterAll(() => server[Symbol.asyncDispose]());

const clients = [
  ['openai 7', (apiKey: string) => new OpenAI({ apiKey, baseURL: `${server.url}/v1/` })],
  ['openai 6', (apiKey: string) => new OpenAI6({ apiKey, baseURL: `${server.url}/v1` }) as unknown as OpenAI],
] as const;

test.each(clients)('%s reads the error and calls once where a repeat cannot succeed', async (_name, makeClient) => {
  const refusals = [
    new GatewayError('conflict', null, "Cannot cancel a batch with status 'completed'."),
    new GatewayError('quota_exceeded', 'insufficient_quota', 'The quota is used up.'),
    new GatewayError('storage_full', 'storage_full', 'The storage is full.'),
    new GatewayError('not_found', null, 'No batch found.', { param: 'batch_id' }),
  ];
  for (const [index, next] of refusals.entries()) {
    refusal = next;
    const { message, code, param } = next;
    await expect(makeClient('all').batches.cancel('batch_1')).rejects.toMatchObject({
      message: expect.stringContaining(message),
      code,
      param,
      requestID: expect.stringMatching(/^req_/),
    });
    expect(calls).toBe(index + 1);
  }
});

test.each(clients)('%s retries after the wait that the answer gives', async (_name, makeClient) => {
  refusal = new GatewayError('unavailable', 'busy', 'Come back.', { retryAfterMs: 5 });
  await expect(makeClient('all').batches.cancel('batch_1')).rejects.toMatchObject({
    status: 503,
    type: 'service_unavailable_error',
  });
  expect(calls).toBe(3);
});

test.each(clients)('%s does not repeat a call with a wrong key', async (_name, makeClient) => {
  await expect(makeClient('wrong').batches.cancel('batch_1')).rejects.toMatchObject({
    status: 401,
    code: 'invalid_api_key',
  });
  expect(server.lines.filter((line) => line.status === 401).length).toBeLessThanOrEqual(clients.length);
  expect(calls).toBe(0);
});

import { afterAll, beforeAll, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, resultsOf, runBatch, type BatchCreateParams } from './batch-kit.ts';
import { postJson } from './scripted-provider.ts';
import { sdks, type Client } from './sdk.ts';

// Batches for responses, and for endpoints of areas that are forwarded whole: moderations, images.

const sdk = sdks[0] as (typeof sdks)[number];
let platform: TestPlatform;
let client: Client;
beforeAll(async () => {
  platform = await startPlatform();
  client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
});
afterAll(() => platform.stop());

const lineOf = (url: string, customId: string, body: object) => ({ custom_id: customId, method: 'POST', url, body });
const forEndpoint = (endpoint: string) => ({ endpoint }) as Partial<BatchCreateParams>;

test.each([
  [
    '/v1/responses',
    { model: '@simulator/sim-small', input: 'Say hello.', instructions: null },
    { object: 'response', status: 'completed', output: [expect.objectContaining({ type: 'message' })] },
    true,
  ],
  [
    '/v1/moderations',
    { model: '@simulator/omni-moderation-latest', input: 'Hello.' },
    { results: [expect.objectContaining({ flagged: false })] },
    false,
  ],
  [
    '/v1/images/generations',
    { model: '@simulator/gpt-image-1', prompt: 'A tree.', n: 1 },
    { data: [expect.objectContaining({ b64_json: expect.any(String) })] },
    true,
  ],
])(
  'lines of %s are called like any other, and their answers are the provider’s own',
  async (url, body, answer, isCounted) => {
    const lines = [lineOf(url, 'a', body), lineOf(url, 'b', { ...body, metadata: null })];
    const batch = await runBatch(sdk, client, lines, forEndpoint(url));
    const { output, errors } = await resultsOf(client, batch);
    expect([batch.status, errors]).toEqual(['completed', []]);
    expect(output.map((line) => line.custom_id)).toEqual(['a', 'b']);
    for (const { response } of output) expect(response).toMatchObject({ status_code: 200, body: answer });
    const { usage } = batch as { usage?: { input_tokens: number; output_tokens: number } };
    expect([usage?.input_tokens, usage?.output_tokens].map((tokens = 0) => tokens > 0)).toEqual([isCounted, isCounted]);
  },
);

test('a line that the provider refuses keeps its words', async () => {
  const url = '/v1/responses';
  const batch = await runBatch(
    sdk,
    client,
    [
      lineOf(url, 'bad', {
        model: '@simulator/sim-small',
        input: 'Hi',
        parallel_tool_calls: true,
        max_output_tokens: 0,
      }),
    ],
    forEndpoint(url),
  );
  const { errors } = await resultsOf(client, batch);
  expect(errors[0]?.response).toMatchObject({ status_code: 400, body: { error: { message: expect.any(String) } } });
});

test('lines for responses run at a provider that lacks the API', async () => {
  const custom_host = `${new URL(platform.simulatorUrl).origin}/v1`;
  const key = { name: 'c', slug: 'claude-sim', provider: 'anthropic', key: 'sk-ant-0123456789', custom_host };
  await postJson(platform, '/virtual-keys', key);
  const url = '/v1/responses';
  const batch = await runBatch(
    sdk,
    client,
    [lineOf(url, 'a', { model: '@claude-sim/sim-small', input: 'Say hello.' })],
    forEndpoint(url),
  );
  const { output } = await resultsOf(client, batch);
  expect(output).toMatchObject([
    { custom_id: 'a', response: { status_code: 200, body: { object: 'response', status: 'completed', store: false } } },
  ]);
});

test('a batch with a config runs its targets for these lines too', async () => {
  const url = '/v1/moderations';
  const config = {
    strategy: { mode: 'fallback' },
    targets: [
      { provider: '@simulator', override_params: { model: 'no-such-model' } },
      { provider: '@simulator', override_params: { model: 'omni-moderation-latest' } },
    ],
  };
  const params = { ...forEndpoint(url), gateway_options: { config } } as Partial<BatchCreateParams>;
  const batch = await runBatch(sdk, client, [lineOf(url, 'a', { model: 'any', input: 'Hi' })], params);
  const { output, errors } = await resultsOf(client, batch);
  expect([...output, ...errors].map(({ response }) => response?.status_code)).toEqual([200]);
});

test('a batch whose provider lacks its endpoint fails with an error for each line', async () => {
  const key = { name: 'a', slug: 'claude', provider: 'anthropic', key: 'sk-ant-0123456789' };
  expect((await postJson(platform, '/virtual-keys', key)).status).toBe(200);
  const url = '/v1/moderations';
  const batch = await runBatch(
    sdk,
    client,
    [
      lineOf(url, 'a', { model: '@claude/claude-sonnet-4-5', input: 'Hi' }),
      lineOf(url, 'b', { model: '@simulator/sim-small', input: 'Hi' }),
      lineOf(url, 'c', { model: 'claude-sonnet-4-5', input: 'Hi' }),
    ],
    { ...forEndpoint(url), gateway_options: { virtual_key: 'claude' } } as Partial<BatchCreateParams>,
  );
  expect(batch.status).toBe('failed');
  const problem = {
    code: 'unsupported_operation',
    param: 'body.model',
    message: expect.stringContaining("'anthropic' does not support /v1/moderations"),
  };
  expect(batch.errors?.data).toEqual([
    { ...problem, line: 1 },
    { ...problem, line: 3 },
  ]);
});

test('a line for another endpoint than its batch’s is refused', async () => {
  const batch = await runBatch(sdk, client, [chatLine('a')], forEndpoint('/v1/responses'));
  expect(batch.errors?.data).toMatchObject([{ code: 'invalid_url', line: 1 }]);
});

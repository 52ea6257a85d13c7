import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, resultsOf, runBatch, toJsonl, uploadInput } from './batch-kit.ts';
import { postJson } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

const [sdk] = sdks as [Sdk];
let platform: TestPlatform;
let client: Client;
beforeAll(async () => {
  platform = await startPlatform();
  client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
});
afterAll(() => platform.stop());

const schema = {
  type: 'object',
  properties: { city: { type: 'string' }, people: { type: 'integer', minimum: 0 } },
  required: ['city', 'people'],
  additionalProperties: false,
};
const response_format = { type: 'json_schema', json_schema: { name: 'city', schema } };
const lineOf = (id: string, model: string, more: object = {}) =>
  chatLine(id, { model: `@simulator/${model}`, response_format, ...more });

const mismatch = (calls: string) =>
  `The model did not answer with JSON that matches the schema of the request${calls}: the content must have required property 'city'.`;

test('answers are checked against their schemas, retried, and counted in the record of the batch', async () => {
  const lines = [
    lineOf('good', 'sim-small'),
    lineOf('good-on-third', 'sim-fault-wrong-json-then-ok-2'),
    lineOf('never-good', 'sim-fault-wrong-json'),
    lineOf('cut-off', 'sim-small', { max_tokens: 2 }),
    lineOf('refused', 'sim-small+refuse'),
    lineOf('without-schema', 'sim-fault-wrong-json', { response_format: { type: 'json_object' } }),
  ];
  const validated = { gateway_options: { validate_outputs: true } } as never;
  const batch = await runBatch(sdk, client, lines, validated);
  expect(batch).toMatchObject({
    status: 'completed',
    request_counts: { total: 6, completed: 4, failed: 2 },
    validated_outputs: { checked: 4, passed_on_first_call: 1, passed_after_retry: 1, failed: 2 },
  });
  const { output, errors } = await resultsOf(client, batch);
  expect(output.map(({ custom_id: id }) => id)).toEqual(['good', 'good-on-third', 'refused', 'without-schema']);
  expect(errors.map(({ custom_id, error }) => [custom_id, error?.code, error?.message])).toEqual([
    ['never-good', 'output_schema_mismatch', mismatch(' in 3 calls')],
    ['cut-off', 'output_schema_mismatch', expect.stringContaining('not valid JSON. The answer was cut off.')],
  ]);

  // Every call is paid for: the usage of the batch is that of all calls in the log.
  const { data } = await eventually(
    async () => {
      const answer = await fetch(`${platform.baseUrl}/logs?batch_id=${batch.id}`, {
        headers: { authorization: `Bearer ${platform.adminKey}` },
      });
      return (await answer.json()) as { data: Record<string, unknown>[] };
    },
    (page) => page.data.length === 6,
  );
  const attempts = data.map((row) => [row['batch_line'], row['attempts'], row['error_code']]);
  expect(attempts).toEqual(
    expect.arrayContaining([
      [2, 3, null],
      [3, 3, 'output_schema_mismatch'],
    ]),
  );
  expect(
    data.reduce((sum, row) => sum + ((row['usage'] as { output_tokens: number } | null)?.output_tokens ?? 0), 0),
  ).toBe((batch as unknown as { usage: { output_tokens: number } }).usage.output_tokens);
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toBeNull();
});

test('answers of /v1/responses are checked as well, and a batch without the option is as before', async () => {
  const body = (model: string) => ({
    model: `@simulator/${model}`,
    input: 'Name a city.',
    text: { format: { type: 'json_schema', name: 'city', schema } },
  });
  const lines = ['sim-small', 'sim-fault-wrong-json'].map((model) => ({
    custom_id: model,
    method: 'POST',
    url: '/v1/responses',
    body: body(model),
  }));
  const params = { endpoint: '/v1/responses' } as const;
  const checked = { ...params, gateway_options: { validate_outputs: { retries: 0 } } } as never;
  const batch = await runBatch(sdk, client, lines, checked);
  expect(batch).toMatchObject({
    request_counts: { completed: 1, failed: 1 },
    validated_outputs: { checked: 2, passed_on_first_call: 1, passed_after_retry: 0, failed: 1 },
  });
  const { errors } = await resultsOf(client, batch);
  expect(errors[0]?.error?.message).toBe(mismatch(''));
  expect(await runBatch(sdk, client, lines, params as never)).toMatchObject({
    request_counts: { completed: 2, failed: 0 },
    validated_outputs: null,
  });
});

test('a batch can define a schema that replaces those of its lines', async () => {
  const lines = [lineOf('other', 'sim-small'), lineOf('none', 'sim-small', { response_format: { type: 'text' } })];
  const own = (given: object) => ({ gateway_options: { validate_outputs: { retries: 0, schema: given } } }) as never;
  const country = { type: 'object', properties: { ['\0country']: { type: 'string' } }, required: ['country'] };
  const batch = await runBatch(sdk, client, lines, own(country));
  expect(batch).toMatchObject({ validated_outputs: { checked: 2, failed: 2 } });
  const { errors } = await resultsOf(client, batch);
  expect(errors.map(({ error }) => error?.message)).toEqual([
    expect.stringContaining("must have required property 'country'"),
    expect.stringContaining('the content is not valid JSON'),
  ]);
  const failed = await runBatch(sdk, client, lines, own({ $ref: 'https://example.com/schema' }));
  expect(failed).toMatchObject({
    status: 'failed',
    errors: {
      data: [
        {
          code: 'invalid_request',
          param: 'gateway_options.validate_outputs.schema',
          message: expect.stringContaining("can't resolve reference https://example.com/schema"),
          line: null,
        },
      ],
    },
  });
});

test.each([
  ['/v1/embeddings', true, 'gateway_options.validate_outputs'],
  ['/v1/chat/completions', { retries: 6 }, 'gateway_options.validate_outputs.retries'],
  ['/v1/chat/completions', 'yes', 'gateway_options.validate_outputs'],
  ['/v1/chat/completions', { schema: { title: 'x'.repeat(65_536) } }, 'gateway_options.validate_outputs.schema'],
])('a batch of %s with validate_outputs %.30j is refused', async (endpoint, validate_outputs, param) => {
  const answer = await postJson(platform, '/batches', {
    input_file_id: await uploadInput(sdk, client, toJsonl([lineOf('a', 'sim-small')])),
    endpoint,
    completion_window: '24h',
    gateway_options: { validate_outputs },
  });
  expect([answer.status, await answer.json()]).toMatchObject([400, { error: { param } }]);
});

test('validate_outputs is refused for a retry of a batch whose requests have no schemas, as for a new batch', async () => {
  const line = {
    custom_id: 'a',
    method: 'POST',
    url: '/v1/embeddings',
    body: { model: '@simulator/sim-fault-400', input: 'a' },
  };
  const endpoint = '/v1/embeddings';
  const batch = await runBatch(sdk, client, [line], { endpoint } as never);
  expect(batch.request_counts).toMatchObject({ failed: 1 });
  const gateway_options = { validate_outputs: true };
  const params = { input_file_id: batch.input_file_id, endpoint, completion_window: '24h', gateway_options };
  const [created, retried] = await Promise.all([
    postJson(platform, '/batches', params),
    postJson(platform, `/batches/${batch.id}/retry`, { gateway_options }),
  ]);
  expect([created.status, retried.status]).toEqual([400, 400]);
  const { error } = (await created.json()) as { error: object };
  expect(await retried.json()).toMatchObject({ error });
});

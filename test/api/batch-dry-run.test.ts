import { afterAll, beforeAll, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, chatLines, toJsonl, uploadInput } from './batch-kit.ts';
import { postJson } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

const [sdk] = sdks as [Sdk];
let platform: TestPlatform;
let client: Client;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  client = new sdk.OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey });
});
afterAll(() => platform.stop());

type Json = Record<string, unknown>;
async function dryRun(lines: readonly unknown[] | string, more: Json = {}): Promise<{ status: number; body: Json }> {
  const text = typeof lines === 'string' ? lines : toJsonl(lines);
  const input_file_id = await uploadInput(sdk, client, text);
  const sent = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h', ...more };
  const response = await postJson(platform, '/batches/dry-run', sent);
  return { status: response.status, body: (await response.json()) as Json };
}

test('a schema for the whole batch that cannot be used is an error, as for a new batch', async () => {
  const validate = (schema: object) => ({ gateway_options: { validate_outputs: { schema } } });
  const problem = {
    code: 'invalid_request',
    param: 'gateway_options.validate_outputs.schema',
    message: expect.stringContaining("can't resolve reference https://example.com/schema"),
    line: null,
  };
  expect((await dryRun(chatLines(1), validate({ $ref: 'https://example.com/schema' }))).body).toMatchObject({
    valid: false,
    errors: { data: [problem] },
  });
  expect((await dryRun(chatLines(1), validate({ type: 'object' }))).body).toMatchObject({ valid: true });
});

test('lines are counted by model, with their tokens, where they would go, and what they may cost', async () => {
  const { status, body } = await dryRun([
    ...chatLines(10, { max_tokens: 100 }),
    chatLine('large', { model: '@simulator/sim-large' }),
  ]);
  expect({ status, body }).toMatchObject({
    status: 200,
    body: { object: 'batch.dry_run', valid: true, is_whole: true, request_counts: { total: 11 }, errors: null },
  });
  const [small, large] = body['models'] as Json[];
  expect(small).toMatchObject({
    model: '@simulator/sim-small',
    lines: 10,
    output_tokens_max: 1_000,
    unbounded_lines: 0,
    problem: null,
    target: ['Calls simulator for sim-small'],
  });
  // Ten messages like 'Say line-1.', each with four tokens for itself.
  expect(small?.['input_tokens']).toBe(70);
  expect(Number(small?.['cost_max_usd'])).toBeGreaterThan(Number(small?.['cost_of_input_usd']));
  expect(large).toMatchObject({ lines: 1, unbounded_lines: 1, cost_max_usd: null });
  expect(Number(large?.['cost_of_input_usd'])).toBeGreaterThan(0);
  expect(body).toMatchObject({ cost_max_usd: null, cost_of_input_usd: expect.stringMatching(/^0\.\d+$/) });
  const { data } = await client.batches.list();
  expect(data).toEqual([]);
});

test('what would fail a batch is listed by line, and the other lines are estimated all the same', async () => {
  const { body } = await dryRun([...chatLines(2, { max_tokens: 5 }), { custom_id: 'line-1' }, { custom_id: 'x' }]);
  expect(body).toMatchObject({ valid: false, request_counts: { total: 4 }, models: [{ lines: 2 }] });
  expect((body['errors'] as { data: Json[] }).data).toMatchObject([
    { line: 3, param: 'method' },
    { line: 3, code: 'duplicate_custom_id' },
    { line: 4, param: 'method' },
  ]);
  expect((await dryRun('')).body).toMatchObject({ valid: false, errors: { data: [{ code: 'empty_file' }] } });
  const missing = await postJson(platform, '/batches/dry-run', {
    input_file_id: 'file-none',
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  });
  expect([missing.status, await missing.json()]).toMatchObject([
    200,
    { valid: false, errors: { data: [{ param: 'file_id' }] } },
  ]);
});

test('a config leads to its first target, and a model that is not allowed is a problem of its lines', async () => {
  const config = {
    strategy: { mode: 'loadbalance' },
    targets: [
      { virtual_key: 'simulator', override_params: { model: 'sim-small' }, weight: 0.75 },
      { virtual_key: 'simulator', override_params: { model: 'sim-large' }, weight: 0.25 },
    ],
  };
  const lines = chatLines(4, { model: 'any', max_tokens: 10 });
  const { body } = await dryRun(lines, { gateway_options: { config } });
  expect(body).toMatchObject({ valid: true, models: [{ model: 'any', problem: null }] });
  expect((body['models'] as { target: string[] }[])[0]?.target).toEqual([
    'Selects one of these:',
    '  75 %:',
    expect.stringContaining('sim-small'),
    '  25 %:',
    expect.stringContaining('sim-large'),
  ]);
  const one = (await dryRun(lines, { gateway_options: { virtual_key: 'simulator', provider_model: 'sim-small' } }))
    .body;
  const other = (await dryRun(lines, { gateway_options: { virtual_key: 'simulator', provider_model: 'sim-large' } }))
    .body;
  const mixed = 0.75 * Number(one['cost_max_usd']) + 0.25 * Number(other['cost_max_usd']);
  expect(Number(body['cost_max_usd'])).toBeCloseTo(mixed, 9);

  const gone = { targets: [{ virtual_key: 'gone' }] };
  expect((await dryRun(lines, { gateway_options: { config: gone } })).status).toBe(400);
});

test('a budget that would not suffice is named', async () => {
  const policy = { type: 'tokens', credit_limit: 50, conditions: [{ key: 'model', value: 'sim-large' }], group_by: [] };
  const made = await postJson(platform, '/policies/usage-limits', { name: 'Few tokens', ...policy });
  expect(made.status).toBe(200);
  const { id } = (await made.json()) as { id: string };
  const large = chatLines(3, { model: '@simulator/sim-large', max_tokens: 100 });
  expect((await dryRun(large)).body).toMatchObject({
    valid: true,
    limits: [{ limit: id, measure: 'tokens', left: '50', suffices: false, needed: expect.stringMatching(/^\d+$/) }],
  });
  expect((await dryRun(chatLines(3, { max_tokens: 100 }))).body['limits']).toEqual([]);
});

test('the cost bound of a batch is compared with its longest answers', async () => {
  const lines = chatLines(3, { max_tokens: 100 });
  const limitOf = async (max_cost: unknown) => (await dryRun(lines, { gateway_options: { max_cost } })).body['limits'];
  const bound = { limit: 'max_cost', measure: 'cost', needed: expect.any(String) };
  expect(await limitOf('12.50')).toMatchObject([{ ...bound, left: '12.5', suffices: true }]);
  expect(await limitOf(0.000001)).toMatchObject([{ ...bound, left: '0.000001', suffices: false }]);
  expect(await dryRun(lines, { gateway_options: { max_cost: 0 } })).toMatchObject({
    status: 400,
    body: { error: { param: 'gateway_options.max_cost', message: expect.stringContaining('in US dollars above 0') } },
  });
});

test('what creating a batch would refuse is refused', async () => {
  expect((await dryRun(chatLines(1), { endpoint: '/v1/nothing' })).status).toBe(400);
  const { body } = await dryRun(chatLines(1), { gateway_options: { virtual_key: 'nobody' } });
  expect(body).toMatchObject({ error: { code: 'virtual_key_not_found' } });
});

import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import type { BatchTarget } from '#libs/database/schema.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { ended, resultsOf, toJsonl, uploadInput } from './batch-kit.ts';
import { postJson, startScriptedPlatform, storeVirtualKey } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';

const secret = 'sk-CANARY-of-a-batch-config';
const sdk = sdks[0] as Sdk;

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
let client: Client;
beforeAll(async () => {
  // Batches are created before a worker runs, so that what happens in between is certain.
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  for (const slug of ['first', 'second']) await storeVirtualKey(platform, slug, platform.simulatorUrl);
});
afterAll(() => scripted.stop());

const send = (method: string, route: string, body: unknown) =>
  fetch(`${platform.baseUrl}${route}`, {
    method,
    headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });

/** A batch of lines that only differ in their text. */
async function create(texts: string[], options: object, headers: Record<string, string> = {}, model = 'sim-small') {
  const lines = texts.map((content) => ({
    custom_id: content,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model, messages: [{ role: 'user', content }] },
  }));
  const response = await postJson(
    platform,
    '/batches',
    {
      input_file_id: await uploadInput(sdk, client, toJsonl(lines)),
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      gateway_options: options,
    },
    headers,
  );
  return {
    status: response.status,
    body: (await response.json()) as { id: string; error?: { param: string; code: string } },
  };
}

const targetOf = async (id: string): Promise<BatchTarget> =>
  (await platform.database.db.selectFrom('batch').select('target').where('id', '=', id).executeTakeFirstOrThrow())
    .target;

const broken = { virtual_key: 'first', override_params: { model: 'sim-fault-503' } };
const fallback = { strategy: { mode: 'fallback' }, targets: [broken, { virtual_key: 'second' }] };

test('lines go by the config of their batch: pinned at creation, with fallback, retries and secrets of its own', async () => {
  upstream.script((reply) => reply.json(200, { object: 'chat.completion', model: 'm', choices: [{ index: 0 }] }));
  expect((await postJson(platform, '/configs', { name: 'pinned', config: fallback })).status).toBe(200);
  const stored = await create(['a', 'b'], { config: 'pinned', metadata: { team: 'red' } });
  expect(await targetOf(stored.body.id)).toEqual({
    type: 'config',
    config_id: expect.stringMatching(/^config_/),
    config_version: 1,
    caller: { type: 'none' },
  });
  // The batch stays with what it was created with.
  expect((await send('PUT', '/configs/pinned', { config: broken })).status).toBe(200);
  expect((await send('DELETE', '/configs/pinned', undefined)).status).toBe(200);

  const inline = await create(['c'], {
    config: {
      targets: [
        {
          provider: 'openai-compatible',
          custom_host: upstream.url.href,
          api_key: secret,
          override_params: { seed: 7 },
        },
      ],
    },
  });
  const kept = await targetOf(inline.body.id);
  expect(kept).toMatchObject({ type: 'inline_config', secret_id: expect.stringMatching(/^secret_/) });
  expect(JSON.stringify(kept)).not.toContain('CANARY');

  // What the targets leave out is the caller's, by headers here: its key, host and settings.
  const callers = await create(
    ['d'],
    { config: { override_params: { user: 'of-config' } } },
    {
      'x-gateway-api-key': platform.adminKey,
      authorization: `Bearer ${secret}`,
      'x-gateway-provider': 'openai-compatible',
      'x-gateway-custom-host': upstream.url.href,
      'x-gateway-aws-region': 'eu-west-1',
      'x-gateway-aws-secret-access-key': `${secret}-aws`,
    },
  );
  expect(await targetOf(callers.body.id)).toMatchObject({
    type: 'inline_config',
    secret_id: null,
    caller: { type: 'provider', settings: { aws_region: 'eu-west-1' }, secret_id: expect.any(String) },
  });

  const retried = await create(['e'], { config: { virtual_key: 'second' } }, {}, 'sim-fault-500-then-ok-2');

  const worker = await platform.startWorker();
  const results = async ({ body }: { body: { id: string } }) => resultsOf(client, await ended(client, body));
  const outputs = [await results(stored), await results(inline), await results(callers), await results(retried)];
  expect(outputs.map(({ output, errors }) => [output.length, errors.length])).toEqual([
    [2, 0],
    [1, 0],
    [1, 0],
    [1, 0],
  ]);

  const [ofInline, ofCaller] = ['c', 'd'].map((text) =>
    upstream.requests.find(({ body }) => body.toString().includes(`"content":"${text}"`)),
  );
  expect(ofInline?.headers['authorization']).toBe(`Bearer ${secret}`);
  expect(JSON.parse(ofInline?.body.toString() ?? '')).toMatchObject({ seed: 7 });
  expect(ofCaller?.headers['authorization']).toBe(`Bearer ${secret}`);
  expect(JSON.parse(ofCaller?.body.toString() ?? '')).toMatchObject({ user: 'of-config' });

  const records = await eventually(
    async () => {
      const response = await fetch(`${platform.baseUrl}/logs?kind=batch`, {
        headers: { authorization: `Bearer ${platform.adminKey}` },
      });
      return ((await response.json()) as { data: Record<string, unknown>[] }).data;
    },
    (list) => list.length >= 5,
  );
  const ofBatch = (id: string) => records.filter((record) => record['batch_id'] === id);
  expect(ofBatch(stored.body.id)).toMatchObject([
    { virtual_key: 'second', attempts: 2, last_used_option: 'config.targets[1]' },
    { virtual_key: 'second', attempts: 2, last_used_option: 'config.targets[1]' },
  ]);
  expect(ofBatch(retried.body.id)).toMatchObject([{ attempts: 3, last_used_option: 'config' }]);

  // Keys are wiped with the end of their batch, and were never in the log.
  const { rows: secrets } = await sql`select id from secret where owner_id like 'batch_%'`.execute(
    platform.database.db,
  );
  expect(secrets).toEqual([]);
  const { rows } = await sql<{ text: string }>`
    select data::text as text from event union all select row_to_json(batch)::text from batch`.execute(
    platform.database.db,
  );
  expect(rows.filter(({ text }) => text.includes('CANARY'))).toEqual([]);
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toBeNull();
  await worker.stop();
});

test.each<[string, unknown, string, string]>([
  ['an unknown config', 'nothing', 'gateway_options.config', 'config_not_found'],
  ['a misspelt member', { retry: { tries: 1 } }, 'gateway_options.config.retry.attempts', 'missing_required_parameter'],
  [
    'a target whose virtual key does not exist',
    { strategy: { mode: 'fallback' }, targets: [{ virtual_key: 'first' }, { virtual_key: 'gone' }] },
    'gateway_options.config.targets[1].virtual_key',
    'virtual_key_not_found',
  ],
])('a batch with %s is refused at once', async (_what, config, param, code) => {
  const { status, body } = await create(['x'], { config });
  expect({ status, error: body.error }).toMatchObject({ status: 400, error: { param, code } });
});

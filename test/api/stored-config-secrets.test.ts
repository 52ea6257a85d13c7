import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import { startApp } from '../integration/start/app-process.ts';
import { chatLine, ended, resultsOf, toJsonl, uploadInput } from './batch-kit.ts';
import { startScriptedPlatform, type ScriptedPlatform } from './scripted-provider.ts';
import { sdks, type Sdk } from './sdk.ts';

// What is secret in a stored config goes where it belongs, and into nothing that anybody reads.

const sdk = sdks[0] as Sdk;

let scripted: ScriptedPlatform;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  scripted.upstream.script((reply, { path }) =>
    reply.json(
      200,
      path.startsWith('/hook') ? { verdict: true, data: 'fine' } : { object: 'chat.completion', choices: [] },
    ),
  );
});
afterAll(() => scripted.stop());

type Answer = { status: number; body: Record<string, unknown> };

async function call(
  method: string,
  route: string,
  body?: unknown,
  baseUrl = scripted.platform.baseUrl,
): Promise<Answer> {
  const response = await fetch(`${baseUrl}${route}`, {
    method,
    headers: { 'x-gateway-api-key': scripted.platform.adminKey, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Answer['body'] };
}

const configOf = (mark: string) => ({
  virtual_key: 'scripted',
  input_guardrails: [
    {
      webhook: {
        webhookURL: `${scripted.upstream.url.origin}/hook?sig=CANARY-query-${mark}`,
        headers: { Authorization: `Bearer CANARY-header-${mark}`, 'x-team': `CANARY-team-${mark}` },
        failOnError: true,
      },
    },
  ],
  override_params: { user: 'shown', tools: [{ type: 'mcp', headers: { 'x-key': `CANARY-tool-${mark}` } }] },
});

/** What the webhook and the provider were sent since the last look. */
function seen(): string[] {
  return scripted.upstream.requests
    .splice(0)
    .map(({ path, headers, body }) => [path, headers['authorization'], headers['x-team'], body].join(' '));
}

const asked = (mark: string): unknown[] => [
  expect.stringMatching(new RegExp(`CANARY-query-${mark} Bearer CANARY-header-${mark} CANARY-team-${mark}`)),
  expect.stringContaining(`CANARY-tool-${mark}`),
];

const body = { model: 'm', messages: [{ role: 'user', content: 'Hello' }] };
const ask = async (slug: string, baseUrl: string): Promise<number> => {
  const response = await fetch(`${baseUrl}/chat/completions`, {
    method: 'POST',
    headers: {
      'x-gateway-api-key': scripted.platform.adminKey,
      'content-type': 'application/json',
      'x-gateway-config': slug,
    },
    body: JSON.stringify(body),
  });
  return response.status;
};

test('a stored config works with its secrets, and they are in no answer, event, row, metric or log line', async () => {
  const { platform } = scripted;
  const api = startApp('api', { ...platform.environment, SLUICE_LOG_LEVEL: 'trace', SLUICE_STOP_DELAY: '0ms' });
  const [{ url = '' } = {}] = await eventually(
    async () => api.said('listening'),
    (lines) => lines.length > 0,
  );
  const baseUrl = `${url}/v1`;
  const made = await call('POST', '/configs', { name: 'Secret', slug: 'secret', config: configOf('1') }, baseUrl);
  expect(made.status).toBe(200);
  seen();
  expect(await ask('secret', baseUrl)).toBe(200);
  expect(seen()).toEqual(asked('1'));

  // The same config once more is no new version; another secret is one.
  expect((await call('PUT', '/configs/secret', { config: configOf('1') }, baseUrl)).body['version']).toBe(1);
  const changed = await call('PUT', '/configs/secret', { config: configOf('2') }, baseUrl);
  expect(changed.body['version']).toBe(2);
  expect(await ask('secret', baseUrl)).toBe(200);
  expect(seen()).toEqual(asked('2'));
  expect((await call('PUT', '/configs/secret', { name: 'Renamed' }, baseUrl)).body['version']).toBe(2);
  expect(await ask('secret', baseUrl)).toBe(200);
  expect(seen()).toEqual(asked('2'));
  // What is shown cannot be stored by mistake.
  expect((await call('PUT', '/configs/secret', { config: changed.body['config'] }, baseUrl)).status).toBe(400);

  const answers = [
    made,
    changed,
    await call('GET', '/configs/secret', undefined, baseUrl),
    await call('GET', '/configs', undefined, baseUrl),
    await call('GET', '/configs/secret/versions', undefined, baseUrl),
    await call('GET', '/configs/secret/versions/1', undefined, baseUrl),
    await call('GET', '/logs', undefined, baseUrl),
  ];
  for (const answer of answers) {
    expect(answer.status).toBe(200);
    expect(JSON.stringify(answer.body)).not.toContain('CANARY');
  }
  expect(answers[2]?.body['config']).toMatchObject({
    input_guardrails: [{ webhook: { headers: { Authorization: '[redacted]', 'x-team': '[redacted]' } } }],
    override_params: { user: 'shown', tools: [{ headers: { 'x-key': '[redacted]' } }] },
  });
  expect(await (await fetch(`${url}/metrics`)).text()).not.toContain('CANARY');
  await call('DELETE', '/configs/secret', undefined, baseUrl);
  api.signal('SIGTERM');
  expect(await api.ended).toBe(0);
  expect(api.output()).toContain('request ended');
  expect(api.output()).not.toContain('CANARY');
  await expectNowhere();
  const { rows } = await sql`select id from secret where owner_id like 'config_%'`.execute(platform.database.db);
  expect(rows).toEqual([]);
});

async function expectNowhere(): Promise<void> {
  const { db, pool } = scripted.platform.database;
  const tables = ['event', 'resource', 'resource_version', 'command_result', 'batch', 'request_log', 'secret'];
  for (const table of tables) {
    const { rows } = await sql<{
      text: string;
    }>`select row_to_json(t)::text as text from ${sql.table(table)} t`.execute(db);
    expect([table, rows.filter(({ text }) => text.includes('CANARY'))]).toEqual([table, []]);
  }
  expect((await checkInlineModels(pool, inlineModels)).difference).toBeNull();
}

test('a batch goes on with the secrets of its version when the config is changed and deleted, and forgets them', async () => {
  const { platform } = scripted;
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  await call('POST', '/configs', { name: 'Batch', slug: 'of-batch', config: configOf('3') });
  const input_file_id = await uploadInput(sdk, client, toJsonl([chatLine('a', body)]));
  const params = { input_file_id, endpoint: '/v1/chat/completions' as const, completion_window: '24h' as const };
  const batch = await client.batches.create(params, { headers: { 'x-gateway-config': 'of-batch' } });
  await call('PUT', '/configs/of-batch', { config: configOf('4') });
  await call('DELETE', '/configs/of-batch');
  seen();
  const worker = await platform.startWorker();
  const { output } = await resultsOf(client, await ended(client, batch));
  expect(output).toMatchObject([{ custom_id: 'a', response: { status_code: 200 } }]);
  expect(seen()).toEqual(asked('3'));
  await worker.stop();
  const { rows } = await sql`select id from secret where owner_id like 'batch_%' or owner_id like 'config_%'`.execute(
    platform.database.db,
  );
  expect(rows).toEqual([]);
  await expectNowhere();
});

test('a secret that is stored in clear text in a config is used, and never shown', async () => {
  const { platform } = scripted;
  const made = await call('POST', '/configs', { name: 'Old', slug: 'old', config: { virtual_key: 'scripted' } });
  const config = JSON.stringify(configOf('5'));
  const { db } = platform.database;
  for (const [table, id] of [
    ['resource', 'id'],
    ['resource_version', 'resource_id'],
  ] as const) {
    await sql`
      update ${sql.table(table)} set data = data || ${`{"config":${config}}`}::jsonb, version = version + 1
      where ${sql.ref(id)} = ${made.body['id']}`.execute(db);
  }
  await sql`update access_version set version = version + 1`.execute(db);
  await platform.api.platform.access.snapshot.refresh();
  seen();
  expect(await ask('old', platform.baseUrl)).toBe(200);
  expect(seen()).toEqual(asked('5'));
  for (const route of ['/configs/old', '/configs/old/versions', '/configs/old/versions/1', '/configs']) {
    expect(JSON.stringify((await call('GET', route)).body)).not.toContain('CANARY');
  }
});

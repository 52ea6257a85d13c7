import { Big } from 'big.js';
import { execFile } from 'node:child_process';
import { rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { builtInPrices } from '#libs/prices/built-in-prices.ts';
import { createPriceTable, type PriceTableDocument } from '#libs/prices/price-table.ts';
import { eventually } from '#test/eventually.ts';
import { chunk, completion } from '#test/forwarding-rig.ts';
import type { TestPlatform } from '#test/platform.ts';
import type { Upstream } from '#test/upstream.ts';
import { chatLine, runBatch } from './batch-kit.ts';
import { postJson, startScriptedPlatform } from './scripted-provider.ts';
import { sdks } from './sdk.ts';
import { createWorkspace } from './second-workspace.ts';

// What calls cost, through the real server, with the provider `openai` at an address of the test's.

let scripted: Awaited<ReturnType<typeof startScriptedPlatform>>;
let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ({ platform, upstream } = scripted);
  await call('POST', '/virtual-keys', {
    slug: 'priced',
    name: 'priced',
    provider: 'openai',
    key: 'sk-test',
    custom_host: new URL('/v1', upstream.url).href,
  });
});
afterAll(() => scripted.stop());

type Answer = { status: number; body: Record<string, unknown> & { id: string } };
/** `cost` and `saved_cost` in US cents, as price tables have them. */
type LogRecord = {
  cost: number | null;
  saved_cost: number | null;
  is_estimate: boolean;
  price_version: string | null;
  attempts: number;
  usage: Record<string, unknown> | null;
};

async function call(method: string, route: string, body?: object, key = platform.adminKey): Promise<Answer> {
  const response = await fetch(`${platform.baseUrl}${route}`, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Answer['body'] };
}

let traces = 0;
/** Makes a call, and returns its row in the log. */
async function logged(
  route: string,
  body: object,
  headers: Record<string, string> = {},
  read: (response: Response) => Promise<unknown> = (response) => response.arrayBuffer(),
): Promise<LogRecord> {
  const traceId = `trace-prices-${(traces += 1)}`;
  const response = await postJson(platform, route, body, { ...headers, 'x-gateway-trace-id': traceId });
  await read(response);
  const { data } = await eventually(
    async () => (await call('GET', `/logs?trace_id=${traceId}`)).body as unknown as { data: Shown[] },
    (list) => list.data.length > 0,
  );
  const [record] = data as [Shown];
  return { ...record, cost: toCents(record.cost_usd), saved_cost: toCents(record.saved_cost_usd) };
}

type Shown = Omit<LogRecord, 'cost' | 'saved_cost'> & { cost_usd: string | null; saved_cost_usd: string | null };
const toCents = (usd: string | null): number | null => (usd === null ? null : new Big(usd).times(100).toNumber());

const messages = [{ role: 'user', content: 'Hello' }];
const chat = (model = 'gpt-4o', more: object = {}) => ({ model: `@priced/${model}`, messages, ...more });
const answers = (model: string, usage: object, more: object = {}): void =>
  upstream.script((reply) => reply.json(200, { ...completion, model, usage, ...more }));
const usage = { prompt_tokens: 1_000, completion_tokens: 100, total_tokens: 1_100 };

const tableOf = (input: string): PriceTableDocument => ({
  date: '2026-02-01',
  providers: { openai: { source: 'a test', as_of: '2026-02-01', models: { 'gpt-4o': { input, output: '0' } } } },
});

test('a call is priced by the model that answered; cached tokens and the class of service count', async () => {
  answers('gpt-4o-mini-2024-07-18', usage);
  expect(await logged('/chat/completions', chat('my-alias'))).toMatchObject({
    cost: 0.021,
    price_version: builtInPrices.version,
  });
  answers('gpt-5-2025-08-07', { ...usage, prompt_tokens_details: { cached_tokens: 800 } }, { service_tier: 'flex' });
  const flex = await logged('/chat/completions', chat('gpt-5'));
  // Half of 200 × 1.25 + 800 × 0.125 + 100 × 10 dollars for a million tokens.
  expect(flex).toMatchObject({ cost: 0.0675, usage: { details: { service_tier: 'flex' } } });
});

test('a class of service with a discount is priced by it in streams, other areas and batch lines alike', async () => {
  // Half of 1,000 × 1.25 + 100 × 10 dollars for a million tokens.
  const half = 0.1125;
  upstream.script(async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    const last = { id: 'c1', model: 'gpt-5', choices: [], usage, service_tier: 'flex' };
    for (const data of [chunk({ content: 'x' }), chunk({}, 'stop'), JSON.stringify(last), '[DONE]'])
      await reply.write(`data: ${data}\n\n`);
    reply.end();
  });
  const streamed = chat('gpt-5', { stream: true, service_tier: 'flex' });
  expect(await logged('/chat/completions', streamed)).toMatchObject({ cost: half });

  const responsesUsage = { input_tokens: 1_000, output_tokens: 100 };
  upstream.script((reply) =>
    reply.json(200, { object: 'response', model: 'gpt-5', output: [], usage: responsesUsage, service_tier: 'flex' }),
  );
  expect(await logged('/responses', { model: '@priced/gpt-5', input: 'Hi' })).toMatchObject({ cost: half });

  await platform.startWorker();
  const [sdk] = sdks;
  if (!sdk) throw new Error('there is no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  // The provider may answer at the usual class instead. What it says counts, and not what the line asked for.
  upstream.script((reply, { body }) =>
    reply.json(200, {
      ...completion,
      model: 'gpt-5',
      usage,
      service_tier: /full/.test(body.toString()) ? 'default' : 'flex',
    }),
  );
  const line = (id: string) => chatLine(id, { model: '@priced/gpt-5', service_tier: 'flex' });
  const batch = (await runBatch(sdk, client, [line('cheap'), line('full')])) as unknown as Record<string, unknown>;
  expect(batch).toMatchObject({ status: 'completed', unpriced_lines: 0 });
  expect(toCents(batch['cost_usd'] as string)).toBe(3 * half);
});

test('a model without a price costs null, never 0, and is counted by its provider', async () => {
  answers('gpt-99', usage);
  expect(await logged('/chat/completions', chat('gpt-99'))).toMatchObject({ cost: null, price_version: null });
  const metrics = await (await fetch(new URL('/metrics', platform.baseUrl))).text();
  expect(metrics).toMatch(/sluice_unpriced_calls_total\{provider="openai"\} 1\n/);
  const ofModel = 'provider="openai",model="gpt-99",kind="live"';
  expect(metrics).toContain(`sluice_calls_total{${ofModel},outcome="succeeded"} 1\n`);
  expect(metrics).toMatch(new RegExp(`sluice_call_tokens_total\\{${ofModel},type="input"\\} [1-9]`));
});

test('an answer from the cache costs nothing, and what it saved is kept apart', async () => {
  answers('gpt-4o', usage);
  const config = { 'x-gateway-config': JSON.stringify({ cache: { mode: 'simple', max_age: 60 } }) };
  expect(await logged('/chat/completions', chat(), config)).toMatchObject({ cost: 0.35, saved_cost: null });
  expect(await logged('/chat/completions', chat(), config)).toMatchObject({ cost: 0, saved_cost: 0.35, attempts: 0 });
});

test('a fallback after an answer that a guardrail refused costs both answers; a failed attempt costs nothing', async () => {
  upstream.script((reply, request) => {
    const { model } = JSON.parse(request.body.toString()) as { model: string };
    if (model === 'gpt-4.1') return reply.json(500, { error: { message: 'down' } });
    return reply.json(200, { ...completion, model, usage });
  });
  const target = (model: string, more: object = {}) => ({
    virtual_key: 'priced',
    override_params: { model },
    ...more,
  });
  const denies = { output_guardrails: [{ 'default.wordCount': { minWords: 1_000 }, deny: true }] };
  const config = {
    strategy: { mode: 'fallback' },
    targets: [target('gpt-4o', denies), target('gpt-4.1'), target('gpt-4o-mini')],
  };
  expect(await logged('/chat/completions', chat(), { 'x-gateway-config': JSON.stringify(config) })).toMatchObject({
    cost: 0.371,
    attempts: 3,
    mode: 'fallback',
    fallbacks: 2,
    retries: 0,
    is_estimate: false,
  });
});

test('a stream that its client left costs what was streamed until then, and says that this is an estimate', async () => {
  upstream.script(async (reply) => {
    reply.head(200, { 'content-type': 'text/event-stream' });
    await reply.write(`data: ${chunk({ content: 'x'.repeat(400) })}\n\n`);
  });
  const row = await logged('/chat/completions', chat('gpt-4o', { stream: true }), {}, async (response) => {
    const reader = response.body?.getReader();
    await reader?.read();
    await reader?.cancel();
  });
  expect(row).toMatchObject({ is_estimate: true, usage: { output_tokens: 100 } });
  const sentTokens = Number(row.usage?.['input_tokens']);
  expect(sentTokens).toBeGreaterThan(10);
  expect(row.cost).toBe(Number(((sentTokens * 2.5 + 1_000) / 10_000).toFixed(6)));
});

test('what passes through is priced as well: images by the piece, speech by the character, transcriptions by the second', async () => {
  upstream.script((reply) => reply.json(200, { created: 1, data: [{ url: 'u' }, { url: 'u' }] }));
  const image = { model: '@priced/dall-e-3', prompt: 'a cat', n: 2, quality: 'hd', size: '1024x1024' };
  expect(await logged('/images/generations', image)).toMatchObject({ cost: 16 });
  upstream.script((reply) => reply.respond(200, 'sound', { 'content-type': 'audio/mpeg' }));
  expect(
    await logged('/audio/speech', { model: '@priced/tts-1', input: 'x'.repeat(1_000), voice: 'alloy' }),
  ).toMatchObject({
    cost: 1.5,
    usage: { details: { characters: 1_000 } },
  });
  upstream.script((reply) =>
    reply.json(200, {
      object: 'response',
      model: 'gpt-4.1',
      output: [],
      usage: { input_tokens: 1_000, output_tokens: 10 },
    }),
  );
  expect(await logged('/responses', { model: '@priced/gpt-4.1', input: 'Hi' })).toMatchObject({ cost: 0.208 });
});

test('the organisation replaces the price table: calls from then on have the new price, and earlier ones keep theirs', async () => {
  answers('gpt-4o', usage);
  const before = await logged('/chat/completions', chat());
  const made = await call('POST', '/admin/price-tables', { table: tableOf('7') });
  const { version } = createPriceTable(tableOf('7'));
  expect(made).toMatchObject({ status: 200, body: { object: 'price-table', version, date: '2026-02-01' } });
  expect(await logged('/chat/completions', chat())).toMatchObject({ cost: 0.7, price_version: version });
  expect(before).toMatchObject({ cost: 0.35, price_version: builtInPrices.version });
  expect((await call('DELETE', `/admin/price-tables/${made.body.id}`)).status).toBe(200);
  expect(await logged('/chat/completions', chat())).toMatchObject({ cost: 0.35 });

  const others = await createWorkspace(platform);
  expect(await call('POST', '/admin/price-tables', { table: tableOf('7') }, others)).toMatchObject({ status: 403 });
  const wrong = tableOf('7');
  Object.assign(wrong.providers, { acme: { source: 'a test', as_of: '2026-02-01', models: {}, includes: ['nobody'] } });
  expect(await call('POST', '/admin/price-tables', { table: wrong })).toMatchObject({
    status: 400,
    body: { error: { param: 'table', message: expect.stringContaining('nobody') } },
  });
});

test('prices of a workspace: a factor, and own prices for models that no list has', async () => {
  const { body: list } = await call('GET', '/admin/workspaces');
  const { slug } = (list as unknown as { data: { slug: string }[] }).data.at(-1) ?? { slug: '' };
  const adjustments = {
    multiplier: { default: 1.2 },
    models: { 'gpt-99': { request_token: 0.001, response_token: '0.0000001' } },
  };
  expect(await call('PUT', `/admin/workspaces/${slug}`, { pricing_adjustments: adjustments })).toMatchObject({
    status: 200,
    body: { pricing_adjustments: { multiplier: { default: 1.2 }, models: { 'gpt-99': { request_token: '0.001' } } } },
  });
  answers('gpt-4o', usage);
  const row = await logged('/chat/completions', chat());
  expect(row).toMatchObject({ cost: 0.42, price_version: expect.stringMatching(/\+[0-9a-f]{12}$/) });
  answers('gpt-99', usage);
  expect(await logged('/chat/completions', chat('gpt-99'))).toMatchObject({ cost: 1.200012 });
  const refused = await call('PUT', `/admin/workspaces/${slug}`, {
    pricing_adjustments: { multiplier: { default: -1 } },
  });
  expect(refused.status).toBe(400);
  await call('PUT', `/admin/workspaces/${slug}`, { pricing_adjustments: null });
  expect(await logged('/chat/completions', chat('gpt-99'))).toMatchObject({ cost: null });
});

test('the command shows prices, and replaces them from a file while Sluice runs', async () => {
  const file = path.join(tmpdir(), `prices-${process.pid}.json`);
  const sluice = async (...args: string[]): Promise<string> => {
    const { stdout } = await promisify(execFile)(process.execPath, ['apps/cli/main.ts', 'prices', ...args], {
      env: { ...process.env, DATABASE_URL: platform.database.connectionString },
    });
    return stdout;
  };
  expect(await sluice('show', 'anthropic.claude-3-5-haiku-20241022-v1:0')).toMatch(
    /^bedrock +claude-3-5-haiku: .*input 0\.80/m,
  );
  const table = JSON.parse(await sluice('list', '--json')) as PriceTableDocument;
  expect(createPriceTable(table).version).toBe(builtInPrices.version);
  const models = table.providers['openai']?.models ?? {};
  models['gpt-4o'] = { ...models['gpt-4o'], input: '5.00' };
  models['gpt-99'] = { input: '1' };
  delete models['gpt-4'];
  await writeFile(file, JSON.stringify({ ...table, date: '2026-03-01' }));
  try {
    const dry = await sluice('refresh', '--file', file, '--dry-run');
    expect(dry).toMatch(/^\+ openai gpt-99: input 1$/m);
    expect(dry).toMatch(/^- openai gpt-4$/m);
    expect(dry).toMatch(/^~ openai gpt-4o: input 2\.50.* -> input 5\.00/m);
    expect(dry).toMatch(/^3 prices differ$/m);
    expect(await sluice('list')).toContain(builtInPrices.version);
    expect(await sluice('refresh', '--file', file)).toMatch(/^stored: /m);
    expect(await sluice('refresh', '--file', file)).toMatch(/^not stored: /m);
    await writeFile(file, JSON.stringify({ ...table, providers: { openai: { models: { a: { input: 2.5 } } } } }));
    await expect(sluice('refresh', '--file', file)).rejects.toThrow(/not a valid price table[^]*input/);
  } finally {
    await rm(file, { force: true });
  }
  answers('gpt-4o', usage);
  await eventually(
    () => logged('/chat/completions', chat()),
    ({ cost }) => cost === 0.6,
  );
  const { rows } = await platform.database.pool.query('select metadata from event where type = $1', [
    'price_table.created',
  ]);
  expect(rows).toContainEqual({
    metadata: { actor: expect.objectContaining({ id: 'cli', user: expect.any(String), host: expect.any(String) }) },
  });
});

test('a rebuild from the events gives the same tables', async () => {
  expect(await checkInlineModels(platform.database.pool, inlineModels, () => {})).toMatchObject({ difference: null });
});

import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Portkey } from 'portkey-ai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { callSpanId, w3cTraceId } from '#libs/kernel/trace-ids.ts';
import { eventually } from '#test/eventually.ts';
import { completion } from '#test/forwarding-rig.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { chatLines, runBatch } from './batch-kit.ts';
import { postJson, storeVirtualKey } from './scripted-provider.ts';
import { sdks, type Sdk } from './sdk.ts';

const [sdk] = sdks as [Sdk];
type Attribute = { key: string; value: Record<string, unknown> };
type Span = {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  attributes: Attribute[];
  status: { code?: number };
};

/** A collector for OTLP over HTTP, as JSON. */
async function startCollector(): Promise<{
  url: string;
  spans: Span[];
  metrics: string[];
  bodies: string[];
  stop: () => void;
}> {
  const [spans, metrics, bodies]: [Span[], string[], string[]] = [[], [], []];
  const server: Server = createServer(async (request, response) => {
    const text = Buffer.concat(await request.toArray()).toString();
    bodies.push(text);
    type Sent = {
      resourceSpans?: { scopeSpans: { spans: Span[] }[] }[];
      resourceMetrics?: { scopeMetrics: { metrics: { name: string }[] }[] }[];
    };
    const sent = JSON.parse(text) as Sent;
    for (const { scopeSpans } of sent.resourceSpans ?? []) spans.push(...scopeSpans.flatMap((each) => each.spans));
    for (const { scopeMetrics } of sent.resourceMetrics ?? []) {
      metrics.push(...scopeMetrics.flatMap((each) => each.metrics.map(({ name }) => name)));
    }
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const stop = (): void => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, spans, metrics, bodies, stop };
}

let upstream: Upstream;
beforeAll(async () => {
  upstream = await startUpstream();
  upstream.script((reply) => reply.json(200, completion));
});
afterAll(() => upstream.stop());

async function start(environment: Record<string, string>, worker = false): Promise<TestPlatform> {
  const platform = await startPlatform({ worker, environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', ...environment } });
  await storeVirtualKey(platform, 'scripted', upstream.url.href);
  upstream.requests.length = 0;
  return platform;
}
const chat = (platform: TestPlatform, headers: Record<string, string> = {}, content = 'A secret question') =>
  postJson(platform, '/chat/completions', { model: '@scripted/m', messages: [{ role: 'user', content }] }, headers);
const traceId = '0af7651916cd43dd8448eb211c80319c';
const traceparent = `00-${traceId}-b7ad6b7169203331-01`;
const valueOf = ({ attributes }: Span, name: string): unknown =>
  Object.values(attributes.find(({ key }) => key === name)?.value ?? {})[0];

test("a caller's traceparent is continued to the provider, and nothing is sent without one", async () => {
  const platform = await start({});
  await chat(platform, { traceparent });
  await chat(platform, { traceparent: `${traceparent.slice(0, -2)}00` });
  await chat(platform);
  await chat(platform, { traceparent: 'rubbish' });
  const sent = upstream.requests.map(({ headers }) => headers['traceparent']);
  expect(sent).toEqual([
    expect.stringMatching(new RegExp(`^00-${traceId}-(?!b7ad6b7169203331)[0-9a-f]{16}-01$`)),
    expect.stringMatching(new RegExp(`^00-${traceId}-[0-9a-f]{16}-00$`)),
    undefined,
    undefined,
  ]);
  await platform.stop();
});

test('calls, their attempts and lines of batches are spans, without prompts or keys, and the provider is told of them', async () => {
  const collector = await startCollector();
  const platform = await start({ OTEL_EXPORTER_OTLP_ENDPOINT: collector.url }, true);
  const client = new sdk.OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey });
  const answer = await chat(platform, { traceparent });
  const requestId = answer.headers.get('x-request-id') ?? '';
  const own = await chat(platform, { 'x-gateway-trace-id': 'my own trace' });
  await chat(platform, { traceparent: `${traceparent.slice(0, -2)}00` });
  upstream.script((reply) => reply.json(503, { error: { message: 'no' } }));
  await chat(platform, { 'x-gateway-config': JSON.stringify({ virtual_key: 'scripted', retry: { attempts: 1 } }) });
  upstream.script((reply) => reply.json(200, completion));
  const batch = await runBatch(sdk, client, chatLines(3, { model: '@scripted/m' }));
  const { adminKey } = platform;
  await platform.stop();
  collector.stop();

  const call = collector.spans.find(({ spanId }) => spanId === callSpanId(requestId));
  expect(call).toMatchObject({ traceId, parentSpanId: 'b7ad6b7169203331', name: 'chat m', kind: 2 });
  expect(call && valueOf(call, 'gen_ai.usage.input_tokens')).toBe(completion.usage.prompt_tokens);
  expect(upstream.requests[0]?.headers['traceparent']).toBe(`00-${traceId}-${callSpanId(requestId)}-01`);
  const attempt = collector.spans.find(({ parentSpanId }) => parentSpanId === callSpanId(requestId));
  expect(attempt).toMatchObject({ traceId, kind: 3 });
  expect(attempt && valueOf(attempt, 'server.address')).toBe('127.0.0.1');

  const ownId = callSpanId(own.headers.get('x-request-id') ?? '');
  expect(collector.spans.find(({ spanId }) => spanId === ownId)).toMatchObject({ traceId: w3cTraceId('my own trace') });
  // The third call was not sampled by its caller: one call of that trace, with one attempt.
  expect(collector.spans.filter((span) => span.traceId === traceId)).toHaveLength(2);
  const failed = collector.spans.filter(({ status }) => status.code === 2);
  expect(failed.map((span) => valueOf(span, 'http.response.status_code'))).toEqual([503, 503, 503]);
  const ofBatch = collector.spans.filter((span) => valueOf(span, 'sluice.batch_id') === batch.id);
  const lines = ofBatch.filter((span) => valueOf(span, 'sluice.batch_line') !== undefined);
  expect(lines.map((span) => Number(valueOf(span, 'sluice.batch_line'))).toSorted((a, b) => a - b)).toEqual([1, 2, 3]);
  expect(new Set(collector.metrics)).toEqual(
    new Set(['gen_ai.client.operation.duration', 'gen_ai.client.token.usage']),
  );
  const all = collector.bodies.join('');
  for (const secret of ['A secret question', adminKey, 'CANARY']) expect(all).not.toContain(secret);
});

test('jobs of the worker are spans of the trace that created their work, above the lines that they call', async () => {
  const collector = await startCollector();
  const platform = await start({ OTEL_EXPORTER_OTLP_ENDPOINT: collector.url }, true);
  const client = new sdk.OpenAI({
    baseURL: platform.baseUrl,
    apiKey: platform.adminKey,
    defaultHeaders: { traceparent, 'x-gateway-span-id': 'b7ad6b7169203331' },
  });
  const batch = await runBatch(sdk, client, chatLines(3, { model: '@scripted/m' }));
  const exports = new Portkey({ apiKey: platform.adminKey, baseURL: platform.baseUrl }).logs.exports;
  const exportId = (await exports.create({ requestedData: ['id'], filters: {} })).id ?? '';
  await exports.start({ exportId });
  await eventually(
    () => exports.retrieve({ exportId }),
    ({ status }) => status === 'success',
  );
  await platform.stop();
  collector.stop();

  const jobs = collector.spans.filter((span) => valueOf(span, 'sluice.queue') !== undefined);
  const ofBatch = jobs.filter((span) => valueOf(span, 'sluice.batch_id') === batch.id);
  const shown = ofBatch.map((span) => [span.name, valueOf(span, 'sluice.job.outcome')]);
  expect(shown).toEqual(
    expect.arrayContaining([
      ['batch-validate', 'in_progress'],
      ['batch-lines', 'completed'],
      ['batch-finalise', 'completed'],
    ]),
  );
  for (const span of ofBatch) {
    expect(span).toMatchObject({ traceId, parentSpanId: 'b7ad6b7169203331', kind: 5 });
    expect(valueOf(span, 'sluice.workspace_id')).toMatch(/^ws_/);
  }
  const chunk = ofBatch.find(({ name }) => name === 'batch-lines');
  const lines = collector.spans.filter((span) => valueOf(span, 'sluice.batch_line') !== undefined);
  expect(lines).toHaveLength(3);
  expect(lines.map((span) => [span.traceId, span.parentSpanId])).toEqual(lines.map(() => [traceId, chunk?.spanId]));
  const written = jobs.filter((span) => valueOf(span, 'sluice.export_id') === exportId);
  expect(written.map(({ name }) => name)).toEqual(['log-export']);
  expect(Number(valueOf(written[0] as (typeof written)[0], 'sluice.job.wait_ms'))).toBeGreaterThanOrEqual(0);
});

test('a share of the traces is that share of the batches, with all of their jobs and lines', async () => {
  const collector = await startCollector();
  const platform = await start(
    {
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
      OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
      OTEL_TRACES_SAMPLER_ARG: '0.5',
    },
    true,
  );
  // The first is among the half that the sampler keeps.
  const [kept, left] = ['00000000000000000000000000000001', 'ffffffff000000000000000000000001'];
  for (const id of [kept, left]) {
    const client = new sdk.OpenAI({
      baseURL: platform.baseUrl,
      apiKey: platform.adminKey,
      defaultHeaders: { 'x-gateway-trace-id': id },
    });
    await runBatch(sdk, client, chatLines(2, { model: '@scripted/m' }));
  }
  await platform.stop();
  collector.stop();
  const ofBatches = collector.spans.filter((span) => valueOf(span, 'sluice.batch_id') !== undefined);
  expect(new Set(ofBatches.map((span) => span.traceId))).toEqual(new Set([kept]));
  expect(new Set(ofBatches.map(({ name }) => name))).toEqual(
    new Set(['batch-validate', 'batch-lines', 'batch-finalise', 'chat m']),
  );
});

test('a collector that never answers delays no call, and hardly the stop', async () => {
  const hanging = createServer(() => {});
  hanging.listen(0, '127.0.0.1');
  await once(hanging, 'listening');
  const url = `http://127.0.0.1:${(hanging.address() as AddressInfo).port}`;
  const platform = await start({ OTEL_EXPORTER_OTLP_ENDPOINT: url });
  const answers = await Promise.all(Array.from({ length: 50 }, () => chat(platform)));
  expect(answers.every(({ status }) => status === 200)).toBe(true);
  await platform.stop();
  hanging.closeAllConnections();
  hanging.close();
});

import { Registry } from 'prom-client';
import { expect, test } from 'vitest';
import { logEntry } from '#test/log-entry.ts';
import { createCallMetrics } from './call-metrics.ts';
import type { RequestLogEntry } from '../row/log-entry.ts';

/** Observes the entries, and returns the samples of `/metrics` by name and labels. */
async function samplesOf(entries: readonly Partial<RequestLogEntry>[]): Promise<Map<string, number>> {
  const registry = new Registry();
  const metrics = createCallMetrics();
  metrics.registerIn(registry);
  for (const entry of entries) metrics.observe(logEntry(entry));
  const lines = (await registry.metrics()).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return new Map(
    lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]),
  );
}

const mini = 'provider="openai",model="gpt-5-mini"';

test('a call is counted with its time, tokens and cost in dollars, live calls and batch lines apart', async () => {
  const usage = { input_tokens: 800, cached_tokens: 300, output_tokens: 140, reasoning_tokens: 90 };
  const samples = await samplesOf([
    { ...usage, cost: '250', duration_ms: 1_500, first_event_ms: 250 },
    { ...usage, cost: '0.5', kind: 'batch' },
    { status: 500, error_code: 'upstream_error', cost: null },
  ]);
  expect(samples.get(`sluice_calls_total{${mini},kind="live",outcome="succeeded"}`)).toBe(1);
  expect(samples.get(`sluice_calls_total{${mini},kind="live",outcome="failed"}`)).toBe(1);
  expect(samples.get(`sluice_calls_total{${mini},kind="batch",outcome="succeeded"}`)).toBe(1);
  expect(samples.get('sluice_call_errors_total{provider="openai",kind="live",code="upstream_error"}')).toBe(1);
  expect(samples.get(`sluice_call_first_event_seconds_sum{${mini},kind="live"}`)).toBe(0.25);
  expect(samples.get(`sluice_call_duration_seconds_sum{${mini},kind="live"}`)).toBe(2.31225);
  const tokens = ['input', 'cached', 'output', 'reasoning'].map((type) =>
    samples.get(`sluice_call_tokens_total{${mini},kind="batch",type="${type}"}`),
  );
  expect(tokens).toEqual([800, 300, 140, 90]);
  expect(samples.get(`sluice_call_cost_dollars_total{${mini},kind="live"}`)).toBe(2.5);
  expect(samples.get(`sluice_call_cost_dollars_total{${mini},kind="batch"}`)).toBe(0.005);
});

test('results of the cache and verdicts of guardrails are counted', async () => {
  const samples = await samplesOf([
    { cache_status: 'HIT' },
    { cache_status: 'MISS' },
    { status: 246 },
    { status: 446, error_code: 'guardrail_denied' },
  ]);
  expect(samples.get('sluice_call_cache_total{provider="openai",result="hit"}')).toBe(1);
  expect(samples.get('sluice_call_cache_total{provider="openai",result="miss"}')).toBe(1);
  expect(samples.get('sluice_call_guardrails_total{provider="openai",verdict="failed"}')).toBe(1);
  expect(samples.get('sluice_call_guardrails_total{provider="openai",verdict="denied"}')).toBe(1);
  expect(samples.get(`sluice_calls_total{${mini},kind="live",outcome="refused"}`)).toBe(1);
});

test('calls that were made elsewhere are not counted', async () => {
  const samples = await samplesOf([{ kind: 'imported' }]);
  expect([...samples.keys()]).toEqual([]);
});

test('a model that no call succeeded with has no name among the labels', async () => {
  const samples = await samplesOf([{ model: 'made-up', status: 404 }, { model: 'm'.repeat(200) }, { model: null }]);
  const names = [...samples.keys()].filter((name) => name.startsWith('sluice_calls_total'));
  expect(new Set(names.map((name) => /model="([^"]*)"/.exec(name)?.[1]))).toEqual(new Set(['other', 'none']));
});

test('a workspace has at most 50 models among the labels, and all workspaces together 200', async () => {
  const entries = Array.from({ length: 6 }, (_, workspace) =>
    Array.from({ length: 60 }, (__, model) => ({ workspace_id: `ws_${workspace}`, model: `m-${workspace}-${model}` })),
  );
  const samples = await samplesOf(entries.flat());
  const names = new Set([...samples.keys()].map((name) => /model="(m-\d)-\d+"/.exec(name)?.[0]));
  names.delete(undefined);
  expect(names.size).toBe(200);
  expect([...names].filter((name) => name?.includes('m-0-'))).toHaveLength(50);
  expect(samples.get('sluice_calls_total{provider="openai",model="other",kind="live",outcome="succeeded"}')).toBe(160);
});

test('error codes that providers invent are counted as other', async () => {
  const invented = Array.from({ length: 150 }, (_, index) => ({ status: 400, error_code: `code_${index}` }));
  const samples = await samplesOf([{ status: 400, error_code: 'what "is" this\n' }, ...invented]);
  const codes = [...samples.keys()].filter((name) => name.startsWith('sluice_call_errors_total'));
  expect(codes).toHaveLength(101);
  expect(samples.get('sluice_call_errors_total{provider="openai",kind="live",code="other"}')).toBe(51);
});

test('numbers that no provider can mean are left out, and never throw', async () => {
  const samples = await samplesOf([
    { input_tokens: -5, output_tokens: Number.NaN, cached_tokens: Infinity, reasoning_tokens: 1e300, cost: 'x' },
  ]);
  const sums = [...samples].filter(([name]) => /tokens_total|cost_dollars/.test(name)).map(([, value]) => value);
  expect(sums).toEqual([0, 0, 0, 0, 0]);
  expect(samples.get(`sluice_calls_total{${mini},kind="live",outcome="succeeded"}`)).toBe(1);
});

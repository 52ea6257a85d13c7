import { sql } from 'kysely';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import { chatLine, chatLines, createBatch } from './batch-kit.ts';
import { sdks, type Sdk } from './sdk.ts';

// Work after which every metric of the board and the alerts has series, also those that only count what goes wrong.

type Sent = { body?: object; headers?: Record<string, string> };

/** Calls that succeed, fail, are denied, cached, unpriced and not authenticated, in which a circuit opens. */
export async function makeCalls({ baseUrl, adminKey }: TestPlatform): Promise<void> {
  const post = async (path: string, { body = {}, headers = {} }: Sent): Promise<number> => {
    const sent = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json', ...headers };
    const response = await fetch(baseUrl + path, { method: 'POST', headers: sent, body: JSON.stringify(body) });
    await response.text();
    return response.status;
  };
  const chat = (model: string, { body = {}, headers = {} }: Sent = {}): Promise<number> =>
    post('/chat/completions', { body: { model, messages: [{ role: 'user', content: 'Hello' }], ...body }, headers });
  const withConfig = (config: object): Sent => ({
    headers: { 'x-gateway-config': JSON.stringify({ virtual_key: 'simulator', ...config }) },
  });
  const breaker = withConfig({
    cb_config: { failure_threshold: 1, cooldown_interval: 600_000, failure_status_codes: [503], minimum_requests: 1 },
  });
  const denying = { 'default.contains': { words: ['Hello'], operator: 'none' }, deny: true };
  const statuses: [number, Promise<number>][] = [
    [200, chat('@simulator/sim-small')],
    [200, chat('@simulator/sim-small', { body: { stream: true } })],
    [200, chat('@simulator/sim-fault-no-usage')],
    [503, chat('@simulator/sim-fault-503')],
    [503, chat('sim-fault-503', breaker)],
    [200, chat('sim-small', withConfig({ cache: { mode: 'simple' } }))],
    [446, chat('sim-small', withConfig({ input_guardrails: [denying] }))],
    [401, chat('@simulator/sim-small', { headers: { authorization: 'Bearer sk-nobody-has-this-key' } })],
  ];
  for (const [index, [expected, status]] of statuses.entries()) {
    if ((await status) !== expected) throw new Error(`call ${index} was answered with ${await status}`);
  }
}

/** A batch whose lines succeed, fail and take `lineMs`. */
export async function createMixedBatch({ baseUrl, adminKey }: TestPlatform, lineMs: number): Promise<void> {
  const [sdk] = sdks as [Sdk];
  const client = new sdk.OpenAI({ apiKey: adminKey, baseURL: baseUrl });
  const lines = chatLines(4, { model: `@simulator/sim-echo+${lineMs}ms` });
  await createBatch(sdk, client, [...lines, chatLine('refused', { model: '@simulator/sim-fault-400' })]);
}

/** What a worker leaves behind that was killed a minute ago. */
export async function addKilledProcess({ database: { db } }: TestPlatform): Promise<void> {
  await sql`
    insert into request_log_process (process_id, app, version, host, started_at, heard_at, last_sequence, written_sequence, lost_rows)
    select gen_random_uuid(), 'worker', '0', 'h', now() - interval '1 hour', now() - interval '1 minute', 0, 0, 0`.execute(
    db,
  );
}

/** The metrics that processes serve, as text. */
export const scrape = (addresses: readonly string[]): Promise<string[]> =>
  Promise.all(addresses.map(async (address) => (await fetch(`${address}/metrics`)).text()));

/** For each series of a scrape that has labels: its metric and them. */
export function seriesIn(text: string): { metric: string; labels: Map<string, string> }[] {
  return [...text.matchAll(/^([a-z_][a-z0-9_]*)(?:\{(.*)\})? \S+$/gm)].map(([, metric = '', labels = '']) => ({
    metric,
    labels: new Map(
      [...labels.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map(([, name = '', value = '']) => [name, value]),
    ),
  }));
}

/** Waits until the metrics of these names have series. */
export async function haveSeries(addresses: readonly string[], metrics: readonly string[]): Promise<void> {
  await eventually(
    async () => new Set((await scrape(addresses)).flatMap(seriesIn).map(({ metric }) => metric)),
    (known) => metrics.every((metric) => known.has(metric)),
  );
}

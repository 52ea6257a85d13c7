import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { parse } from 'yaml';
import { eventually } from '#test/eventually.ts';
import { unusedPort } from '#test/integration/start/app-process.ts';
import { startPlatform } from '#test/platform.ts';
import { addKilledProcess, createMixedBatch, makeCalls } from './metrics-traffic.ts';
import { readPromql } from './promql.ts';

// Where Prometheus is installed: it scrapes a running Sluice, and answers each expression of the board and the alerts.

type Rule = { alert: string; expr: string; for: string };
type Fired = { labels: { alertname: string }; annotations: { summary: string } };

const ops = path.resolve(import.meta.dirname, '../../ops');
const hasPrometheus = spawnSync('prometheus', ['--version']).status === 0;

/** Prometheus with the alerts of Sluice, which fire at once, over these processes; a second between two scrapes. */
async function startPrometheus(alerts: readonly Rule[], targets: Record<string, string>) {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-prometheus-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const rules = alerts.map((rule) => ({ ...rule, for: '0s' }));
  const config = {
    global: { scrape_interval: '1s', evaluation_interval: '1s' },
    rule_files: [path.join(folder, 'rules.json')],
    scrape_configs: Object.entries(targets).map(([job_name, target]) => ({
      job_name,
      static_configs: [{ targets: [target] }],
    })),
  };
  // JSON is YAML.
  await writeFile(path.join(folder, 'rules.json'), JSON.stringify({ groups: [{ name: 'sluice', rules }] }));
  await writeFile(path.join(folder, 'prometheus.json'), JSON.stringify(config));
  const address = `127.0.0.1:${await unusedPort()}`;
  const child = spawn(
    'prometheus',
    [
      `--config.file=${path.join(folder, 'prometheus.json')}`,
      `--storage.tsdb.path=${path.join(folder, 'data')}`,
      `--web.listen-address=${address}`,
    ],
    { stdio: 'ignore' },
  );
  const ended = once(child, 'exit');
  onTestFinished(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  const get = async <Data>(route: string): Promise<Data> => {
    const response = await fetch(`http://${address}/api/v1/${route}`);
    const { data, error } = (await response.json()) as { data: Data; error?: string };
    if (!response.ok) throw new Error(`${route}: ${error}`);
    return data;
  };
  await eventually(
    () =>
      fetch(`http://${address}/-/ready`).then(
        ({ ok }) => ok,
        () => false,
      ),
    (isReady) => isReady,
  );
  return {
    hasData: async (expr: string) =>
      (await get<{ result: unknown[] }>(`query?query=${encodeURIComponent(expr)}`)).result.length > 0,
    fired: async () => (await get<{ alerts: Fired[] }>('alerts')).alerts,
  };
}

test.skipIf(!hasPrometheus)(
  'each panel and each alert has data in a running Prometheus, and alerts fire',
  { timeout: 120_000 },
  async () => {
    const read = (file: string): Promise<string> => readFile(path.join(ops, file), 'utf8');
    const { groups } = parse(await read('prometheus/alerts.yml')) as { groups: [{ rules: Rule[] }] };
    const [{ rules }] = groups;
    const board = JSON.parse(await read('grafana/sluice.json')) as { panels: { targets: { expr: string }[] }[] };
    const panels = board.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr));
    const unanswered = new Set([
      ...panels.map((expr) => expr.replaceAll('$__rate_interval', '10s')),
      ...rules.map(({ expr }) => readPromql(expr).measured),
    ]);

    const platform = await startPlatform({ worker: false });
    onTestFinished(() => platform.stop());
    const workerPort = await unusedPort();
    const prometheus = await startPrometheus(rules, {
      'sluice-api': new URL(platform.baseUrl).host,
      'sluice-worker': `127.0.0.1:${workerPort}`,
    });
    /** Waits until the expressions that match have once given data. */
    const answered = (which: RegExp) =>
      eventually(
        async () => {
          for (const expr of unanswered) if (await prometheus.hasData(expr)) unanswered.delete(expr);
          return [...unanswered].filter((expr) => which.test(expr));
        },
        (left) => left.length === 0,
      );
    const fires = (...names: string[]) =>
      eventually(prometheus.fired, (alerts) =>
        names.every((name) => alerts.some(({ labels }) => labels.alertname === name)),
      );

    await addKilledProcess(platform);
    await createMixedBatch(platform, 100);
    await answered(/sluice_batches|sluice_queue_oldest/);
    await fires('SluiceProcessDown', 'SluiceProcessKilled');
    const worker = await platform.startWorker({ SLUICE_WORKER_PORT: String(workerPort) });
    // One call without a price is enough. The others are rates, which begin with the second scrape.
    await makeCalls(platform);
    await fires('SluiceCallsUnpriced', 'SluiceCircuitOpen');
    await makeCalls(platform);
    await answered(/./);
    const alerts = await fires('SluiceRequestsFail', 'SluiceProviderFails');
    await worker.stop();
    for (const { annotations } of alerts) expect(annotations.summary).toMatch(/^[^{}<>]{20,}\.$/);
  },
);

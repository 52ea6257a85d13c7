import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { unusedPort } from '#test/integration/start/app-process.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

// The board, the alerts and the docs name metrics, and each of them must be in `/metrics` of a running api or worker.

type Metric = { type: string; help: string; processes: string[] };
type Board = { panels: { title: string; targets: { expr: string }[] }[] };

const root = path.resolve(import.meta.dirname, '../..');
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');
const board = JSON.parse(read('ops/grafana/sluice.json')) as Board;
const alerts = read('ops/prometheus/alerts.yml');
const expressions = board.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr));

let platform: TestPlatform;
const metrics = new Map<string, Metric>();
const texts: string[] = [];
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  const port = await unusedPort();
  await platform.startWorker({ SLUICE_WORKER_PORT: String(port) });
  const { origin } = new URL(platform.baseUrl);
  for (const [app, address] of Object.entries({ api: origin, worker: `http://127.0.0.1:${port}` })) {
    const text = await (await fetch(`${address}/metrics`)).text();
    texts.push(text);
    const helps = new Map([...text.matchAll(/^# HELP (\S+) (.*)$/gm)].map(([, name, help]) => [name, help]));
    for (const [, name = '', type = ''] of text.matchAll(/^# TYPE (\S+) (\S+)$/gm)) {
      const known = metrics.get(name) ?? { type, help: helps.get(name) ?? '', processes: [] };
      metrics.set(name, { ...known, processes: [...known.processes, app] });
    }
  }
});
afterAll(() => platform.stop());

/** The metrics of Sluice and Node that a text names; of a histogram without the ending of its series. */
function metricsIn(text: string): string[] {
  const names = text.match(/\b(?:sluice|nodejs|process)_[a-z0-9_]*[a-z0-9]\b/g) ?? [];
  return names.map((name) => {
    const base = name.replace(/_(?:bucket|sum|count)$/, '');
    return metrics.get(base)?.type === 'histogram' ? base : name;
  });
}
const unknownIn = (text: string): string[] => metricsIn(text).filter((name) => !metrics.has(name));

test('the board and the alerts only name metrics that exist', () => {
  expect(metricsIn(expressions.join('\n')).length).toBeGreaterThan(20);
  expect(metricsIn(alerts).length).toBeGreaterThan(15);
  expect(unknownIn(expressions.join('\n'))).toEqual([]);
  expect(unknownIn(alerts)).toEqual([]);
});

test('the docs only name metrics that exist', () => {
  // A role of the database, a column, and a name from before 0.1.0 that the changelog mentions.
  const others = new Set(['sluice_tenant', 'sluice_job_id', 'sluice_response_cache']);
  const files = readdirSync(path.join(root, 'docs')).filter((name) => name.endsWith('.md'));
  const pages = ['README.md', 'CHANGELOG.md', ...files.map((name) => `docs/${name}`)];
  const unknown = pages.flatMap((page) =>
    unknownIn(read(page))
      .filter((name) => name.startsWith('sluice_') && !others.has(name))
      .map((name) => `${page}: ${name}`),
  );
  expect(unknown).toEqual([]);
});

test('docs/metrics.md lists every metric of Sluice with its type, processes and meaning', () => {
  const own = [...metrics].filter(([name]) => name.startsWith('sluice_')).toSorted(([a], [b]) => (a < b ? -1 : 1));
  expect(own.filter(([, { help }]) => !/^[A-Z0-9].{15,}\.$/.test(help))).toEqual([]);
  const cells = (row: string): string[] => row.split('|').map((cell) => cell.trim());
  const listed = read('docs/metrics.md')
    .split('\n')
    .filter((row) => row.startsWith('| `'))
    .map((row) => cells(row).slice(1, -1));
  expect(listed).toEqual(
    own.map(([name, { type, help, processes }]) => [`\`${name}\``, type, processes.join(', '), help]),
  );
});

test('what is counted ends in _total, and nothing else does', () => {
  const own = [...metrics].filter(([name]) => name.startsWith('sluice_'));
  expect(own.filter(([name, { type }]) => name.endsWith('_total') !== (type === 'counter'))).toEqual([]);
});

test('each alert has an entry in the runbooks, and each entry an alert', () => {
  const named = [...alerts.matchAll(/- alert: (\S+)/g)].map(([, name]) => name);
  const entries = [...read('docs/runbooks.md').matchAll(/^## (\S+)$/gm)].map(([, name]) => name);
  expect(entries).toEqual(named);
  const links = [...alerts.matchAll(/runbook: docs\/runbooks\.md#(\S+)/g)].map(([, link]) => link);
  expect(links).toEqual(named.map((name) => name?.toLowerCase()));
});

const hasPromtool = spawnSync('promtool', ['--version']).status === 0;

test.skipIf(!hasPromtool)('Prometheus reads the alerts, the expressions of the board, and the metrics', () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'sluice-rules-'));
  try {
    const rules = expressions.map((expr, index) => ({
      record: `panel:${index}`,
      expr: expr.replaceAll('$__rate_interval', '5m'),
    }));
    const file = path.join(folder, 'board.json');
    writeFileSync(file, JSON.stringify({ groups: [{ name: 'board', rules }] })); // JSON is YAML
    const said = execFileSync('promtool', ['check', 'rules', path.join(root, 'ops/prometheus/alerts.yml'), file]);
    expect(said.toString()).toContain(`SUCCESS: ${rules.length} rules found`);
    // Exit status 3 is advice on names, which those of Node do not follow; 1 means that the text cannot be read.
    for (const input of texts) expect([0, 3]).toContain(spawnSync('promtool', ['check', 'metrics'], { input }).status);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

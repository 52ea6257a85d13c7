import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parse } from 'yaml';
import { unusedPort } from '#test/integration/start/app-process.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { addKilledProcess, createMixedBatch, haveSeries, makeCalls, scrape, seriesIn } from './metrics-traffic.ts';
import { readPromql } from './promql.ts';

// The board, the alerts and the docs name metrics and labels, and each of them must be in `/metrics` of a running api or
// worker.

type Metric = { type: string; help: string; processes: string[] };
type Board = { panels: { title: string; targets: { expr: string; legendFormat: string }[] }[] };
type Rules = { groups: { rules: { alert: string; expr: string; annotations: { summary: string } }[] }[] };

const root = path.resolve(import.meta.dirname, '../..');
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');
const board = JSON.parse(read('ops/grafana/sluice.json')) as Board;
const alerts = read('ops/prometheus/alerts.yml');
const rules = (parse(alerts) as Rules).groups.flatMap((group) => group.rules);
const expressions = board.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr));

let platform: TestPlatform;
const metrics = new Map<string, Metric>();
const texts: string[] = [];
/** The labels of each metric, with the values that were seen. */
const labelsOf = new Map<string, Map<string, Set<string>>>();
/** Of every series, by Prometheus itself. */
const added: ReadonlySet<string> = new Set(['job', 'instance']);
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  const api = new URL(platform.baseUrl).origin;
  const port = await unusedPort();
  const worker = `http://127.0.0.1:${port}`;
  await addKilledProcess(platform);
  // While no worker is there, a batch and its job wait.
  await createMixedBatch(platform, 0);
  await haveSeries([api], ['sluice_batches', 'sluice_queue_oldest_job_seconds', 'sluice_processes']);
  const waiting = await scrape([api]);
  await platform.startWorker({ SLUICE_WORKER_PORT: String(port) });
  await makeCalls(platform);
  await haveSeries([api], ['sluice_call_errors_total', 'sluice_unpriced_calls_total', 'sluice_provider_circuits']);
  await haveSeries([worker], ['sluice_batch_lines_total', 'sluice_subscriber_lag_seconds']);
  const working = await scrape([api, worker]);
  texts.push(...waiting, ...working);
  for (const [index, app] of ['api', 'worker'].entries()) {
    const text = working[index] ?? '';
    const helps = new Map([...text.matchAll(/^# HELP (\S+) (.*)$/gm)].map(([, name, help]) => [name, help]));
    for (const [, name = '', type = ''] of text.matchAll(/^# TYPE (\S+) (\S+)$/gm)) {
      const known = metrics.get(name) ?? { type, help: helps.get(name) ?? '', processes: [] };
      metrics.set(name, { ...known, processes: [...known.processes, app] });
    }
  }
  for (const { metric, labels } of texts.flatMap(seriesIn)) {
    const known = labelsOf.get(metric) ?? new Map<string, Set<string>>([...added].map((label) => [label, new Set()]));
    labelsOf.set(metric, known);
    for (const [label, value] of labels) known.set(label, (known.get(label) ?? new Set()).add(value));
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

test('the board and the alerts select series by labels that these have, with values that occur', () => {
  const isSeen = ({ operator, value }: { operator: string; value: string }, seen: ReadonlySet<string>): boolean =>
    operator === '=' ? seen.has(value) : [...seen].some((each) => new RegExp(`^(?:${value})$`).test(each));
  const wrong = [...expressions, ...rules.map(({ expr }) => expr)].flatMap((expr) => {
    const { selectors, groupings } = readPromql(expr.replaceAll('$__rate_interval', '5m'));
    const selected = selectors.flatMap(({ metric, matchers }) =>
      matchers
        .filter(({ label }) => !added.has(label))
        .filter((matcher) => !isSeen(matcher, labelsOf.get(metric)?.get(matcher.label) ?? new Set()))
        .map(({ label, value }) => `${metric} has no ${label} ${value}`),
    );
    const grouped = groupings.flatMap(({ labels, of }) =>
      of.flatMap(({ metric }) =>
        labels.filter((label) => !labelsOf.get(metric)?.has(label)).map((label) => `${metric} has no ${label}`),
      ),
    );
    return [...selected, ...grouped];
  });
  expect(wrong).toEqual([]);
});

test('legends and summaries only name labels that are left in the result', () => {
  const texts = [
    ...board.panels.flatMap(({ targets }) => targets.map(({ expr, legendFormat }) => [expr, legendFormat] as const)),
    ...rules.map(({ expr, annotations }) => [expr, annotations.summary] as const),
  ];
  const named = texts.flatMap(([expr, text]) => {
    const { resultLabels, selectors } = readPromql(expr.replaceAll('$__rate_interval', '5m'));
    const left = resultLabels ?? [...(labelsOf.get(selectors[0]?.metric ?? '')?.keys() ?? [])];
    const names = [...text.matchAll(/\{\{ ?(?:\$labels\.)?(\w+) ?\}\}/g)].map(([, name = '']) => name);
    return names.map((name) => (left.includes(name) ? 'left' : `${text}: ${name}`));
  });
  expect(new Set(named)).toEqual(new Set(['left']));
});

test('the docs only name metrics that exist', () => {
  // A role of the database, a column, and a cookie.
  const others = new Set(['sluice_tenant', 'sluice_job_id', 'sluice_session']);
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

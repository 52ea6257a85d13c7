import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { describeUnknownVariables } from '#apps/known-variables.ts';
import packageFile from '../package.json' with { type: 'json' };
import { productFiles } from './source-files.ts';

// The chart of ops/helm as far as it can be checked without Helm; with it, what it renders; and with kubernetes-validate, that
// against the schemas of Kubernetes.

const chart = path.resolve(import.meta.dirname, '../ops/helm/sluice');
const read = (file: string): string => readFileSync(path.join(chart, file), 'utf8');
const templates = readdirSync(path.join(chart, 'templates')).map((file) => read(`templates/${file}`));

const has = (command: string, args: readonly string[]): boolean => {
  try {
    execFileSync(command, args, { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
};
const hasHelm = has('helm', ['version']);
const everything = [
  'api.autoscaling.enabled',
  'worker.autoscaling.enabled',
  'api.ingress.enabled',
  'podMonitor.enabled',
  'prometheusRule.enabled',
].flatMap((value) => ['--set', `${value}=true`]);
const render = (args: readonly string[]): string =>
  execFileSync('helm', ['template', 'sluice', chart, '--kube-version', '1.30', ...args], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  });

test('the chart has the version of the release, and starts programs that exist with variables that are known', () => {
  expect(read('Chart.yaml')).toContain(`\nappVersion: ${packageFile.version}\n`);
  const text = templates.join('\n');
  const programs = [...text.matchAll(/apps\/\w+\/main\.ts/g)].map(([program]) => program);
  expect(new Set(programs)).toEqual(new Set(['apps/api/main.ts', 'apps/worker/main.ts', 'apps/cli/main.ts']));
  expect(programs.filter((program) => !productFiles.includes(program))).toEqual([]);
  const variables = [...`${text}\n${read('values.yaml')}`.matchAll(/SLUICE_[A-Z_]+/g)].map(([name]) => name);
  expect(describeUnknownVariables(variables)).toEqual([]);
  // The job by which the alerts find the processes.
  expect(text).toContain('\n  jobLabel: app.kubernetes.io/name\n');
  expect(read('templates/_helpers.tpl')).toContain('\napp.kubernetes.io/name: sluice\n');
  expect(read('alerts.yml')).toBe(readFileSync(path.join(chart, '../../prometheus/alerts.yml'), 'utf8'));
});

test.skipIf(!hasHelm)('Helm renders it, with the least and with everything turned on', () => {
  const kinds = (text: string): string[] =>
    [...new Set([...text.matchAll(/^kind: (\w+)$/gm)].map(([, kind = '']) => kind))].toSorted();
  const least = ['Deployment', 'Job', 'NetworkPolicy', 'PersistentVolumeClaim', 'PodDisruptionBudget', 'Service'];
  expect(kinds(render([]))).toEqual([...least, 'ServiceAccount']);
  const all = render(everything);
  expect(kinds(all)).toEqual(
    [...least, 'HorizontalPodAutoscaler', 'Ingress', 'PodMonitor', 'PrometheusRule', 'ServiceAccount'].toSorted(),
  );
  // An alert names labels in the braces of Prometheus, which Helm must leave alone.
  expect(all).toContain('{{ $labels.provider }}');
  expect(render(['--set', 'blobs.existingClaim=mine'])).toContain('claimName: mine');
  expect(render(['--set', 'api.processes=auto'])).toMatch(/name: SLUICE_API_PROCESSES\s+value: "auto"\n/);
});

test.skipIf(!hasHelm)(
  'for maintenance no API and no worker runs and nothing migrates, and there is a pod for commands',
  () => {
    type Rendered = { kind: string; metadata: { name: string }; spec?: { replicas?: number } };
    const documents = parseAllDocuments(render([...everything, '--set', 'maintenance.enabled=true']));
    const objects = documents.map((document) => document.toJS() as Rendered);
    const deployments = objects.filter(({ kind }) => kind === 'Deployment');
    expect(Object.fromEntries(deployments.map(({ metadata, spec }) => [metadata.name, spec?.replicas]))).toEqual({
      'sluice-api': 0,
      'sluice-worker': 0,
      'sluice-maintenance': 1,
    });
    expect(objects.filter(({ kind }) => kind === 'Job')).toEqual([]);
  },
);

test.skipIf(!hasHelm || !has('kubernetes-validate', ['--version']))('Kubernetes accepts what it renders', () => {
  for (const version of ['1.25', '1.36']) {
    const args = ['-k', version, '--strict', '-'];
    expect(() => execFileSync('kubernetes-validate', args, { input: render(everything), stdio: 'pipe' })).not.toThrow();
  }
});

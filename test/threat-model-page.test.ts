import { expect, test } from 'vitest';
import { projectFiles, readSource } from './source-files.ts';

const page = readSource('docs/threat-model.md');
const [, threatTables = ''] = page.split(/^## (?:Threats|Out of scope)$/m);
const threats = threatTables.match(/^\| (?!threat |---).*$/gm) ?? [];
const testsOf = (threat: string): string[] =>
  [...(threat.split(' | ')[2] ?? '').matchAll(/`([^`]+)`/g)].map(([, file = '']) => file);

test('docs/threat-model.md names tests that exist for each threat', () => {
  // The attacks of `npm run test:abuse` and the targets of `npm run test:fuzz` are run by tests.
  const tests = projectFiles.filter((file) => /\.test\.ts$|^test\/(abuse\/attacks|fuzz)\//.test(file));
  const isShown = (named: readonly string[]): boolean =>
    named.length > 0 && named.every((file) => tests.includes(file));
  expect(threats.length).toBeGreaterThan(20);
  expect(threats.filter((threat) => !isShown(testsOf(threat)))).toEqual([]);
});

test('docs/threat-model.md names every file of attacks', () => {
  const attacks = projectFiles.filter((file) => /^test\/(attacks\/.+\.test|abuse\/attacks\/.+)\.ts$/.test(file));
  expect(attacks.filter((file) => !page.includes(`\`${file}\``))).toEqual([]);
});

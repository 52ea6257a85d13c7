import { expect, test } from 'vitest';
import { faultKinds } from './faults/plan-round.ts';
import { projectFiles, readSource } from './source-files.ts';

const page = readSource('docs/faults.md');

test('docs/faults.md names files that exist, and quotes what they contain', () => {
  const named = [...page.matchAll(/`((?:apps|libs|test)\/[^`]+\.ts)`(?:: "([^"]+)")?/g)];
  const wrong = named.filter(
    ([, file = '', quoted = '']) => !projectFiles.includes(file) || !readSource(file).includes(quoted),
  );
  expect(wrong.map(([text]) => text)).toEqual([]);
});

test('docs/faults.md has every fault of the random rounds, and every test of faults', () => {
  const tests = projectFiles.filter((file) => /^test\/faults\/(?!check-)[^/]+\.test\.ts$/.test(file));
  expect([...faultKinds, ...tests].filter((name) => !page.includes(`\`${name}\``))).toEqual([]);
});

import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';

// House rules that no linter knows (docs/decisions): cheap to check, easy to forget.

const root = path.resolve(import.meta.dirname, '..');
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');
const tracked = execFileSync('git', ['ls-files', 'apps', 'libs', 'migrations', 'test'], { cwd: root, encoding: 'utf8' })
  .split('\n')
  .filter((file) => file.endsWith('.ts'));

test('migrations are numbered without gaps', () => {
  const names = readdirSync(path.join(root, 'migrations')).toSorted();
  expect(names.map((name) => name.slice(0, 4))).toEqual(
    names.map((_name, index) => String(index + 1).padStart(4, '0')),
  );
});

test('only configuration reads the environment', () => {
  const readers = tracked.filter(
    (file) =>
      /^(apps|libs)\//.test(file) &&
      !/(config|read-env)\.ts$|\.test\.ts$/.test(file) &&
      /process\.env\b/.test(read(file)),
  );
  expect(readers).toEqual([]);
});

test('every route file is in the route table, or what one of those is made of', () => {
  const folder = 'apps/api/routes';
  const files = readdirSync(path.join(root, folder)).filter((file) => !file.endsWith('.test.ts'));
  const importers = ['apps/api/routes.ts', ...files.map((file) => `${folder}/${file}`)].map(read).join('\n');
  expect(files.filter((file) => !new RegExp(`'\\./(routes/)?${file}'`).test(importers))).toEqual([]);
});

test('the README names every variable of the environment', () => {
  const readme = read('README.md');
  const configs = tracked.filter((file) => /^apps\/.*\/config\.ts$/.test(file));
  const names = configs.flatMap((file) => [...read(file).matchAll(/^ +([A-Z][A-Z0-9_]+):/gm)].map((match) => match[1]));
  expect(names.length).toBeGreaterThan(30);
  expect(names.filter((name) => !readme.includes(`\`${name}\``))).toEqual([]);
});

test('the lockfile names no download address', () => {
  expect(read('package-lock.json')).not.toContain('"resolved": "http');
});

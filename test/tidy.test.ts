import { readdirSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { providers } from '#libs/providers/provider-list.ts';
import { importsOf, projectFiles, readSource as read } from './source-files.ts';

// House rules that no linter knows (docs/decisions): cheap to check, easy to forget.

const root = path.resolve(import.meta.dirname, '..');
const tracked = projectFiles.filter((file) => /^(?:apps|libs|migrations|test)\/.*\.ts$/.test(file));

test('migrations are numbered without gaps', () => {
  const names = readdirSync(path.join(root, 'migrations')).toSorted();
  expect(names.map((name) => name.slice(0, 4))).toEqual(
    names.map((_name, index) => String(index + 1).padStart(4, '0')),
  );
});

/** The text of programs for people to copy: they use the client of OpenAI and the environment, and this code does not. */
const snippets = 'apps/console/src/pages/call-snippets.ts';

test('only configuration reads the environment', () => {
  const readers = tracked.filter(
    (file) =>
      /^(apps|libs)\//.test(file) &&
      file !== snippets &&
      !/(config|read-env)\.ts$|\.test\.ts$/.test(file) &&
      /process\.env\b/.test(read(file)),
  );
  expect(readers).toEqual([]);
});

test('every file of the API is imported by another one', () => {
  const files = tracked.filter((file) => /^apps\/api\/.*(?<!\.test)\.ts$/.test(file));
  const others = new Set(['apps/api/main.ts', 'apps/api/server/check-body-worker.ts', ...files.flatMap(importsOf)]);
  expect(files.filter((file) => !others.has(file))).toEqual([]);
});

test('only the folders of providers contain a provider’s name or settings, in their adapters', () => {
  const names = providers.flatMap(({ id, aliases = [] }) => [id, ...aliases]);
  const settings = providers.flatMap((provider) => Object.keys(provider.settings ?? {}));
  const headers = settings.map((setting) => setting.replaceAll('_', '-'));
  const name = new RegExp(`(['"\`])(${names.join('|')})\\1`);
  const setting = new RegExp(`\\b(${[...settings, ...headers].join('|')})\\b`);
  const withoutComments = (text: string): string => text.replaceAll(/\/\*[^]*?\*\/|(?<=^|\s)\/\/.*/gm, '');
  // Secret managers of AWS and Azure are no providers, but clients name their credentials as those of the providers.
  const managers = /^libs\/(contracts\/secret-references|secret-managers\/(aws|azure)-[\w-]+)\.ts$/;
  const found = tracked
    .filter((file) => !managers.test(file) && file !== snippets)
    .filter((file) => /^(apps|libs)\//.test(file) && !/^(libs\/providers|apps\/simulator)\/|\.test\.ts$/.test(file))
    .flatMap((file) => {
      const code = withoutComments(read(file));
      // The simulator is also an app: the others start it and give it a virtual key.
      const named = file.startsWith('apps/') ? code.replaceAll("'simulator'", '') : code;
      return [name, setting].flatMap((form) => form.exec(named)?.[0] ?? []).map((word) => `${file}: ${word}`);
    });
  expect(found).toEqual([]);
});

test('contracts, which also run in browsers, load none of the adapters', () => {
  const imports = tracked
    .filter((file) => file.startsWith('libs/contracts/') && !file.endsWith('.test.ts'))
    .flatMap((file) => [...read(file).matchAll(/from '#libs\/providers\/(.+)'/g)].map((match) => match[1]));
  expect(new Set(imports)).toEqual(new Set(['provider.ts', 'setting-fields.ts']));
  for (const file of ['provider.ts', 'setting-fields.ts']) {
    expect(read(`libs/providers/${file}`)).not.toMatch(/^import (?!type )/m);
  }
});

test('docs/configuration.md names every variable of the environment', () => {
  const page = read('docs/configuration.md');
  const configs = tracked.filter((file) => /^apps\/.*\/config\.ts$/.test(file));
  const names = configs.flatMap((file) => [...read(file).matchAll(/^ +([A-Z][A-Z0-9_]+):/gm)].map((match) => match[1]));
  expect(names.length).toBeGreaterThan(30);
  expect(names.filter((name) => !page.includes(`\`${name}\``))).toEqual([]);
});

test('the lockfile names no download address', () => {
  expect(read('package-lock.json')).not.toContain('"resolved": "http');
});

test('docs/threat-model.md names tests that exist, and every attack', () => {
  const named = new Set([...read('docs/threat-model.md').matchAll(/`([\w/.-]+\.ts)`/g)].map((match) => match[1] ?? ''));
  expect([...named].filter((file) => !projectFiles.includes(file))).toEqual([]);
  const attacks = projectFiles.filter((file) => /^test\/(?:attacks\/.*\.test|abuse\/attacks\/.*)\.ts$/.test(file));
  expect(attacks.length).toBeGreaterThan(5);
  expect(attacks.filter((file) => !named.has(file))).toEqual([]);
});

test('no dependency is replaced by a package of somebody else', () => {
  const { overrides } = JSON.parse(read('package.json')) as { overrides: Record<string, string> };
  expect(Object.values(overrides).filter((version) => version.startsWith('npm:'))).toEqual([]);
});

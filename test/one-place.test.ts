import { execFile, execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';

// A column of the request log and a provider are added to a copy of the project, in the places that CONTRIBUTING.md and
// decision 26 name. If the copy does not compile or one of its tests fails, another place has to be edited too.

const root = path.resolve(import.meta.dirname, '..');
const copy = mkdtempSync(path.join(tmpdir(), 'sluice-copy-'));
const git = (folder: string, ...args: string[]): string =>
  execFileSync('git', args, { cwd: folder, encoding: 'utf8', maxBuffer: 64 * 1_048_576 });
const run = promisify(execFile);

/** Runs a script with Node in the copy. Throws its output if it fails. */
async function runInCopy(script: string, ...args: string[]): Promise<void> {
  const { VITEST: _vitest, ...env } = process.env;
  await run(process.execPath, [script, ...args], { cwd: copy, env }).catch(
    ({ stdout, stderr }: { stdout: string; stderr: string }) => {
      throw new Error(`${script} ${args.join(' ')}\n${stdout}${stderr}`);
    },
  );
}

const vitest = 'node_modules/vitest/vitest.mjs';
const timeout = 240_000;

/** Adds text before the last line that starts with `end`. */
function addBefore(file: string, end: string, text: string): void {
  const source = readFileSync(path.join(copy, file), 'utf8');
  const at = source.lastIndexOf(`\n${end}`) + 1;
  expect(at).toBeGreaterThan(0);
  writeFileSync(path.join(copy, file), source.slice(0, at) + text + source.slice(at));
}

function addFile(file: string, text: string): void {
  mkdirSync(path.dirname(path.join(copy, file)), { recursive: true });
  writeFileSync(path.join(copy, file), text);
}

function addColumn(): void {
  addBefore(
    'libs/request-log/columns.ts',
    '} as const satisfies Record<string, Column>;',
    `  data_centre: {
    type: 'text',
    isRequired: true,
    from: ({ ended }) => ended.call.metadata?.['data_centre'] ?? '',
    shown: { name: 'data_centre_name', description: 'Where the call was made.' },
    filter: { list: 'data_centres', isExact: true },
    exportedAs: 'data_centre_code',
    isRolledUp: true,
  },
`,
  );
}

function addProvider(): void {
  addFile(
    'libs/providers/acme/index.ts',
    `import { openAiCompatible } from '../openai-compatible.ts';
import type { Provider } from '../provider.ts';
import { addressFrom } from '../url-parts.ts';

export const acme: Provider = {
  ...openAiCompatible({ id: 'acme', aliases: ['acme-ai'], headerSettings: ['acme_project'], variant: { usageBesideChoices: true } }),
  settings: {
    acme_cell: { destination: true, alias: 'cell' },
    acme_project: {},
    acme_token: { secret: true, authenticates: true },
  },
  address: 'https://{acme_cell}.acme.example/v1',
  baseUrlOf: addressFrom('acme_cell', (cell) => \`https://\${cell}.acme.example/v1\`),
  needsCredential: true,
};
`,
  );
  addBefore('libs/providers/provider-list.ts', '];', '  acme,\n');
  const list = path.join(copy, 'libs/providers/provider-list.ts');
  writeFileSync(list, `import { acme } from './acme/index.ts';\n${readFileSync(list, 'utf8')}`);
  addFile(
    'test/conformance/cases/acme.ts',
    `import type { ConformanceCase } from '../conformance-case.ts';
import { nearCase } from '../near-case.ts';

export const cases: readonly ConformanceCase[] = [nearCase({ provider: 'acme', model: 'acme-1' })];
`,
  );
}

// The files of the project are those that git tracks.
const isClone = existsSync(path.join(root, '.git'));

beforeAll(async () => {
  if (!isClone) return;
  const files = git(root, 'ls-files', '--cached', '--others', '--exclude-standard').split('\n');
  for (const file of files)
    if (file !== '' && existsSync(path.join(root, file))) cpSync(path.join(root, file), path.join(copy, file));
  symlinkSync(path.join(root, 'node_modules'), path.join(copy, 'node_modules'));
  addColumn();
  addProvider();
  git(copy, 'init', '--quiet');
  git(copy, 'add', '.');
  // npm run generate, and the part of npm run check that the console needs.
  for (const script of ['libs/providers/generate.ts', 'apps/generate.ts', 'apps/console/generate.ts'])
    await runInCopy(script);
}, 120_000);
afterAll(() => rmSync(copy, { recursive: true }));

// Together, because the start of each takes one processor, and much of the rest of the suite waits.
test.skipIf(!isClone).concurrent('every file compiles with the column and the provider', { timeout }, async () => {
  await runInCopy('node_modules/typescript/bin/tsc', '--noEmit');
  await runInCopy('node_modules/typescript/bin/tsc', '--noEmit', '-p', 'apps/console');
});

test
  .skipIf(!isClone)
  .concurrent(
    'a column is its entry in columns.ts, and a provider its folder, its entry in provider-list.ts and its conformance case',
    { timeout },
    async () => {
      const columnTests = ['libs/request-log', 'libs/contracts', 'libs/analytics'];
      const providerTests = ['libs/providers', 'libs/credentials', 'test/conformance/conformance', 'test/tidy'];
      await runInCopy(vitest, 'run', '--project', 'unit', '--maxWorkers', '1', ...columnTests, ...providerTests);
    },
  );

import { readdir, readFile, rm } from 'node:fs/promises';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { makeDatabaseFolder } from '#test/database-folder.ts';
import { run, standaloneEnvironment } from './npm-start.ts';

test('the demo adds up, leaves its files and nothing else', async () => {
  const folder = await makeDatabaseFolder('sluice-demo-test-');
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const out = path.join(folder, 'out');
  // A real installation's variables must not matter to it: here they would break it.
  const real = { DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none', PORT: '1', SLUICE_MASTER_KEY: 'not a key' };
  const env = standaloneEnvironment(path.join(folder, 'real'), { ...real, TMPDIR: folder });
  const { code, stdout, stderr } = await run(['apps/standalone/demo.ts', '--lines', '50', '--out', out], env);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toContain('all checks passed');
  expect(stdout).not.toContain('FAILED');
  const linesOf = async (name: string): Promise<string[]> =>
    (await readFile(path.join(out, name), 'utf8')).split('\n').filter((line) => line !== '');
  expect(await linesOf('input.jsonl')).toHaveLength(50);
  expect(await linesOf('output.jsonl')).toHaveLength(49);
  expect(await linesOf('errors.jsonl')).toHaveLength(1);
  expect(await readdir(folder)).toEqual(['out']);
});

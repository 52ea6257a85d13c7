import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { StartError } from '../start-error.ts';
import { prepareFolder } from './run-demo.ts';

let scratch: string;
beforeAll(async () => {
  scratch = await mkdtemp(path.join(tmpdir(), 'sluice-run-demo-'));
});
afterAll(() => rm(scratch, { recursive: true, force: true }));

test('a folder that cannot be created is reported without a stack', async () => {
  const file = path.join(scratch, 'file');
  await writeFile(file, '');
  const refused = prepareFolder(path.join(file, 'out'));
  await expect(refused).rejects.toThrow(StartError);
  await expect(refused).rejects.toThrow(`${path.join(file, 'out')} is not writable (ENOTDIR). Choose another --out.`);
});

import { existsSync, statSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { openLogFile } from './log-file.ts';

async function setUp(sizeBytesMax = 1_000) {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-log-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const file = path.join(folder, 'logs/app.log');
  const log = openLogFile({ file, sizeBytesMax, onProblem: (text) => expect.fail(text) });
  return { file, log };
}

test('two files of the largest size are kept at most, the newest lines among them', async () => {
  const { file, log } = await setUp(30);
  for (let number = 10; number < 30; number += 1) log.write(`line ${number}\n`);
  log.close();
  const kept = (await readFile(`${file}.1`, 'utf8')) + (await readFile(file, 'utf8'));
  expect(kept).toMatch(/line 29\n$/);
  expect(statSync(file).size).toBeLessThanOrEqual(30);
  expect(statSync(`${file}.1`).size).toBeLessThanOrEqual(30);
});

test('a later start goes on in the same file, which only the owner can read', async () => {
  const { file, log } = await setUp();
  log.write('first\n');
  log.close();
  const again = openLogFile({ file, sizeBytesMax: 1_000, onProblem: (text) => expect.fail(text) });
  again.write('second\n');
  again.close();
  expect(await readFile(file, 'utf8')).toBe('first\nsecond\n');
  expect(statSync(file).mode & 0o777).toBe(0o600);
});

test.skipIf(!existsSync('/dev/full'))('a full disk is reported once and ends nothing', () => {
  const problems: string[] = [];
  const log = openLogFile({ file: '/dev/full', sizeBytesMax: 1_000, onProblem: (text) => problems.push(text) });
  for (let number = 0; number < 3; number += 1) log.write('line\n');
  log.close();
  expect(problems).toEqual([expect.stringMatching(/^could not write \/dev\/full: ENOSPC/)]);
});

import { spawn } from 'node:child_process';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { acquireDirectoryLock } from './directory-lock.ts';

async function lockFile(): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-lock-'));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return path.join(folder, 'lock');
}

test('a lock has one holder at a time, also within a process, and is free once released', async () => {
  const file = await lockFile();
  const first = await acquireDirectoryLock(file, 0);
  expect(first).toBeDefined();
  expect(await acquireDirectoryLock(file, 0)).toBeUndefined();
  first?.release();
  first?.release();
  const second = await acquireDirectoryLock(file, 0);
  expect(second).toBeDefined();
  expect(await readdir(path.dirname(file))).toEqual(['lock']);
  second?.release();
});

test('a waiting taker gets the lock when it is released', async () => {
  const file = await lockFile();
  const first = await acquireDirectoryLock(file, 0);
  const waiting = acquireDirectoryLock(file, 10_000);
  first?.release();
  const second = await waiting;
  expect(second).toBeDefined();
  second?.release();
});

test('the lock of a killed process is free', async () => {
  const file = await lockFile();
  const script = `import { acquireDirectoryLock } from ${JSON.stringify(new URL('./directory-lock.ts', import.meta.url).href)};
    console.log(await acquireDirectoryLock(${JSON.stringify(file)}, 0) ? 'held' : 'refused'); setInterval(() => {}, 1e6);`;
  const holder = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = new Promise((resolve) => holder.on('exit', resolve));
  const said = await new Promise((resolve) => holder.stdout.once('data', (data) => resolve(String(data).trim())));
  expect(said).toBe('held');
  expect(await acquireDirectoryLock(file, 0)).toBeUndefined();
  holder.kill('SIGKILL');
  await exited;
  const lock = await acquireDirectoryLock(file, 0);
  expect(lock).toBeDefined();
  lock?.release();
});

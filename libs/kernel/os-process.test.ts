import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { expect, test } from 'vitest';
import { hasEnded, nameOsProcess } from './os-process.ts';

const start = () => spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)']);

test.runIf(process.platform === 'linux')('a process has ended after kill -9, and not before', async () => {
  const child = start();
  const name = nameOsProcess(child.pid) as string;
  expect(hasEnded(name)).toBe(false);
  child.kill('SIGKILL');
  await once(child, 'exit');
  expect(hasEnded(name)).toBe(true);
});

test('a process of another host, boot or PID namespace has never ended', async () => {
  const child = start();
  const name = nameOsProcess(child.pid) ?? 'unknown';
  child.kill('SIGKILL');
  await once(child, 'exit');
  const others = [`other ${name}`, name.replace('-', '_'), name.replace('pid:[', 'pid:[1'), ''];
  expect(others.filter(hasEnded)).toEqual([]);
});
